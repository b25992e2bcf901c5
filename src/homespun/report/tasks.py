"""Sentences about fine-tuned models that do not classify."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from homespun.report import formats
from homespun.report.predictions import read_scores
from homespun.report.records import RunRecord
from homespun.report.significance import bootstrap_interval
from homespun.report.titles import baseline_title, metric_title
from homespun.results import Metrics, mean_over_trainings

_REPEATED = 0.1  # share of the texts that are one, above which it is said
_PURPOSE = {
    "text_to_text": "write texts of texts",
    "tagging": "tag words",
    "span_answers": "find answers in texts",
    "regression": "tell numbers",
    "ratings": "rate",
    "sentence_labels": "label sentences in their documents",
}


def summarize(record: RunRecord, circumstances: str) -> list[str]:
    """What was learned, how good it is, and whether it beat each baseline."""
    tests, measures, rows = record.tests(), record.measures, record.test_rows()
    parts = [f"{record.name} was fine-tuned to {_purpose(record)}{circumstances}."]
    main, *rest = (mean_over_trainings(tests, measure) for measure in measures)
    if main is None:
        return [*parts, "It was not tested."]
    further_metrics = [
        f"{metric_title(m)} {formats.share(v[0])}" for m, v in zip(measures[1:], rest, strict=True) if v is not None
    ]
    on = "the test examples" if rows is None else f"{formats.integer(rows)} test examples"
    further = f" ({', '.join(further_metrics)})" if further_metrics else ""
    several = f", the mean of {len(tests)} trainings" if len(tests) > 1 else ""
    parts.append(f"Its {metric_title(measures[0])} on {on} is {formats.share(main[0])}{further}{several}.")
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
    line, gain = baseline_title(name), value - reference
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
        found.append({row: score for row, _, score in read_scores(file, measure) if score is not None})
    ours, theirs = found
    both = [score - theirs[row] for row, score in ours.items() if row in theirs]
    return np.array(both) if both else None
