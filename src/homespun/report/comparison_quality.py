"""Evaluation of each task: metrics of variants and baselines, and significance tests between them."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np

from homespun.comparison_results import SignificanceTest
from homespun.errors import UserError, quantity
from homespun.report import significance
from homespun.report.comparison_records import Comparison, Variant
from homespun.report.formats import FURTHER_METRICS, MAIN_METRICS, baseline_title, metric_title
from homespun.report.records import RunRecord, constant_output, read_scores, undefined
from homespun.results import RunResult, mean_and_deviation


@dataclass(frozen=True)
class RowScores:
    """Scores of test examples by row number, means over trainings."""

    scores: Mapping[int, float]
    truths: Mapping[int, str]
    unit: int | None  # trainings, where a row has 1 or 0 in each; None: any numbers


@dataclass(frozen=True)
class Candidate:
    """Variant or baseline in one task."""

    name: str
    kind: Literal["model", "baseline"]
    baseline_set: str  # equal for models and baselines with the same examples
    values: Sequence[float]  # one value of the measure for each training
    others: Mapping[str, Sequence[float]] = field(default_factory=dict)  # `FURTHER_METRICS`, a value each training
    log_loss: Sequence[float] = ()
    rows: RowScores | None = None  # None: no row has a score by the measure
    examples: float | None = None  # number of test examples
    repeated: float = 0.0  # share of equal outputs: `homespun.report.records.constant_output`
    state: str = ""
    why: str | None = None

    @property
    def mean(self) -> float | None:
        """Mean of the measure; None without a result."""
        return fmean(self.values) if self.values else None

    @property
    def spread(self) -> tuple[float, float | None] | None:
        """Mean and standard deviation over trainings."""
        return mean_and_deviation(self.values)


@dataclass(frozen=True)
class TaskComparison:
    """Candidates of one task, the best first and those without a result last, and the tests between them."""

    name: str
    measure: str
    candidates: Sequence[Candidate]
    between: Mapping[tuple[str, str], SignificanceTest]  # key: the lower and the higher model
    warnings: Sequence[str]
    own: Mapping[str, Mapping[str, SignificanceTest]]  # key: a model; tests of its baselines against it
    seed_variance: bool  # whether any model was trained more than once
    part: str  # "test", or "validation", which also chose the checkpoints

    @property
    def title(self) -> str:
        """Title of the measure."""
        return metric_title(self.measure)

    @property
    def pairs(self) -> int:
        """Number of tested pairs, by which p-values are corrected."""
        return sum(test.adjusted is not None for test in self.between.values())

    @cached_property
    def against_best(self) -> dict[str, SignificanceTest]:
        """Test of each candidate with a result against the best candidate."""
        best = self.best
        if best is None:
            return {}
        others = {lower: test for (higher, lower), test in self.between.items() if higher == best.name}
        return {best.name: SignificanceTest(not_worse=True)} | others

    def test(self, candidate: Candidate) -> SignificanceTest:
        """Return the test of a candidate against the best; an empty test without a result."""
        return self.against_best.get(candidate.name, SignificanceTest())

    @property
    def best(self) -> Candidate | None:
        """Candidate with the highest mean."""
        first = next(iter(self.candidates), None)
        return first if first is not None and first.values else None

    @property
    def trained(self) -> list[Candidate]:
        """Variants with a result, the best first."""
        return [c for c in self.candidates if c.kind == "model" and c.values]

    @property
    def among_best(self) -> list[Candidate]:
        """The best candidate and all that are not significantly worse, the best first."""
        return [candidate for candidate in self.candidates if self.test(candidate).not_worse]


Pair = tuple[str, str]
Error = tuple[float, int]  # standard error of a difference, and its degrees of freedom


def evaluate(
    comparison: Comparison, planned: Mapping[str, Collection[frozenset[str]]] | None = None
) -> list[TaskComparison]:
    """Evaluate each task of a comparison.

    Args:
        comparison: its trials and baselines.
        planned: by task, the pairs that were chosen for a test before the comparison ran. Only these are tested, and
            p-values are corrected for their number, also where some have no result. None: all pairs.
    """
    return [_task(comparison, name, None if planned is None else planned.get(name, ())) for name in comparison.tasks]


def _task(comparison: Comparison, name: str, planned: Collection[frozenset[str]] | None) -> TaskComparison:
    warnings: list[str] = []
    records = [record for variant in comparison.variants for record in variant.records(name)]
    listed = [record.result.measures for record in records if record.result.measures]
    # variants with other objectives, such as ratings as numbers, are compared by a metric that all have
    named = sorted([first for first, *_ in listed], key=lambda key: not all(key in measures for measures in listed))
    tests = [test for record in records for test in record.result.trainings()]
    known = (key for key in [*named, *MAIN_METRICS] if any(test.number(key) is not None for test in tests))
    measure = next(known, "accuracy")
    candidates = [_model(variant, name, measure, warnings) for variant in comparison.variants]
    sets = _baseline_sets(comparison, name, warnings)
    for one in sets:
        candidates += _baselines(comparison, name, measure, one, warnings)
    ranked = sorted(candidates, key=lambda c: -math.inf if c.mean is None else c.mean, reverse=True)
    between, own = _test_pairs([c for c in ranked if c.values], warnings, planned)
    seed_variance = any(len(c.values) > 1 for c in ranked)
    results = [*(one.result for one in sets), *(record.result for record in records)]
    part = "validation" if any(result.measured_on == "validation" for result in results) else "test"
    return TaskComparison(name, measure, ranked, between, list(dict.fromkeys(warnings)), own, seed_variance, part)


def _values(records: Sequence[RunRecord], measure: str) -> list[float]:
    """Return the metric of each training: the mean over folds of each trial, or each seed of a single trial."""
    each = [[n for test in record.result.trainings() if (n := test.number(measure)) is not None] for record in records]
    each = [values for values in each if values]
    if len(each) == 1 and records[0].result.measured_on != "folds":
        return each[0]
    return [fmean(values) for values in each]


def _model(variant: Variant, task: str, measure: str, warnings: list[str]) -> Candidate:
    records = variant.records(task)
    tests = [test for record in records for test in record.result.trainings()]
    if (sentence := undefined(f"{variant.name} in {task}", tests, measure)) is not None:
        warnings.append(sentence)
    return Candidate(
        name=variant.name,
        kind="model",
        baseline_set=variant.baseline_set(task) or task,
        values=_values(records, measure),
        others={other: _values(records, other) for other in FURTHER_METRICS if other != measure},
        log_loss=_values(records, "log_loss"),
        rows=_rows([record.path for record in records], "model", measure, f"{variant.name}, {task}", warnings),
        examples=_examples(records),
        repeated=constant_output(tests),
        state=variant.state,
        why=variant.why,
    )


def _examples(records: Sequence[RunRecord]) -> float | None:
    """Return the number of test examples."""
    return next((examples for record in records if (examples := record.test_rows())), None)


@dataclass(frozen=True)
class _BaselineSet:
    """Baselines that were measured once for several variants."""

    name: str  # name of the folder
    of: str  # suffix of the baseline names, if variants have different baselines
    variants: Sequence[Variant]
    result: RunResult  # empty if missing or damaged


def _baseline_sets(comparison: Comparison, task: str, warnings: list[str]) -> list[_BaselineSet]:
    """Read the baselines of a task in the folder of the comparison, one set for all variants that share it."""
    sharing: dict[str, list[Variant]] = {}
    for variant in comparison.variants:
        if (name := variant.baseline_set(task)) is not None:
            sharing.setdefault(name, []).append(variant)
    sets = []
    for name, variants in (sharing or {task: []}).items():
        of = f" of {', '.join(v.name for v in variants)}" if len(sharing) > 1 else ""
        result = _result(comparison, name, f"baselines of {task}{of}", warnings)
        sets.append(_BaselineSet(name, of, variants, result))
    return sets


def _result(comparison: Comparison, name: str, title: str, warnings: list[str]) -> RunResult:
    if name not in comparison.baselines:
        return RunResult()
    try:
        result = RunResult.read(comparison.baselines[name] / "result.json")
    except UserError as error:
        warnings.append(f"{title}: {str(error).replace(str(comparison.path), '').lstrip('/')}.")
        return RunResult()
    why = comparison.baselines[name] / "why.txt"
    if not result.baselines and why.is_file():
        warnings.append(f"The {title} could not be measured: {why.read_text(encoding='utf-8', errors='replace')}.")
    return result


def _baselines(
    comparison: Comparison, task: str, measure: str, own: _BaselineSet, warnings: list[str]
) -> Iterator[Candidate]:
    """Yield the baselines of the comparison, else those of the first trial with baselines."""
    records = [record for variant in own.variants for record in variant.records(task)]
    found = [(record.path, record.result.baselines) for record in records]
    if own.result.baselines:
        found.insert(0, (comparison.baselines[own.name], own.result.baselines))
    path, metrics = next(((path, metrics) for path, metrics in found if metrics), (comparison.path, {}))
    variants = {variant.name for variant in comparison.variants}
    for key, values in metrics.items():
        title = f"{baseline_title(key)}{own.of}"
        title += " (baseline)" if title in variants else ""  # tests and figures find a candidate by its name
        means = {what: values.spread(what) for what in (measure, *FURTHER_METRICS)}
        known = {what: [] if mean is None else [mean[0]] for what, mean in means.items()}
        yield Candidate(
            name=title,
            kind="baseline",
            baseline_set=own.name,
            values=known.pop(measure),
            others=known,
            rows=_rows([path], key, measure, f"{title}, {task}", warnings),
            examples=_examples(records),
            state="baseline",
        )


def _rows(runs: Sequence[Path], name: str, measure: str, title: str, warnings: list[str]) -> RowScores | None:
    """Read scores from ``predictions/NAME.jsonl`` of the runs, and of their seeds and folds."""
    own = f"predictions/{name}.jsonl"
    files = [file for run in runs for file in (run / own, *_largest(sorted(run.glob(f"trials/*/{own}"))))]
    sums: dict[int, float] = {}
    counts: Counter[int] = Counter()
    truths: dict[int, str] = {}
    binary = True
    try:
        for file in (file for file in files if file.is_file()):
            for row, truth, score in read_scores(file, measure):
                if score is not None:
                    sums[row] = sums.get(row, 0.0) + score
                    counts[row] += 1
                    binary &= score in (0.0, 1.0)
                    if truths.setdefault(row, truth) != truth:
                        raise UserError(f"row {row} has different truths in two trainings")
    except UserError as error:
        warnings.append(f"The predictions of {title} are left out: {error}.")
        return None
    if not counts:
        return None
    most = max(counts.values())
    kept = [row for row, count in counts.items() if count == most]
    if len(kept) < len(counts):
        warnings.append(f"Of {title}, {len(kept)} of {len(counts)} rows were predicted by every training.")
    means = {row: sums[row] / most for row in kept}
    return RowScores(means, {row: truths[row] for row in kept}, most if binary else None)


def _largest(files: Sequence[Path]) -> list[Path]:
    """Select files of trainings on the most examples, if a run has several numbers: ``examples-100-seed-0``."""
    sizes = [re.search(r"examples-(\d+)", file.parents[1].name) for file in files]
    numbers = [int(size[1]) if size else 0 for size in sizes]
    return [file for file, number in zip(files, numbers, strict=True) if number == max(numbers)]


def _differences(first: Candidate, second: Candidate, warnings: list[str]) -> tuple[np.ndarray, float | None] | None:
    """Return (rows,) score differences of first and second on common rows, and the unit of which they are multiples."""
    if first.rows is None or second.rows is None:
        return None
    shared = sorted(first.rows.scores.keys() & second.rows.scores.keys())
    if not shared or any(first.rows.truths[row] != second.rows.truths[row] for row in shared):
        warnings.append(f"{first.name} and {second.name} were tested on different rows; their rows are not compared.")
        return None
    if len(shared) < max(len(first.rows.scores), len(second.rows.scores)):
        warnings.append(
            f"{first.name} and {second.name} are compared on the {quantity(len(shared), 'row')} that both have."
        )
    units = first.rows.unit, second.rows.unit
    unit = None if units[0] is None or units[1] is None else 1 / math.lcm(units[0], units[1])
    return np.array([first.rows.scores[row] - second.rows.scores[row] for row in shared]), unit


def _test_pairs(
    ranked: Sequence[Candidate], warnings: list[str], planned: Collection[frozenset[str]] | None
) -> tuple[dict[Pair, SignificanceTest], dict[str, dict[str, SignificanceTest]]]:
    """Test every pair, the lower against the higher; with different baselines also every model against its own.

    Intervals are of pairs with the best, and of models with their own baselines.
    """
    several = len({c.baseline_set for c in ranked}) > 1
    spread = significance.pooled_variance([c.values for c in ranked if c.kind == "model"])
    tests: dict[Pair, tuple[SignificanceTest, list[Error]]] = {}
    own_pairs: list[tuple[Candidate, Candidate]] = []
    for first, second in itertools.combinations(ranked, 2):
        if planned is not None and frozenset((first.name, second.name)) not in planned:
            continue
        is_own = several and first.kind != second.kind and first.baseline_set == second.baseline_set
        own_pairs += [(first, second)] * is_own
        errors: list[Error] = []
        gap, interval, texts = fmean(second.values) - fmean(first.values), None, None
        if (paired := _differences(first, second, warnings)) is not None:
            scores, unit = paired
            gap, texts = -float(scores.mean()), significance.permutation_test(scores, unit)
            errors += [significance.mean_error(scores)] if len(scores) > 1 else []
            if is_own or first is ranked[0]:
                low, high = significance.bootstrap_interval(scores)
                interval = -high, -low
        fixed, seeds = (first.kind == "baseline", second.kind == "baseline"), None
        if spread[1] and not all(fixed):
            seeds = significance.seed_test(first.values, second.values, spread, deterministic=fixed)
            error = significance.seed_error(first.values, second.values, spread[0], deterministic=fixed)
            errors.append((error, spread[1]))
        test = SignificanceTest(not_worse=True, gap=gap, interval=interval, texts=texts, trainings=seeds)
        tests[first.name, second.name] = test, errors
    between = _corrected(tests, planned)
    own: dict[str, dict[str, SignificanceTest]] = {}
    for first, second in own_pairs:
        found = between[first.name, second.name]
        if first.kind == "model":
            own.setdefault(first.name, {})[second.name] = found
        else:
            own.setdefault(second.name, {})[first.name] = found.swapped()
    return between, own


def _corrected(
    tests: Mapping[Pair, tuple[SignificanceTest, Sequence[Error]]], planned: Collection[frozenset[str]] | None
) -> dict[Pair, SignificanceTest]:
    """Complete tests by p-values that are corrected for all (planned) pairs, verdicts and detectable differences.

    The best model is selected by the same numbers: with correction only for pairs of the best, ten equal models would
    differ significantly three times as often as claimed.
    """
    known = {pair: significance.combine(test.texts, test.trainings) for pair, (test, _) in tests.items()}
    tested = {pair: p for pair, p in known.items() if p is not None}
    pairs = max(len(tested), 0 if planned is None else len(planned))
    corrected = {pair: test for pair, (test, _) in tests.items()}
    for pair, p in zip(tested, significance.holm(list(tested.values()), pairs=pairs), strict=True):
        test, errors = tests[pair]
        detectable = max((significance.detectable_difference(*e, pairs=pairs) for e in errors), default=None)
        update = {"not_worse": p > significance.LEVEL, "adjusted": p, "detectable": detectable}
        corrected[pair] = test.model_copy(update=update)
    return corrected


def compare_seeds(
    values: Mapping[str, Sequence[float]], planned: Collection[frozenset[str]] | None = None
) -> dict[Pair, SignificanceTest]:
    """Test pairs of variants over seeds, by a number of each training such as its held-out loss.

    Args:
        values: one number a training, by variant; variants without numbers are left out.
        planned: the pairs to test, as for `evaluate`. None: all pairs.

    Returns:
        By pair, the lower mean first: ``gap`` is the second minus the first. Empty if no variant was trained twice.
    """
    order = sorted((name for name in values if values[name]), key=lambda name: fmean(values[name]))
    variance, freedom = significance.pooled_variance([values[name] for name in order])
    tests = {}
    for a, b in itertools.combinations(order, 2) if freedom else ():
        if planned is not None and frozenset((a, b)) not in planned:
            continue
        p = significance.seed_test(values[a], values[b], (variance, freedom))
        test = SignificanceTest(not_worse=True, gap=fmean(values[b]) - fmean(values[a]), trainings=p)
        tests[a, b] = test, [(significance.seed_error(values[a], values[b], variance), freedom)]
    return _corrected(tests, planned)
