"""Values of the sentences at the top of a report: results, baselines, leakage, data. The sentences are in templates."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from homespun.report import formats
from homespun.report.document import fill
from homespun.report.formats import baseline_title, metric_title
from homespun.report.records import (
    RunRecord,
    Tree,
    as_tree,
    constant_output,
    final_losses,
    invented_numbers,
    pretraining_quantity,
    read_scores,
    undefined,
)
from homespun.report.significance import bootstrap_interval, difference_interval, wilson_interval
from homespun.results import Metrics, mean_over_trainings

_MAX_RATIO = 0.97  # share of the unigram baseline: the topic of a text alone gives less
_MIN_RECALL = 0.01  # share of the replaced tokens
_TOKENS = {"mlm": "masked tokens", "generator": "tokens of the generator", "causal": "the next token"}


def summary(records: Sequence[RunRecord]) -> list[str]:
    """Summarise the best fine-tuned model, pretraining runs, each fine-tuned model and each use of word vectors."""
    pretrained = [record for record in records if not record.tests() and not record.result.baselines]
    paragraphs = _ranking(records) + ([_pretraining(pretrained)] if pretrained else [])
    paragraphs += [_finetuning(record) for record in records if record not in pretrained]
    vectors = [(record.name, record.result.vectors) for record in records if record.result.vectors]
    return [*paragraphs, *(fill("summary", "initialization", name=name, vectors=v) for name, v in vectors)]


def in_context(result: Tree) -> str:
    """Describe a result of `homespun.commands.few_shot`."""
    return fill("summary", "in_context", name=result["run"], rows=result["rows"])


def exports(records: Sequence[RunRecord]) -> list[str]:
    """Describe exports to transformers, or the reasons why there is none."""
    found = [(record.name, record.result.export) for record in records]
    return [fill("summary", "export", name=name, export=export) for name, export in found if export is not None]


def warnings(records: Sequence[RunRecord]) -> list[str]:
    """Return a sentence for every run that did not end normally, or has trainings without its main metric."""
    ended = [f"{record.name} {record.warning}." for record in records if record.warning]
    partial = [
        undefined(name, tests, record.measures[0])
        for record in records
        for name, tests in (
            [(f"{record.name} with {point.examples:,} training examples", point.seeds) for point in record.result.curve]
            or [(record.name, record.tests())]
        )
    ]
    return ended + [sentence for sentence in partial if sentence is not None]


def leakage(records: Sequence[RunRecord]) -> list[str]:
    """Return a sentence for every run with near-duplicates of its test examples in its training set."""
    found = [(record.name, record.result.overlap) for record in records]
    return [fill("summary", "leakage", name=n, found=one) for n, one in found if one and one.near and one.rows]


def _pretraining(records: Sequence[RunRecord]) -> str:
    scores = [(r.name, loss) for r in records if (loss := final_losses(r)[1].get("loss")) is not None]
    # losses of other objectives or texts are other quantities, and budgets must be equal
    ranked = len(scores) > 1 and len({(pretraining_quantity(record), _budget(record)) for record in records}) == 1
    if ranked:
        scores.insert(0, scores.pop(scores.index(min(scores, key=lambda score: score[1]))))
    best = next((r for r in records if scores and r.name == scores[0][0] and not r.warning), None)
    if not ranked and len(records) > 1:
        best = None
    return fill(
        "summary",
        "pretraining",
        scores=scores,
        ranked=ranked,
        baselines=compare_with_unigram_baseline({record.name: [record] for record in records}),
        names=[record.name for record in records],
        best=best,
        learned=best and all(loss <= _MAX_RATIO * level for _, loss, level in _against_unigram([best])),
        where=_circumstances(records),
    )


def compare_with_unigram_baseline(runs: Mapping[str, Sequence[RunRecord]]) -> list[str]:
    """Return a paragraph for each unigram baseline, with the runs that beat it and those that do not.

    A further paragraph is on ELECTRA discriminators that predict only the rate of replaced tokens. The losses of the
    trainings of a name are averaged.
    """
    losses: dict[tuple[str, str], list[tuple[str, float, bool]]] = {}
    for name, records in runs.items():
        for tokens, loss, level in _against_unigram(records):
            losses.setdefault((tokens, formats.loss(level)), []).append((name, loss, loss <= _MAX_RATIO * level))
    paragraphs = []
    for (tokens, written), models in losses.items():
        better, worse = ([(name, loss) for name, loss, beats in models if beats is side] for side in (True, False))
        values = {"tokens": tokens, "level": written, "better": better, "worse": worse}
        paragraphs.append(fill("summary", "unigram_baseline", **values))
    if blind := [name for name, records in runs.items() if records and all(_finds_none(r) for r in records)]:
        paragraphs.append(fill("summary", "blind_discriminator", names=blind))
    return paragraphs


def _against_unigram(records: Sequence[RunRecord]) -> list[tuple[str, float, float]]:
    """Return the mean held-out loss and the unigram baseline by kind of predicted tokens."""
    found = []
    for term, tokens in _TOKENS.items():
        known = [(final_losses(r)[1].get(term), r.result.unigram_baseline.get(term)) for r in records]
        pairs = [(loss, level) for loss, level in known if loss is not None and level is not None]
        if pairs:
            loss, level = (fmean(values) for values in zip(*pairs, strict=True))
            found.append((tokens, loss, level))
    return found


def _finds_none(record: RunRecord) -> bool:
    losses = final_losses(record)[1]
    loss, right, found = (losses.get(term) for term in ("discriminator", "discriminator_accuracy", "replaced_recall"))
    if loss is None or right is None or found is None or found >= _MIN_RECALL or not 0.0 < right < 1.0:
        return False
    # if every token is called an original, the error is the share of replaced ones
    return loss >= -_MAX_RATIO * (right * math.log(right) + (1.0 - right) * math.log(1.0 - right))


def _ranking(records: Sequence[RunRecord]) -> list[str]:
    """Return a sentence for each group of fine-tuned models with the same task, data, metric, test set and budget."""
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        if record.tests() and mean_over_trainings(record.tests(), record.measures[0]):
            result, data = record.result, record.config.get("data")
            key = result.task, data, record.measures[0], record.test_rows(), result.measured_on, _budget(record)
            groups.setdefault(json.dumps(key, sort_keys=True, default=str), []).append(record)
    sentences = []
    for group in (group for group in groups.values() if len(group) > 1):
        metric, examples = group[0].measures[0], group[0].test_rows()
        scores = [(r.name, mean[0]) for r in group if (mean := mean_over_trainings(r.tests(), metric))]
        best, *others = sorted(scores, key=lambda score: -score[1])
        interval = None
        if group[0].names_classes and examples:
            interval = difference_interval(best[1], others[0][1], examples)
        write = "percent" if group[0].names_classes else "share"
        part = "validation" if group[0].result.measured_on == "validation" else "test"
        values = {"metric": metric_title(metric), "write": write, "scores": [best, *others], "interval": interval}
        where = {"examples": examples, "part": part, "budget": _budget(group[0])}
        sentences.append(fill("summary", "ranking", **where, **values))
    return sentences


def _finetuning(record: RunRecord) -> str:
    tests, examples, result = record.tests(), record.test_rows(), record.result
    main, *others = record.shown_measures
    score = mean_over_trainings(tests, main)
    differences = []
    for key, baseline in sorted(result.baselines.items(), key=lambda item: item[0] == "majority"):
        name = "the majority class" if key == "majority" else baseline_title(key)
        points = record.names_classes
        interval = None if points else _paired_interval(record.path, main, key)
        differences.append(baseline_difference(tests, baseline, name, examples, main, interval, points=points))
    return fill(
        "summary",
        "finetuning",
        run=record,
        task=result.task_description or result.task.replace("_", " "),
        classes=len(tests[0].per_class) if record.names_classes and tests else 0,
        measure=metric_title(main),
        score=score and score[0],
        examples=examples,
        interval=wilson_interval(score[0], examples) if record.names_classes and score and examples else None,
        further=[(metric_title(other), mean[0]) for other in others if (mean := mean_over_trainings(tests, other))],
        trainings=len(tests),
        constant=constant_output(tests),
        invented=invented_numbers(tests),
        baselines=[difference for difference in differences if difference is not None],
        counts=[(title, count) for key, title in result.count_titles.items() if (count := result.number(key))],
        where=_circumstances([record]),
    )


def baseline_difference(
    tests: Sequence[Metrics],
    baseline: Metrics,
    name: str,
    examples: float | None,
    measure: str = "accuracy",
    interval: tuple[float, float] | None = None,
    *,
    points: bool = True,
) -> dict[str, object] | None:
    """Compute the difference of trainings from a baseline for its template; None without such a metric.

    With ``points`` the measure is the accuracy of a classifier, whose differences are in percentage points; then the
    ``interval`` of the difference is computed here.
    """
    found, other = mean_over_trainings(tests, measure), mean_over_trainings([baseline], measure)
    if found is None or other is None:
        return None
    if points:
        interval = None if examples is None else difference_interval(found[0], other[0], examples)
    return {
        "name": name,
        "reference": other[0],
        "points": points,
        "gain": found[0] - other[0],
        "interval": interval,
        "significant": interval is not None and (interval[0] > 0 or interval[1] < 0),
        "examples": examples,
        "below": sum((test.number(measure) or 0.0) <= other[0] for test in tests),
        "trainings": len(tests),
    }


def _paired_interval(run: Path, measure: str, baseline: str) -> tuple[float, float] | None:
    """Compute the 95 % interval of the difference between a run's only training and a baseline.

    None if the examples have no score.
    """
    found = []
    for name in ("model", baseline):
        file = run / "predictions" / f"{name}.jsonl"
        if not file.is_file():
            return None
        found.append({row: score for row, _, score in read_scores(file, measure) if score is not None})
    ours, theirs = found
    both = [score - theirs[row] for row, score in ours.items() if row in theirs]
    return bootstrap_interval(np.array(both)) if both else None


def _circumstances(records: Sequence[RunRecord]) -> dict[str, object]:
    """Return data and budget, as far as they are known and equal for all."""
    data = {_data(record) for record in records}
    text, size = data.pop() if len(data) == 1 else (None, None)
    budgets = sorted({_budget(record) or "" for record in records})
    return {"data": text, "size": size, "budgets": budgets, "several": len(records) > 1}


def _data(record: RunRecord) -> tuple[str | None, tuple[float, float | None] | None]:
    data = as_tree(record.config.get("data"))
    path = data.get("corpus") or data.get("train")
    if not path or not isinstance(path, (str, list)):
        return None, None
    corpus = record.result.corpus
    size = None if corpus is None or corpus.documents is None else (corpus.documents, corpus.tokens)
    return formats.text(path), size


def _budget(record: RunRecord) -> str | None:
    return describe_budget(as_tree(as_tree(record.config.get("train")).get("budget")))


def describe_budget(budget: Tree) -> str | None:
    """Describe the limits of a ``train.budget`` except its memory: ``2 h 00 m and 500 steps``; None without any."""
    seconds = "of processor time" if budget.get("clock") == "processor" else ""
    written = {"time": formats.duration, "tokens": formats.count, "steps": formats.integer, "epochs": formats.text}
    parts = [
        f"{write(value)} {seconds if key == 'time' else key if value != 1 else key[:-1]}".rstrip()
        for key, write in written.items()
        if (value := formats.number(budget.get(key))) is not None
    ]
    return " and ".join(parts) or None
