"""Plan of a linear model: its features, and the part of the data that it reads within a time limit."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from homespun.data.labels import Labels
from homespun.data.splits import stratified_order
from homespun.errors import UserError
from homespun.fitting.inspection import Inspection
from homespun.linear import PLAIN, fit_linear
from homespun.ngrams import CHARACTERS, WORDS, Ngrams, fit_vectorizers
from homespun.tasks.text_outputs import targets_of, texts_of
from homespun.tasks.texts import LabelledText

_SEARCH_CHARACTERS = 3_000_000  # maximum for the cross-validation of a linear model
# seconds a character on one core: search and fit with n-grams of characters (times the linear functions and one), and
# without them
_SEARCH_COST, _FIT_COST, _WORD_COST = 1.2e-6, 0.35e-6, 0.5e-6
_REFIT = 0.7  # time of a refit / time of the search and the fit
_MORE = 1.2  # examples of a refit, on training and validation examples / training examples
_SAMPLE = 50_000  # characters by which the cost is measured
_SMALL = 0.1  # share of the time, below which an expected cost is not measured
_LEAST_SEARCH, _LEAST_CHARACTERS, _LEAST_ROWS = 500, 2_000, 200  # to which a plan is reduced


@dataclass(frozen=True)
class LinearPlan:
    """Settings of `fit_linear` that fit into a time, and the seconds that they are expected to take."""

    feature_sets: tuple[tuple[Ngrams, ...], ...]
    search_rows: int
    seconds: float
    limit: float = math.inf  # seconds, after which the search ends on a slow machine
    characters: int | None = None  # that are read of a training text; None: all
    rows: int | None = None  # training examples that are read; None: all
    refit: float = _REFIT  # time of a refit / time of the search and the fit

    def parts(self, examples: int, search_rows: int) -> list[str]:
        """Describe what is read where it is less than all ``examples``, or ``search_rows`` in cross-validation."""
        parts = []
        if self.rows is not None and self.rows < examples:
            parts.append(f"{self.rows:,} of {examples:,} training examples")
        if self.characters is not None:
            parts.append(f"the first {self.characters:,} characters of a training text")
        if self.search_rows < min(search_rows, examples):
            parts.append(f"{self.search_rows:,} examples in cross-validation")
        return parts

    @property
    def reads_all(self) -> bool:
        """True if all training texts are read in full."""
        return self.characters is None and self.rows is None

    def reduce(self, examples: Sequence[LabelledText], labels: Labels | None) -> Sequence[LabelledText]:
        """Return the examples that are read, with the part of their texts that is read."""
        if self.rows is not None and self.rows < len(examples):
            strata = np.zeros((len(examples), 0)) if labels is None else targets_of(examples, labels)
            kept = np.sort(stratified_order(strata.astype(np.int64), 0)[: self.rows])
            examples = [examples[index] for index in kept]
        return [_cut(example, self.characters) for example in examples]


def plan_linear(inspection: Inspection, seconds: float) -> LinearPlan:
    """Choose features and size of the cross-validation for a time limit."""
    lengths = _lengths(inspection.train)
    characters, mean = int(lengths.sum()), float(lengths.mean())
    rows = max(500, min(len(lengths), 8_000, int(_SEARCH_CHARACTERS / mean)))
    functions = 1 if _classes(inspection) == 2 else _classes(inspection)
    cost = (1 + functions) * (min(characters, rows * mean) * _SEARCH_COST + characters * _FIT_COST)
    if cost <= seconds:
        return LinearPlan((WORDS, CHARACTERS), rows, cost, 2 * seconds)
    return LinearPlan((WORDS,), rows, 3 * characters * _WORD_COST, 2 * seconds)


def bound_plan(plan: LinearPlan, inspection: Inspection, seconds: float) -> tuple[LinearPlan, float]:
    """Reduce a plan until its search, fit, refit and predictions are expected to take ``seconds``.

    The cost is measured on a sample, unless it is small in any case. First the cross-validation reads fewer examples,
    then less of each text is read; last the refit is given up, and fewer examples are read.

    Returns:
        The plan, and the seconds of the search, the fit and the predictions of validation and test examples, which are
        more than ``seconds`` if even the smallest plan is too slow.
    """
    started, lengths = time.monotonic(), _lengths(inspection.train)
    # the test texts are predicted twice: for metrics and for the time
    predicted = float(_lengths([*inspection.validation, *inspection.test, *inspection.test]).sum())
    classes = _classes(inspection)
    if ((5 + classes) * lengths.sum() + 2 * predicted) * _WORD_COST < _SMALL * seconds:
        return plan, plan.seconds
    cost = _measure_cost(inspection, classes)
    if cost is None:
        return plan, plan.seconds
    seconds -= time.monotonic() - started
    predicting, spent, fitted = cost.predict * predicted, 0.0, 0.0
    bounded, frequent = plan, _frequent(inspection)
    for bounded in _reductions(plan, lengths, max(_LEAST_ROWS, 2 * classes)):
        rows = bounded.rows or len(lengths)
        mean = float(np.minimum(lengths, bounded.characters or math.inf).mean())
        fitted = cost.fit(rows * mean)
        searched = min(bounded.search_rows, rows)
        folds = min(5.0 if searched <= 2_000 else 3.0, max(1.0, frequent * searched / len(lengths)))
        spent = fitted + cost.search(searched * mean, folds)
        refitted = _MORE * fitted if bounded.rows is None else 0.0
        if spent + refitted + predicting <= seconds:
            break
    characters = CHARACTERS in bounded.feature_sets
    refit = _REFIT if characters else _MORE * fitted / spent
    limit = min(bounded.limit, max(0.0, seconds - predicting) / (1 + refit))
    spent = max(spent, bounded.seconds) if characters else spent
    return replace(bounded, seconds=spent, limit=limit, refit=refit), spent + predicting


def _classes(inspection: Inspection) -> int:
    """Number of classes; 1 for numbers."""
    return 1 if inspection.labels is None else len(inspection.labels)


def _frequent(inspection: Inspection) -> float:
    """Examples of the second most frequent class, which bound the number of folds."""
    labels = inspection.labels
    if labels is None or labels.multi_label:
        return math.inf
    return float(np.sort(np.bincount(targets_of(inspection.train, labels).astype(np.int64), minlength=2))[-2])


@dataclass(frozen=True)
class _Cost:
    """Seconds a character, of word features."""

    count: float  # to find the n-grams
    solve: float  # to fit the linear functions
    predict: float

    def fit(self, characters: float) -> float:
        """Seconds of a fit, which reads the texts twice."""
        return characters * (2 * self.count + self.solve)

    def search(self, characters: float, folds: float) -> float:
        """Seconds of a cross-validation; each fold weights the n-grams and fits on most of the examples."""
        return characters * (1.5 * self.count + folds * (0.3 * self.count + 0.8 * self.solve))


def _measure_cost(inspection: Inspection, classes: int) -> _Cost | None:
    """Fit a linear model on a sample; ``None`` if the sample holds no words."""
    train, labels = inspection.train, inspection.labels
    count = min(len(train), max(100, 2 * classes))  # so that it has most classes
    rows = np.linspace(0, len(train) - 1, count).astype(np.int64)
    sample = [_cut(train[row], max(100, _SAMPLE // count)) for row in rows]
    texts, targets = texts_of(sample), targets_of(sample, labels)
    first = np.arange(min(20, count))
    try:
        fit_linear(texts.take(first), targets[first], labels, settings=PLAIN)  # imports scikit-learn
        start = time.perf_counter()
        fit_vectorizers(WORDS, texts)
        counted = time.perf_counter()
        model = fit_linear(texts, targets, labels, settings=PLAIN).model
        fitted = time.perf_counter()
        model.outputs(texts)
    except UserError:
        return None
    times = np.diff([start, counted, fitted, time.perf_counter()]) / _lengths(sample).sum()
    return _Cost(times[0], max(0.0, times[1] - 2 * times[0]), times[2])


def _reductions(plan: LinearPlan, lengths: NDArray[np.int64], least_rows: int) -> Iterator[LinearPlan]:
    """Yield the plan, and plans with word features and one strength that read ever less."""
    yield plan
    plan = replace(plan, feature_sets=(WORDS,), limit=0.0)
    for searched in _descend(plan.search_rows, _LEAST_SEARCH):
        plan = replace(plan, search_rows=searched)
        yield plan
    for characters in _descend(int(lengths.max()), _LEAST_CHARACTERS):
        plan = replace(plan, characters=characters)
        yield plan
    for rows in _descend(len(lengths), least_rows):
        plan = replace(plan, rows=rows)
        yield plan


def _descend(most: int, least: int) -> Iterator[int]:
    """Yield geometrically falling numbers."""
    while most > least:
        yield most
        most = max(least, int(0.8 * most))
    if most == least:
        yield least


def _cut(example: LabelledText, characters: int | None) -> LabelledText:
    second = None if example.second is None else example.second[:characters]
    return replace(example, text=example.text[:characters], second=second)


def _lengths(examples: Sequence[LabelledText]) -> NDArray[np.int64]:
    return np.array([len(example.text) + len(example.second or "") for example in examples], dtype=np.int64)
