"""How good each variation is in each task, and which of them the test can tell from the best."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean

import numpy as np

from homespun.errors import UserError
from homespun.report import formats, significance
from homespun.report.comparison_read import Comparison, Variation
from homespun.report.predictions import scores
from homespun.report.read import RunRecord
from homespun.report.tables import BASELINES
from homespun.report.tasks import repeated
from homespun.results import RunResult, mean_and_deviation

MEASURES = {
    "accuracy": "accuracy",
    "exact_match": "exact match",
    "f1": "F1",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "spearman": "Spearman correlation",
    "quadratic_kappa": "quadratic weighted kappa",
    "pearson": "Pearson correlation",
    "roc_auc": "ROC AUC",
    "macro_f1": "macro F1",
}
"""How measures are called: greater is better, and 1 the most. The first of a task's own ``measures`` decides; where a
result does not name them, the first of these that its tests have."""

BESIDE = ("macro_f1", "roc_auc")
"""Measures that are shown beside the one that decides: how right rare classes are, and how well texts are ordered."""


@dataclass(frozen=True)
class Rows:
    """What a measure is the mean of: its scores of single rows, the mean over trainings, by row number."""

    scores: Mapping[int, float]
    truths: Mapping[int, str]
    unit: int | None  # trainings, where a row has 1 or 0 in each; None: any numbers


@dataclass(frozen=True)
class Contender:
    """A variation or a baseline in one task."""

    name: str
    kind: str  # "model" or "baseline"
    beside: str  # the same for models and the baselines that were given the same examples
    values: Sequence[float]  # of the measure, one a training
    others: Mapping[str, Sequence[float]] = field(default_factory=dict)  # of `BESIDE`, one a training
    log_loss: Sequence[float] = ()
    rows: Rows | None = None  # None: no row has a score by the measure
    texts: float | None = None  # that it was measured on
    repeated: float = 0.0  # see `homespun.report.tasks.repeated`
    state: str = ""
    why: str | None = None

    @property
    def mean(self) -> float | None:
        """Of the measure; ``None`` where there is nothing to show."""
        return fmean(self.values) if self.values else None

    @property
    def spread(self) -> tuple[float, float | None] | None:
        """Mean and deviation over trainings."""
        return mean_and_deviation(self.values)


@dataclass(frozen=True)
class Verdict:
    """A contender against a higher one, or the best itself, for which all but ``alike`` is ``None``."""

    alike: bool  # the best, or not told from the higher one
    gap: float | None = None  # its measure less that of the higher one: on the same rows, or of the means
    interval: tuple[float, float] | None = None  # of the gap on the same rows; None: it is that of the means
    texts: float | None = None  # probabilities: over other texts,
    trainings: float | None = None  # over other trainings,
    adjusted: float | None = None  # and the larger of both, adjusted for all pairs

    def turned(self) -> Verdict:
        """That of the other of the two."""
        interval = None if self.interval is None else (-self.interval[1], -self.interval[0])
        return replace(self, gap=None if self.gap is None else -self.gap, interval=interval)


@dataclass(frozen=True)
class Task:
    """One task: contenders from the best down, those without a result last, and the verdict on each that has one."""

    name: str
    measure: str
    contenders: Sequence[Contender]
    between: Mapping[tuple[str, str], Verdict]  # of every pair that was compared: the lower against the higher
    troubles: Sequence[str]
    own: Mapping[str, Mapping[str, Verdict]]  # by model, each of its baselines against it; where not all have the same
    luck: bool  # whether something was trained more than once
    part: str  # whose texts it was measured on: "test", or "validation", which chose the checkpoints too

    @property
    def title(self) -> str:
        """The measure as people read it."""
        return MEASURES.get(self.measure, self.measure)

    @property
    def pairs(self) -> int:
        """How many were tested, for all of which probabilities are adjusted."""
        return sum(verdict.adjusted is not None for verdict in self.between.values())

    @cached_property
    def verdicts(self) -> dict[str, Verdict]:
        """Of each that has a result against the best."""
        best = self.best
        if best is None:
            return {}
        others = {lower: verdict for (higher, lower), verdict in self.between.items() if higher == best.name}
        return {best.name: Verdict(alike=True)} | others

    @property
    def best(self) -> Contender | None:
        """The one with the highest mean."""
        first = next(iter(self.contenders), None)
        return first if first is not None and first.values else None

    @property
    def trained(self) -> list[Contender]:
        """The variations that have a result, from the best down."""
        return [c for c in self.contenders if c.kind == "model" and c.values]

    @property
    def alike(self) -> list[Contender]:
        """The best and all that are not told from it, the best first."""
        return [c for c in self.contenders if c.name in self.verdicts and self.verdicts[c.name].alike]


@dataclass
class _Answers:
    sums: dict[int, float] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    truths: dict[int, str] = field(default_factory=dict)
    plain: bool = True


def judge(comparison: Comparison) -> list[Task]:
    """The tasks of a comparison, each with its verdicts."""
    return [_task(comparison, name) for name in comparison.tasks]


def _task(comparison: Comparison, name: str) -> Task:
    troubles: list[str] = []
    records = [record for variation in comparison.variations for record in variation.records(name)]
    measure = _measure(records)
    contenders = [_model(variation, name, measure, troubles) for variation in comparison.variations]
    measured = _measured(comparison, name, troubles)
    for one in measured:
        contenders += _baselines(comparison, name, measure, one, troubles)
    ranked = sorted(contenders, key=lambda c: -math.inf if c.mean is None else c.mean, reverse=True)
    between, own = _verdicts([c for c in ranked if c.values], troubles)
    luck = any(len(c.values) > 1 for c in ranked)
    results = [*(one.result for one in measured), *(record.result for record in records)]
    part = "validation" if any(result.measured_on == "validation" for result in results) else "test"
    return Task(name, measure, ranked, between, list(dict.fromkeys(troubles)), own, luck, part)


def _measure(records: Sequence[RunRecord]) -> str:
    named = [key for record in records for key in record.result.measures[:1]]
    tests = [test for record in records for test in record.result.trainings()]
    return next((key for key in [*named, *MEASURES] if any(t.number(key) is not None for t in tests)), "accuracy")


def _texts(record: RunRecord) -> float | None:
    """On how many examples a run was measured: with folds, each was in one of them."""
    rows = [test.rows or 0.0 for test in record.result.trainings()]
    if record.result.measured_on == "folds":
        return sum(rows) / (formats.number(record.config.get("seeds")) or 1.0) or None
    return rows[0] or None


def _values(records: Sequence[RunRecord], measure: str) -> list[float]:
    """One a training: of a trial the mean over its folds, or, where there is one trial, each seed within it."""
    each = [[n for test in record.result.trainings() if (n := test.number(measure)) is not None] for record in records]
    each = [values for values in each if values]
    if len(each) == 1 and records[0].result.measured_on != "folds":
        return each[0]
    return [fmean(values) for values in each]


def _model(variation: Variation, task: str, measure: str, troubles: list[str]) -> Contender:
    records = variation.records(task)
    return Contender(
        name=variation.name,
        kind="model",
        beside=variation.beside(task) or task,
        values=_values(records, measure),
        others={other: _values(records, other) for other in BESIDE if other != measure},
        log_loss=_values(records, "log_loss"),
        rows=_rows([record.path for record in records], "model", measure, f"{variation.name}, {task}", troubles),
        texts=next((texts for record in records if (texts := _texts(record))), None),
        repeated=repeated([test for record in records for test in record.result.trainings()]),
        state=variation.state,
        why=variation.why,
    )


@dataclass(frozen=True)
class _Measured:
    """Baselines that were measured once for some variations."""

    name: str  # of their folder
    of: str  # what their names end in, where other variations have others
    variations: Sequence[Variation]
    result: RunResult  # empty where there is none, or it is damaged


def _measured(comparison: Comparison, task: str, troubles: list[str]) -> list[_Measured]:
    """The comparison's own baselines of a task: one set of them, or one for all variations that have the same."""
    sharing: dict[str, list[Variation]] = {}
    for variation in comparison.variations:
        if (name := variation.beside(task)) is not None:
            sharing.setdefault(name, []).append(variation)
    return [
        _Measured(name, of, variations, _result(comparison, name, f"baselines of {task}{of}", troubles))
        for name, variations in (sharing or {task: []}).items()
        for of in [f" of {', '.join(v.name for v in variations)}" if len(sharing) > 1 else ""]
    ]


def _result(comparison: Comparison, name: str, who: str, troubles: list[str]) -> RunResult:
    if name not in comparison.baselines:
        return RunResult()
    try:
        result = RunResult.read(comparison.baselines[name] / "result.json")
    except UserError as error:
        troubles.append(f"{who}: {str(error).replace(str(comparison.path), '').lstrip('/')}.")
        return RunResult()
    why = comparison.baselines[name] / "why.txt"
    if not result.baselines and why.is_file():
        troubles.append(f"The {who} could not be measured: {why.read_text(encoding='utf-8', errors='replace')}.")
    return result


def _baselines(
    comparison: Comparison, task: str, measure: str, measured: _Measured, troubles: list[str]
) -> Iterator[Contender]:
    """Those that were measured for some variations, or of the first of their trials that has any."""
    records = [record for variation in measured.variations for record in variation.records(task)]
    found = [(record.path, record.result.baselines) for record in records]
    if measured.result.baselines:
        found.insert(0, (comparison.baselines[measured.name], measured.result.baselines))
    path, metrics = next(((path, metrics) for path, metrics in found if metrics), (comparison.path, {}))
    texts = next((texts for record in records if (texts := _texts(record))), None)
    for key, values in metrics.items():
        title = f"{BASELINES.get(key, key)}{measured.of}"
        known = {
            what: [mean[0]] if (mean := values.spread(what)) is not None else []
            for what in dict.fromkeys([measure, *BESIDE])
        }
        rows = _rows([path], key, measure, f"{title}, {task}", troubles)
        yield Contender(
            name=title,
            kind="baseline",
            beside=measured.name,
            values=known.pop(measure),
            others=known,
            rows=rows,
            texts=texts,
            state="baseline",
        )


def _rows(runs: Sequence[Path], name: str, measure: str, who: str, troubles: list[str]) -> Rows | None:
    """What was said of single rows by ``predictions/NAME.jsonl`` of the runs, and of their seeds and folds."""
    own = f"predictions/{name}.jsonl"
    files = [file for run in runs for file in (run / own, *_largest(sorted(run.glob(f"trials/*/{own}"))))]
    answers = _Answers()
    try:
        for file in files:
            if file.is_file():
                _read_answers(file, measure, answers)
    except UserError as error:
        troubles.append(f"The predictions of {who} are left out: {error}.")
        return None
    if not answers.counts:
        return None
    most = max(answers.counts.values())
    kept = [row for row, count in answers.counts.items() if count == most]
    if len(kept) < len(answers.counts):
        troubles.append(f"Of {who}, {len(answers.counts) - len(kept)} rows were not predicted by every training.")
    means = {row: answers.sums[row] / most for row in kept}
    return Rows(means, {row: answers.truths[row] for row in kept}, most if answers.plain else None)


def _largest(files: Sequence[Path]) -> list[Path]:
    """Those of trainings on the most examples, where a run has several numbers of them: ``examples-100-seed-0``."""

    def size(file: Path) -> int:
        found = re.search(r"examples-(\d+)", file.parents[1].name)
        return int(found[1]) if found else 0

    most = max(map(size, files), default=0)
    return [file for file in files if size(file) == most]


def _read_answers(file: Path, measure: str, answers: _Answers) -> None:
    rows: list[int] = []
    said: list[dict[str, object]] = []
    with file.open(encoding="utf-8", errors="replace") as lines:
        for at, line in enumerate(lines, start=1):
            try:
                answer = json.loads(line)
                row, needed = int(answer["row"]), {name: answer[name] for name in ("truth", "predicted")}
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise UserError(f"line {at} of {file.name} has no row, truth and predicted in JSON") from error
            rows.append(row)
            said.append(needed | {name: answer[name] for name in (measure, "score") if name in answer})
    for row, answer, score in zip(rows, said, scores(said, measure), strict=True):
        if score is None:
            continue
        answers.plain &= score in (0.0, 1.0)
        answers.sums[row] = answers.sums.get(row, 0.0) + score
        answers.counts[row] = answers.counts.get(row, 0) + 1
        told = json.dumps(answer["truth"], sort_keys=True)
        if answers.truths.setdefault(row, told) != told:
            raise UserError(f"row {row} has another truth in one training than in another")


def _differences(first: Contender, second: Contender, troubles: list[str]) -> tuple[np.ndarray, float | None] | None:
    """(rows,) scores of the first less those of the second on the rows of both, and what they are multiples of."""
    if first.rows is None or second.rows is None:
        return None
    shared = sorted(first.rows.scores.keys() & second.rows.scores.keys())
    if not shared or any(first.rows.truths[row] != second.rows.truths[row] for row in shared):
        troubles.append(
            f"{first.name} and {second.name} were not tested on the same rows, and are not compared on them."
        )
        return None
    if len(shared) < max(len(first.rows.scores), len(second.rows.scores)):
        troubles.append(f"{first.name} and {second.name} are compared on the {len(shared):,} rows that both have.")
    units = first.rows.unit, second.rows.unit
    unit = None if units[0] is None or units[1] is None else 1 / math.lcm(units[0], units[1])
    return np.array([first.rows.scores[row] - second.rows.scores[row] for row in shared]), unit


def _verdicts(
    ranked: Sequence[Contender], troubles: list[str]
) -> tuple[dict[tuple[str, str], Verdict], dict[str, dict[str, Verdict]]]:
    """Every pair, the lower against the higher, with an interval against the best alone; and where not all have the
    same baselines, every model against its own (`Task.own`).

    Which one is the best is known from the same numbers, so that the pairs with it are chosen among all pairs, and the
    probabilities are adjusted for all of them: with those against the best alone, ten equal models would be told apart
    three times as often as claimed.
    """
    several = len({c.beside for c in ranked}) > 1
    spread = significance.pooled_variance([c.values for c in ranked if c.kind == "model"])
    between: dict[tuple[str, str], Verdict] = {}
    own_pairs: list[tuple[Contender, Contender]] = []
    tested: dict[tuple[str, str], float] = {}
    for first, second in itertools.combinations(ranked, 2):
        paired = _differences(first, second, troubles)
        texts = None if paired is None else significance.permutation_test(*paired)
        certain = first.kind == "baseline", second.kind == "baseline"
        luck = (
            None if all(certain) else significance.seed_test(first.values, second.values, spread, deterministic=certain)
        )
        pair = first.name, second.name
        if (p := significance.combine(texts, luck)) is not None:
            tested[pair] = p
        is_own = several and first.kind != second.kind and first.beside == second.beside
        own_pairs += [(first, second)] * is_own
        gap, interval = fmean(second.values) - fmean(first.values), None
        if paired is not None:
            gap = -float(paired[0].mean())
            if is_own or first is ranked[0]:
                low, high = significance.bootstrap_interval(paired[0])
                interval = -high, -low
        between[pair] = Verdict(True, gap, interval, texts, luck)
    for pair, p in zip(tested, significance.holm(list(tested.values())), strict=True):
        between[pair] = replace(between[pair], alike=p > significance.LEVEL, adjusted=p)
    own: dict[str, dict[str, Verdict]] = {}
    for first, second in own_pairs:
        found = between[first.name, second.name]
        if first.kind == "model":
            own.setdefault(first.name, {})[second.name] = found
        else:
            own.setdefault(second.name, {})[first.name] = found.turned()
    return between, own
