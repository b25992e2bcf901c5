"""Report of one or several runs, and content shared with the report of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue

from homespun.report import error_analysis, plots, summary, tables, transfer
from homespun.report.document import (
    Block,
    Document,
    code,
    details,
    first_open,
    gallery,
    notices,
    paragraphs,
    slug,
    tabular,
    write_document,
)
from homespun.report.error_analysis import confusion, confusion_table, mistakes, overlap_table
from homespun.report.figure import Plot, assign_looks
from homespun.report.plots import BY_STEP, BY_TIME, Line
from homespun.report.records import RunRecord, Tree, comparable, config_text, read_runs
from homespun.results import ConfusionMatrix


def write_report(runs: Sequence[Path], out: Path, *, title: str) -> Path:
    """Write the report of ``runs`` into the folder ``out`` and return its page, ``out/index.html``.

    Several runs share the axes of the plots. The folder also gets ``report.md``, ``tables/*.csv``
    (raw values), ``plots/*.svg`` and ``*.png``. Files are written atomically, the page last; other files stay.

    Args:
        runs: run directories; unfinished runs are shown up to their last step.
        out: folder of the report.
        title: heading of the page.

    Raises:
        UserError: no run, or a folder that is not a run directory, or a damaged file in one, or ``out`` is a file.
    """
    records = read_runs(runs)
    lead = paragraphs(*summary.summary(records))
    lead += notices(*summary.warnings(records), *summary.leakage(records))
    chapters = {
        "Results": tabular(*tables.results(records)),
        "Learning curve": _per_run(records, _learning_curve),
        "Classes": _classes(records),
        "Top errors and confident predictions": _per_run(records, _examples),
        "Resources and losses": tabular(tables.resources(records), *tables.losses(records)),
        "Teacher and student": _per_run(records, lambda record, end: tabular(*transfer.distillation(record, end))),
        "Adaptation": _per_run(records, lambda record, end: tabular(*transfer.adaptation(record, end))),
        "Layer weights": tabular(transfer.layer_weights(records)),
        "Curves": _curves(records),
        "Calibration": _per_run(records, _calibration),
        "Leakage": _per_run(records, lambda record, end: tabular(overlap_table(record, f"overlap{end}"))),
        "Lengths": length_blocks({record.name: record for record in records}),
        "Exports": paragraphs(*summary.exports(records)),
        "Configuration": _configuration(records),
    }
    return write_document(Document(title, lead, chapters), Path(out))


def _per_run(records: Sequence[RunRecord], make: Callable[[RunRecord, str], list[Block]]) -> list[Block]:
    """Return the blocks of the first run that has any, and fold those of the others.

    ``make`` gets a run and the end of its file names, a number if there are several runs.
    """
    ends = ["" if len(records) == 1 else f"-{i}" for i in range(1, len(records) + 1)]
    return first_open({record.name: make(record, end) for record, end in zip(records, ends, strict=True)})


def _learning_curve(record: RunRecord, end: str) -> list[Block]:
    note = "Bars: standard deviation over trainings. Dashed: baselines with as many examples."
    drawn = gallery(record.name, [plots.curve_plot(record, f"examples{end}")], note)
    return tabular(tables.learning_curve(record, f"examples{end}")) + drawn


def _classes(records: Sequence[RunRecord]) -> list[Block]:
    """Show confusion matrix, mistakes and metrics of each class, open for the best run."""
    tested = [record for record in records if record.tests() and record.tests()[0].per_class]

    def blocks(record: RunRecord, end: str) -> list[Block]:
        tests = record.tests()
        of = f"first of {len(tests)} trainings of {record.name}" if len(tests) > 1 else record.name
        part = f" ({of})" if len(tests) > 1 or len(tested) > 1 else ""
        matrix, tfidf = confusion(tests[0]), record.result.baselines.get("tfidf")
        found = confusion_blocks(matrix, end, f"Confusion matrix{part}", "Most frequent mistakes") if matrix else []
        return found + tabular(tables.per_class(tests[0], f"per-class{end}", tfidf, f"Per class{part}"))

    return _per_run(sorted(tested, key=lambda record: -(tables.accuracy(record) or 0.0)), blocks)


def confusion_blocks(found: ConfusionMatrix, end: str, title: str, mistakes_title: str) -> list[Block]:
    """Show a confusion matrix as heatmap, or folded counts for many classes, and the most frequent mistakes."""
    counts = confusion_table(found, f"confusion{end}")
    wrong = tabular(mistakes(found, f"mistakes{end}", mistakes_title))
    if found.is_readable:
        return [Block("heatmap", title, "Percent of each row.", counts, found), *wrong]
    return wrong + details(title, tabular(counts))


def _examples(record: RunRecord, end: str) -> list[Block]:
    """Show the examples with the largest loss or lowest score, and correct ones with the smallest loss."""
    wrong, confident = f"Top errors of {record.name}", f"Most confident predictions of {record.name}"
    check, note = "Check the labels of these examples first.", "Correct predictions with the smallest loss."
    return tabular(
        error_analysis.predictions_table(f"most-wrong{end}", wrong, record.result.top_errors, check),
        error_analysis.predictions_table(f"most-confident{end}", confident, record.result.most_confident, note),
    )


def _curves(records: Sequence[RunRecord]) -> list[Block]:
    """Show figures for each group of runs with the same loss terms."""
    groups = comparable(records)
    looks = assign_looks([record.name for record in records])
    blocks: list[Block] = []
    for number, group in enumerate(groups, start=1):
        prefix = "" if len(groups) == 1 else f"{number}-"
        title = ", ".join(f"{r.name} ({r.trial})" if r.trial else r.name for r in group)
        note = "Thin line: training, mean over 4 % of the run. Line with dots: validation."
        lines = [Line(record.name, looks[record.name], [record]) for record in group]
        rate = plots.learning_rate_plot(lines, f"{prefix}learning-rate")
        blocks += gallery(title, [*plots.loss_plots(lines, (BY_STEP, BY_TIME), prefix), rate], note)
    return blocks


def _calibration(record: RunRecord, end: str) -> list[Block]:
    """Show calibration and thresholds of a classifier."""
    found = tabular(
        error_analysis.calibration_table(record, f"calibration{end}"),
        error_analysis.thresholds_table(record, f"thresholds{end}"),
    )
    plot = error_analysis.reliability_plot(error_analysis.calibration_of(record), f"reliability{end}")
    return found + gallery(record.name, [plot], "Larger points: more test examples.")


def length_blocks(records: Mapping[str, RunRecord], stage: str = "", end: str = "") -> list[Block]:
    """Show histograms and statistics of lengths; ``records``, by the name to show, with equal lengths share them."""
    given: list[tuple[RunRecord, list[str]]] = []
    for name, record in records.items():
        same = next((names for other, names in given if other.result.lengths == record.result.lengths), None)
        if same is not None:
            same.append(name)
        elif record.result.lengths:
            given.append((record, [name]))
    blocks: list[Block] = []
    for i, (record, names) in enumerate(given, start=1):
        file = f"lengths{end}" if len(given) == 1 else f"lengths{end}-{i}"
        title = ": ".join(part for part in (stage, ", ".join(names) if len(given) > 1 else "") if part)
        note = "Tokens per text by class, on a logarithmic axis; each histogram is scaled to its maximum."
        blocks += gallery(title or "By class", _histograms(record, file, title), note)
        blocks += tabular(tables.lengths(record, file, f"Lengths in tokens{title and f', {title}'}"))
    return blocks


def _histograms(record: RunRecord, file: str, title: str) -> list[Plot | None]:
    splits: dict[str, list[dict[str, JsonValue]]] = {}
    for row in record.result.lengths:
        splits.setdefault(str(row.get("split")), []).append(row)
    drawn = []
    for split, rows in splits.items():
        of_classes = [row for row in rows if row.get("class") is not None] or rows
        caption = ", ".join(part for part in ("Lengths", title, split) if part)
        drawn.append(plots.length_histogram(of_classes, f"{file}-{slug(split)}", caption))
    return drawn


def _configuration(records: Sequence[RunRecord]) -> list[Block]:
    blocks = tabular(*tables.differences(records))
    for record in records:
        blocks += details(f"config.yaml of {record.name}", code(config_text(record))) if record.config else []
    environment = tables.environment([(record.name, record.environment) for record in records if record.environment])
    return blocks + details(environment.title, tabular(environment))


def in_context_document(result: Tree) -> Document:
    """Build the page of a result of `homespun.commands.few_shot`."""
    drawn = gallery("Accuracy by examples", [plots.in_context_plot(result)], "Bands: lowest to highest over the draws.")
    chapters = {"Accuracy": tabular(tables.in_context(result)) + drawn, "A prompt": code(result["prompt"])}
    return Document(f"In-context learning: {result['run']}", paragraphs(summary.in_context(result)), chapters)
