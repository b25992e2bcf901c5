"""The report of one or several runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from homespun.report import error_analysis, plots, summary, tables
from homespun.report.document import (
    Chapter,
    Code,
    Content,
    Details,
    Document,
    Gallery,
    Heatmap,
    Notice,
    Paragraph,
    TableBlock,
    write_document,
)
from homespun.report.error_analysis import confusion, confusion_table, mistakes, overlap_table
from homespun.report.learning_curve import curve_plot, curve_table
from homespun.report.plots import BY_STEP, BY_TIME, Line, Plot
from homespun.report.records import RunRecord, comparable, config_text, read_runs
from homespun.report.table import Table, slug
from homespun.report.transfer import adaptation, distillation, layers_read
from homespun.results import ConfusionMatrix


@dataclass(frozen=True)
class Section:
    """Content from the caller: heading, text, tables, commands that were run."""

    title: str
    text: str = ""
    commands: Sequence[str] = ()
    tables: Sequence[Table] = ()


def write_report(runs: Sequence[Path], out: Path, *, title: str, sections: Sequence[Section] = ()) -> Path:
    """Write the report of ``runs`` into the folder ``out`` and return its page, ``out/index.html``.

    Several runs are drawn on shared axes, in the order given. The folder also gets ``report.md``, ``tables/*.csv``
    (raw values), ``plots/*.svg`` and ``*.png``. Files are written atomically, the page last; other files stay.

    Args:
        runs: run directories; unfinished runs are shown up to their last step.
        out: folder of the report.
        title: heading of the page.
        sections: text, tables and commands from the caller.

    Raises:
        UserError: no run, or a folder that is not a run directory, or a damaged file in one, or ``out`` is a file.
    """
    return write_document(compose(read_runs(runs), title=title, sections=sections), Path(out))


def compose(records: Sequence[RunRecord], *, title: str, sections: Sequence[Section]) -> Document:
    """The report of one or several runs; chapters without content are left out."""
    lead: list[Content] = [*map(Paragraph, summary.summary(records)), *map(Notice, summary.warnings(records))]
    lead += map(Notice, summary.leakage(records))
    chapters = [
        Chapter("Results", tabular(*tables.results(records))),
        Chapter("Learning curve", _per_run(records, _learning_curve)),
        Chapter("Classes", _classes(records)),
        Chapter("Top errors and confident predictions", _per_run(records, _examples)),
        Chapter("Resources and losses", tabular(tables.resources(records), *tables.losses(records))),
        Chapter("Teacher and student", _per_run(records, lambda record, end: tabular(*distillation(record, end)))),
        Chapter("Adaptation", _per_run(records, lambda record, end: tabular(*adaptation(record, end)))),
        Chapter("Layer weights", tabular(layers_read(records))),
        Chapter("Curves", _curves(records)),
        Chapter("Calibration", _per_run(records, _calibration)),
        Chapter("Leakage", _per_run(records, lambda record, end: tabular(overlap_table(record, f"overlap{end}")))),
        Chapter("Lengths", length_contents({record.name: record for record in records})),
        Chapter("Exports", _exports(records)),
        Chapter("Configuration", _configuration(records, sections)),
    ]
    return Document(title, lead, [chapter for chapter in chapters if chapter.contents])


def tabular(*found: Table | None) -> list[Content]:
    """The tables that exist, as contents."""
    return [TableBlock(table) for table in found if table is not None]


def confusion_contents(found: ConfusionMatrix, end: str, title: str, mistakes_title: str) -> list[Content]:
    """Heatmap of a confusion matrix, or its counts folded if it has many classes; most frequent mistakes."""
    counts = confusion_table(found, f"confusion{end}")
    wrong = tabular(mistakes(found, f"mistakes{end}", mistakes_title))
    if found.is_readable:
        return [Heatmap(title, counts, found), *wrong]
    return [*wrong, Details(title, [TableBlock(counts)])]


def length_contents(records: Mapping[str, RunRecord], stage: str = "", end: str = "") -> list[Content]:
    """Histograms and statistics of lengths; records with equal lengths share them.

    Args:
        records: by the name to show.
        stage: title of a stage of a comparison.
        end: of file names.
    """
    given: list[tuple[RunRecord, list[str]]] = []
    for name, record in records.items():
        same = next((names for other, names in given if other.result.lengths == record.result.lengths), None)
        if same is not None:
            same.append(name)
        elif record.result.lengths:
            given.append((record, [name]))
    contents: list[Content] = []
    for i, (record, names) in enumerate(given, start=1):
        file = f"lengths{end}" if len(given) == 1 else f"lengths{end}-{i}"
        title = ": ".join(part for part in (stage, ", ".join(names) if len(given) > 1 else "") if part)
        drawn = _histograms(record, file, title)
        note = "Tokens per text by class, on a logarithmic axis; each histogram is scaled to its maximum."
        contents += [Gallery(title or "By class", drawn, note)] if drawn else []
        contents += tabular(tables.lengths(record, file, f"Lengths in tokens{title and f', {title}'}"))
    return contents


def _histograms(record: RunRecord, file: str, title: str) -> list[Plot]:
    splits: dict[str, list[dict[str, JsonValue]]] = {}
    for row in record.result.lengths:
        splits.setdefault(str(row.get("split")), []).append(row)
    drawn = []
    for split, rows in splits.items():
        of_classes = [row for row in rows if row.get("class") is not None] or rows
        caption = ", ".join(part for part in ("Lengths", title, split) if part)
        drawn.append(plots.length_histogram(of_classes, f"{file}-{slug(split)}", caption))
    return [plot for plot in drawn if plot is not None]


def _per_run(records: Sequence[RunRecord], make: Callable[[RunRecord, str], list[Content]]) -> list[Content]:
    """Contents of the first run that has any, and those of the others folded.

    Args:
        make: run and end of its file names, a number if there are several runs.
    """
    ends = ["" if len(records) == 1 else f"-{i}" for i in range(1, len(records) + 1)]
    made = ((record.name, make(record, end)) for record, end in zip(records, ends, strict=True))
    present = [(name, contents) for name, contents in made if contents]
    return [*(present[0][1] if present else []), *(Details(name, contents) for name, contents in present[1:])]


def _learning_curve(record: RunRecord, end: str) -> list[Content]:
    plot = curve_plot(record, f"examples{end}")
    note = "Bars: standard deviation over trainings. Dashed: baselines with as many examples."
    return [*tabular(curve_table(record, f"examples{end}")), *([Gallery(record.name, [plot], note)] if plot else [])]


def _curves(records: Sequence[RunRecord]) -> list[Content]:
    """A gallery for each group of runs with the same terms of the loss."""
    groups = comparable(records)
    styles = plots.assign_styles([record.name for record in records])
    contents: list[Content] = []
    for number, group in enumerate(groups, start=1):
        prefix = "" if len(groups) == 1 else f"{number}-"
        title = ", ".join(f"{r.name} ({r.trial})" if r.trial else r.name for r in group)
        note = "Thin line: training, mean over 4 % of the run. Line with dots: validation."
        lines = [Line(record.name, styles[record.name], [record]) for record in group]
        drawn = plots.loss_plots(lines, (BY_STEP, BY_TIME), prefix)
        rate = plots.learning_rate_plot(lines, f"{prefix}learning-rate")
        contents += [Gallery(title, [*drawn, *([rate] if rate else [])], note)] if drawn or rate else []
    return contents


def _classes(records: Sequence[RunRecord]) -> list[Content]:
    """Confusion matrix, mistakes and metrics of each class, of the best run first."""

    tested = [record for record in records if record.tests() and record.tests()[0].per_class]

    def contents(record: RunRecord, end: str) -> list[Content]:
        tests = record.tests()
        of = f"first of {len(tests)} trainings of {record.name}" if len(tests) > 1 else record.name
        matrix = confusion(tests[0])
        title = f"Confusion matrix ({of})" if len(tests) > 1 or len(tested) > 1 else "Confusion matrix"
        found = confusion_contents(matrix, end, title, "Most frequent mistakes") if matrix else []
        return [*found, *tabular(tables.per_class(tests[0], f"per-class{end}", record.result.baselines.get("tfidf")))]

    return _per_run(sorted(tested, key=lambda record: -(tables.accuracy(record) or 0.0)), contents)


def _examples(record: RunRecord, end: str) -> list[Content]:
    return tabular(
        error_analysis.top_errors_table(record, f"most-wrong{end}"),
        error_analysis.confident_table(record, f"most-confident{end}"),
    )


def _calibration(record: RunRecord, end: str) -> list[Content]:
    """Calibration and thresholds of a classifier."""
    plot = error_analysis.reliability_plot(record, f"reliability{end}")
    found = tabular(
        error_analysis.calibration_table(record, f"calibration{end}"),
        error_analysis.thresholds_table(record, f"thresholds{end}"),
    )
    return [*found, *([Gallery(record.name, [plot], "Larger points: more test examples.")] if plot else [])]


def _exports(records: Sequence[RunRecord]) -> list[Content]:
    """Exports to transformers, or why there is none."""
    contents: list[Content] = []
    for record in records:
        export = record.result.export
        if export is None:
            continue
        if export.folder:
            sentences = [f"hf/ of {record.name} is a {export.architecture} of transformers", *export.notes]
        else:
            sentences = [f"{record.name}: {export.notes[0]}", *export.notes[1:]]
        contents.append(Paragraph(". ".join(sentences) + "."))
    return contents


def _configuration(records: Sequence[RunRecord], sections: Sequence[Section]) -> list[Content]:
    contents: list[Content] = []
    for section in sections:
        contents += [Paragraph(section.text, section.title)]
        contents += tabular(*section.tables)
        contents += [Code("\n".join(section.commands))] if section.commands else []
    contents += tabular(*tables.differences(records))
    contents += [
        Details(f"config.yaml of {record.name}", [Code(config_text(record))]) for record in records if record.config
    ]
    environment = tables.environments(records)
    contents += [Details(environment.title, [TableBlock(environment)])] if environment else []
    return contents
