"""Fine-tuned models whose task is not to name classes: their results, whether they beat the baselines, and the curve of
any task over numbers of training examples."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from homespun.report import formats
from homespun.report.plots import CARD, PALETTE, End, Plot, label_ends, render, style
from homespun.report.predictions import scores
from homespun.report.records import RunRecord
from homespun.report.significance import bootstrap_interval
from homespun.report.table import Column, Table
from homespun.report.tables import BASELINES
from homespun.results import CurvePoint, Metrics, Spread, mean_over_trainings

NAMES = {
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "roc_auc": "ROC AUC",
    "pr_auc": "PR AUC",
    "macro_f1": "macro F1",
    "f1": "F1",
    "exact_match": "exact match",
    "spearman": "Spearman correlation",
    "pearson": "Pearson correlation",
    "absolute_error": "mean absolute error",
    "quadratic_kappa": "quadratic weighted kappa",
}
_REPEATED = 0.1  # share of the texts that are one, above which it is said
_PURPOSE = {
    "text_to_text": "write texts of texts",
    "tagging": "tag words",
    "span_answers": "find answers in texts",
    "regression": "tell numbers",
    "ratings": "rate",
    "sentence_labels": "label sentences in their documents",
}


def title(measure: str) -> str:
    """A metric as people read it."""
    return NAMES.get(measure, measure.replace("_", " "))


def others(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The tested runs whose task is not to name classes."""
    return [record for record in records if record.tests() and not record.names_classes]


def results(records: Sequence[RunRecord]) -> list[Table]:
    """Test metrics of these models and of their baselines: a table for each group with the same metrics."""
    groups = [(key, list(found)) for key, found in groupby(others(records), key=lambda r: tuple(r.measures))]
    return [
        _results(measures, group, "results" if len(groups) == 1 else f"results-{index}")
        for index, (measures, group) in enumerate(groups, start=1)
    ]


def _results(measures: Sequence[str], records: Sequence[RunRecord], name: str) -> Table:
    rows: list[tuple[Any, ...]] = []
    for record in records:
        tests = record.tests()
        rows.append((record.name, *_values(tests, measures), len(tests), record.test_rows()))
        for part, metrics in tests[0].by_set.items():
            rows.append((f"{record.name}: {part}", *_values([metrics], measures), len(tests), metrics.rows))
        for baseline, metrics in record.result.baselines.items():
            line = BASELINES.get(baseline, baseline)
            shown = line if len(records) == 1 else f"{line} ({record.name})"
            rows.append((shown, *_values([metrics], measures), None, metrics.rows))
    columns = (
        Column("model", numeric=False),
        *(Column(title(measure), formats.share_spread, parts=("mean", "deviation")) for measure in measures),
        Column("words", formats.rate),
        Column("trainings", formats.integer),
        Column("test examples", formats.integer),
    )
    note = "± is the deviation over trainings (seeds, folds), where there are several."
    return Table(name, "On the test examples", columns, tuple(rows), note).without_empty_columns()


def _values(tests: Sequence[Metrics], measures: Sequence[str]) -> list[Any]:
    words = mean_over_trainings(tests, "words")
    return [*(mean_over_trainings(tests, measure) for measure in measures), words and words[0]]


def summarize(record: RunRecord, circumstances: str) -> list[str]:
    """What was learned, how good it is, and whether it beat each baseline."""
    tests, measures, rows = record.tests(), record.measures, record.test_rows()
    parts = [f"{record.name} was fine-tuned to {_purpose(record)}{circumstances}."]
    main, *rest = (mean_over_trainings(tests, measure) for measure in measures)
    if main is None:
        return [*parts, "It was not tested."]
    further_metrics = [
        f"{title(m)} {formats.share(v[0])}" for m, v in zip(measures[1:], rest, strict=True) if v is not None
    ]
    on = "the test examples" if rows is None else f"{formats.integer(rows)} test examples"
    further = f" ({', '.join(further_metrics)})" if further_metrics else ""
    several = f", the mean of {len(tests)} trainings" if len(tests) > 1 else ""
    parts.append(f"Its {title(measures[0])} on {on} is {formats.share(main[0])}{further}{several}.")
    if same := constant_output_warning({record.name: repeated(tests)}):
        parts.append(same)
    if record.result.measured_on == "validation":
        parts.append("These are the validation examples, which also chose the checkpoint: an independent test is due.")
    parts += [
        f"It {_compare_with_baseline(record, measures[0], main[0], name, reference[0])}."
        for name, baseline in record.result.baselines.items()
        if (reference := mean_over_trainings([baseline], measures[0])) is not None
    ]
    for count, words in (
        ("truncated", "Sources longer than the model reads, which were cut"),
        ("targets_truncated", "Targets longer than the model writes, cut in training"),
        ("empty", "Pairs without a source or a target, left out"),
        ("one_sided", "Pairs with an empty side, from which nothing was learned"),
        ("outside", "Numbers outside their range, neither learned from nor measured"),
        ("windows_beyond_one", "Parts read beyond one a document, of those longer than the model reads"),
        ("sentences_cut", "Sentences longer than the model reads, which were cut"),
        ("empty_documents", "Documents without a sentence"),
        ("words_without_pieces", "Words that are nothing to the tokenizer, to which the model gave no tag"),
        ("unseen_tags", "Words whose tag was not seen in training, and so is never told"),
        ("answers_realigned", "Answers that did not stand where it was said, taken where they stand nearest"),
        ("answers_dropped", "Questions without an answer that stands in their text, from which nothing was learned"),
        ("questions_truncated", "Questions longer than the model reads, which were cut"),
        ("empty_contexts", "Questions about an empty text"),
    ):
        if found := record.result.number(count):
            parts.append(f"{words}: {formats.integer(found)}.")
    return parts


def repeated(tests: Sequence[Metrics]) -> float:
    """The share of the texts that are the one written most often, where that is far more than targets repeat; or 0."""
    written, targets = (mean_over_trainings(tests, name) for name in ("commonest", "commonest_target"))
    if written is None or targets is None:
        return 0.0
    return written[0] if written[0] > _REPEATED + 2 * targets[0] else 0.0


def constant_output_warning(shares: Mapping[str, float]) -> str | None:
    """A warning where models write one text of many sources; ``shares`` are what `repeated` tells, by model."""
    parts = [
        f"{name} writes one and the same text of {formats.percent(share)}" for name, share in shares.items() if share
    ]
    if not parts:
        return None
    return f"{', '.join(parts)} of the sources: such a score is of what targets have in common, not of what was read."


def _purpose(record: RunRecord) -> str:
    task = record.result.task
    return _PURPOSE.get(task, task.replace("_", " ") or "its task")


def _compare_with_baseline(record: RunRecord, measure: str, value: float, name: str, reference: float) -> str:
    line, gain = BASELINES.get(name, name), value - reference
    if gain == 0:
        return f"is as good as {line} ({formats.share(reference)})"
    words = f"beat {line} ({formats.share(reference)}) by {formats.share(gain)}"
    if gain < 0:
        words = f"did not beat {line} ({formats.share(reference)}): it is {formats.share(-gain)} below"
    differences = _differences(record.path, measure, name)
    if differences is None:
        return words
    low, high = bootstrap_interval(differences)
    interval = f"95 % interval of the difference over other test examples: {low:+.3f} to {high:+.3f}".replace("-", "−")
    noise = "within noise, " if low <= 0 <= high else ""
    return f"{words} ({noise}{interval})"


def _differences(run: Path, measure: str, baseline: str) -> np.ndarray | None:
    """The measure of a run's only training less that of a baseline, on the same examples; ``None`` where these do not
    have it (`scores`)."""
    found = []
    for name in ("model", baseline):
        file = run / "predictions" / f"{name}.jsonl"
        if not file.is_file():
            return None
        with file.open(encoding="utf-8") as stream:
            lines = [json.loads(line) for line in stream]
        found.append(dict(zip((line["row"] for line in lines), scores(lines, measure), strict=True)))
    ours, theirs = found
    both = [(a, b) for row, a in ours.items() if a is not None and (b := theirs.get(row)) is not None]
    return np.array([a - b for a, b in both]) if both else None


def curve_table(record: RunRecord, name: str) -> Table | None:
    """The first metric by the number of training examples, of the model and of the baselines."""
    points = _points(record)
    if not points:
        return None
    measure = record.measures[0]
    lines = list(dict.fromkeys(key for point in points for key in point.baselines))
    columns = (
        Column("training examples", formats.integer),
        Column(f"{title(measure)} of {record.name}", formats.share_spread, parts=("mean", "deviation")),
        *(Column(BASELINES.get(line, line), formats.share) for line in lines),
    )
    rows = tuple(
        (point.examples, _measured(point, measure), *(_of_baseline(point, line, measure) for line in lines))
        for point in points
    )
    return Table(name, "By the number of training examples", columns, rows)


def curve_plot(record: RunRecord, name: str) -> Plot | None:
    """The same, drawn; the axis of examples is logarithmic."""
    points = _points(record)
    if len(points) < 2:
        return None
    from matplotlib.figure import Figure

    measure = record.measures[0]
    sizes = [float(point.examples) for point in points]
    lines = list(dict.fromkeys(key for point in points for key in point.baselines))
    height = 2.9
    with style():
        figure = Figure(figsize=(4.7, height), facecolor=CARD, layout="constrained")
        axes = figure.add_subplot(facecolor=CARD)
        measured = [_measured(point, measure) or (float("nan"), None) for point in points]
        deviations = [deviation or 0.0 for _, deviation in measured]
        axes.errorbar(sizes, [m for m, _ in measured], yerr=deviations, fmt="o-", color=PALETTE[0], markersize=4)
        ends = [End(measured[-1][0], record.name, PALETTE[0])]
        for index, line in enumerate(lines, start=1):
            values = [_of_baseline(point, line, measure) for point in points]
            known = [(size, value) for size, value in zip(sizes, values, strict=True) if value is not None]
            colour = PALETTE[index % len(PALETTE)]
            axes.plot([s for s, _ in known], [v for _, v in known], "--", color=colour, linewidth=1.0)
            ends.append(End(known[-1][1], BASELINES.get(line, line), colour, "--"))
        axes.set_xscale("log")
        axes.set_xticks(sizes, _tick_labels(sizes))
        axes.minorticks_off()
        axes.set_xlabel("training examples")
        axes.set_ylabel(title(measure))
        figure.draw_without_rendering()
        label_ends(axes, ends, height)
        caption = f"{title(measure)} by the number of training examples"
        return Plot(name, caption, render(figure, "svg"), render(figure, "png"))


def _tick_labels(sizes: Sequence[float]) -> list[str]:
    """What is written at each of the sizes, in order, on a logarithmic axis: nothing where the next has no room."""
    room = 0.13 * np.log(max(sizes) / min(sizes))
    words, beyond = [], np.inf
    for size in reversed(sizes):
        fits = beyond - np.log(size) > room
        words.append(f"{size:,.0f}" if fits else "")
        beyond = np.log(size) if fits else beyond
    return words[::-1]


def _points(record: RunRecord) -> list[CurvePoint]:
    return [point for point in record.result.curve if _measured(point, record.measures[0])]


def _measured(point: CurvePoint, measure: str) -> Spread | None:
    return mean_over_trainings(point.seeds or [point.test], measure)


def _of_baseline(point: CurvePoint, line: str, measure: str) -> float | None:
    return point.baselines[line].number(measure) if line in point.baselines else None
