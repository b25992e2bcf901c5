"""Numbers for texts or pairs of texts: regressions, and ratings in order."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from homespun.baselines import tfidf_regression
from homespun.data.labels import LabelledRows, Labels
from homespun.data.loader import Collate
from homespun.data.regression import RegressionRows, parse_numbers
from homespun.errors import UserError
from homespun.inference.predict import predict_logits
from homespun.metrics.classification import Metrics
from homespun.metrics.regression import ordinal_regression_metrics, regression_metrics
from homespun.models.bundle import ModelBundle
from homespun.models.model import Model
from homespun.objectives.regression import OrdinalRegression, Regression, RegressionCollator
from homespun.objectives.regression_heads import OrdinalHead, StandardizedHead, rating_probabilities
from homespun.tasks.files import prefix_errors
from homespun.tasks.protocol import Lesson, Measured
from homespun.tasks.texts import (
    LabelledText,
    TextsData,
    labels_of,
    predicted_in_parts,
    rows_of,
    seconds_of,
    shown,
    whole_pairs,
)
from homespun.training.validation import EvalResult

_WAY_OUT = "correct it, or have such rows counted and left out: objective.outside=leave_out"


class RegressionTask:
    """A number a text or pair; see `homespun.tasks.protocol.Task`."""

    labels = None
    measures = ("spearman", "pearson", "absolute_error")

    def __init__(
        self, data: TextsData, stored: ModelBundle, *, bounds: tuple[float, float] | None, refuses: bool = True
    ) -> None:
        self.data = data
        self.stored = stored
        self.bounds = bounds
        self.refuses = refuses

    @classmethod
    def of(
        cls, data: TextsData, objective: Regression, stored: ModelBundle, training: Sequence[LabelledText]
    ) -> RegressionTask:
        """For the range that the objective says."""
        return cls(data, stored, bounds=objective.range, refuses=objective.outside == "refuse")

    @classmethod
    def again(cls, data: TextsData, stored: ModelBundle, *, source: str) -> RegressionTask:
        """As the model was fine-tuned."""
        learned = _learned(stored, source, "range", "outside")
        bounds = None if learned["range"] is None else (float(learned["range"][0]), float(learned["range"][1]))
        return cls(data, stored, bounds=bounds, refuses=learned["outside"] == "refuse")

    def strata(self, examples: Sequence[LabelledText]) -> NDArray[np.int64]:
        """Nothing is kept in proportion.

        Raises:
            UserError: what is no number, or a number outside the range.
        """
        numbers = _numbers(examples)
        if self.bounds is not None and self.refuses:
            low, high = self.bounds
            for place in np.flatnonzero(self._outside(numbers))[:1]:
                raise UserError(
                    f"row {place + 1} has {numbers[place]:g}, which lies outside objective.range, {low:g} to {high:g}; "
                    f"{_WAY_OUT}"
                )
        return np.zeros((len(examples), 0), dtype=np.int64)

    def _outside(self, numbers: NDArray[np.float64]) -> NDArray[np.bool_]:
        if self.bounds is None:
            return np.zeros(len(numbers), dtype=bool)
        return (numbers < self.bounds[0]) | (numbers > self.bounds[1])

    def texts(self, examples: Sequence[LabelledText]) -> list[str]:
        """The texts, or both of a pair."""
        return shown(examples)

    def rows(self, examples: Sequence[LabelledText]) -> RegressionRows:
        """A row a text; a number outside is not known there."""
        numbers = _numbers(examples)
        return _numbered(examples, self.data, self.stored, np.where(self._outside(numbers), np.nan, numbers))

    def lesson(self, objective: Regression, stored: ModelBundle, training: RegressionRows) -> Lesson:
        """A new head on the encoder."""
        known = training.numbers[~_left_out(training)]
        _check_some(known)
        module = objective.build(copy.deepcopy(stored.model), stored.config, known, long_inputs=self.data.long_inputs)
        collate = objective.counting(RegressionCollator(stored.tokenizer.pad_id, "absolute_error"))
        return _lesson(objective.wrap(module), training, collate)

    def validate(self, lesson: Lesson, rows: RegressionRows, *, batch_size: int) -> EvalResult:
        """The squared error, in units of the training's spread, and the metrics."""
        return _evaluation(lesson, self.measure(lesson.model, rows, batch_size=batch_size).metrics)

    def measure(self, model: Model, rows: RegressionRows, *, batch_size: int) -> Measured:
        """`regression_metrics`; the ``score`` of an example is minus the error."""
        return self._measured(rows.numbers, self._told(model, rows, batch_size))

    def _told(self, model: Model, rows: RegressionRows | LabelledRows, batch_size: int = 32) -> NDArray[np.float64]:
        pad_id = self.stored.tokenizer.pad_id
        told = predict_logits(model, rows, pad_id=pad_id, batch_size=batch_size)[:, 0].astype(np.float64)
        return told if self.bounds is None else np.clip(told, *self.bounds)

    def _measured(self, truth: NDArray[np.float64], told: NDArray[np.float64]) -> Measured:
        known = np.isfinite(truth)
        _check_some(truth[known])
        return Measured(regression_metrics(truth[known], told[known]), _said(truth, told))

    def baselines(self, training: Sequence[LabelledText], test: Sequence[LabelledText]) -> dict[str, Measured]:
        """The mean, and TF-IDF with a ridge regression."""
        truth = self.rows(test).numbers
        lines = _lines(training, self.rows(training).numbers, test, np.mean)
        return {name: self._measured(truth, told) for name, told in zip(("mean", "tfidf"), lines, strict=True)}

    def facts(self) -> dict[str, Any]:
        """The range, and how long texts are read."""
        return {"range": self.bounds, "long_inputs": self.data.long_inputs.kind}

    def describe(self) -> dict[str, Any]:
        """How the texts are read, and what can be told of them."""
        learned = {"range": self.bounds, "outside": "refuse" if self.refuses else "leave_out"}
        return {"kind": "regression", "data": self.data.kind, "learned": learned} | self.data.to_metadata()

    def predict(self, model: Model, records: Iterable[Mapping[str, Any]], *, source: str) -> Iterator[dict[str, Any]]:
        """``number``."""
        for part in predicted_in_parts(records, self.data, source=source):
            rows = rows_of(part, self.data, self.stored)
            for number, truncated in zip(self._told(model, rows).tolist(), rows.cut.tolist(), strict=True):
                yield {"number": number, "truncated": truncated}


class RatingsTask:
    """One of a few ratings in order a text or pair; see `homespun.tasks.protocol.Task`."""

    measures = ("quadratic_kappa", "accuracy", "absolute_error", "spearman")

    def __init__(
        self, data: TextsData, stored: ModelBundle, *, levels: tuple[float, ...], by: str, refuses: bool = True
    ) -> None:
        self.data = data
        self.stored = stored
        self.levels = levels
        self.by = by
        self.refuses = refuses

    @classmethod
    def of(
        cls, data: TextsData, objective: OrdinalRegression, stored: ModelBundle, training: Sequence[LabelledText]
    ) -> RatingsTask:
        """For the ratings of the objective, or of the training."""
        with prefix_errors(data.train):
            levels = objective.find_levels(_numbers(training))
        return cls(data, stored, levels=levels, by=objective.by, refuses=objective.outside == "refuse")

    @classmethod
    def again(cls, data: TextsData, stored: ModelBundle, *, source: str) -> RatingsTask:
        """As the model was fine-tuned."""
        learned = _learned(stored, source, "levels", "by", "outside")
        levels = tuple(float(level) for level in learned["levels"])
        return cls(data, stored, levels=levels, by=learned["by"], refuses=learned["outside"] == "refuse")

    @property
    def labels(self) -> Labels | None:
        """Of cumulative logits: each says whether the rating is above one."""
        if self.by == "squared":
            return None
        return Labels(tuple(f"> {level:g}" for level in self.levels[:-1]), multi_label=True)

    def strata(self, examples: Sequence[LabelledText]) -> NDArray[np.int64]:
        """The ratings.

        Raises:
            UserError: what is no number, or none of the ratings.
        """
        numbers = _numbers(examples)
        ranks, outside = self._ranks(numbers)
        if self.refuses:
            for place in np.flatnonzero(outside)[:1]:
                names = ", ".join(f"{level:g}" for level in self.levels)
                raise UserError(
                    f"row {place + 1} has the rating {numbers[place]:g}, and the ratings are {names}; name them all in "
                    f"objective.levels, {_WAY_OUT}"
                )
        return ranks

    def _ranks(self, numbers: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The nearest ratings, and where there was none."""
        distances = np.abs(numbers[:, None] - np.array(self.levels))
        ranks = distances.argmin(axis=1)
        return ranks, ~np.isclose(distances.min(axis=1), 0.0)

    def texts(self, examples: Sequence[LabelledText]) -> list[str]:
        """The texts, or both of a pair."""
        return shown(examples)

    def rows(self, examples: Sequence[LabelledText]) -> RegressionRows:
        """A row a text, whose number is the rank of its rating."""
        ranks, outside = self._ranks(_numbers(examples))
        return _numbered(examples, self.data, self.stored, np.where(outside, np.nan, ranks.astype(np.float64)))

    def lesson(self, objective: OrdinalRegression, stored: ModelBundle, training: RegressionRows) -> Lesson:
        """A new head on the encoder."""
        known = training.numbers[~_left_out(training)].astype(np.int64)
        _check_some(known)
        weights = objective.weights(known, len(self.levels))
        module = objective.build(
            copy.deepcopy(stored.model),
            stored.config,
            known,
            self.levels,
            weights=weights,
            long_inputs=self.data.long_inputs,
        )
        measured = "absolute_error" if self.by == "squared" else "accuracy"
        collate = objective.counting(RegressionCollator(stored.tokenizer.pad_id, measured, weights))
        return _lesson(objective.wrap(module), training, collate)

    def validate(self, lesson: Lesson, rows: RegressionRows, *, batch_size: int) -> EvalResult:
        """The loss of the objective, and the metrics."""
        return _evaluation(lesson, self.measure(lesson.model, rows, batch_size=batch_size).metrics)

    def measure(self, model: Model, rows: RegressionRows, *, batch_size: int) -> Measured:
        """`ordinal_regression_metrics`; the ``score`` of an example is minus the error."""
        return self._measured(rows.numbers, *self._told(model, rows, batch_size))

    def _told(
        self, model: Model, rows: RegressionRows | LabelledRows, batch_size: int = 32
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64] | None]:
        """Ranks, expected ratings, and probabilities where there are any."""
        logits = predict_logits(model, rows, pad_id=self.stored.tokenizer.pad_id, batch_size=batch_size)
        levels = np.array(self.levels)
        if self.by == "squared":
            expected = np.clip(logits[:, 0].astype(np.float64), levels[0], levels[-1])
            return self._ranks(expected)[0], expected, None
        probabilities = rating_probabilities(logits)
        # the median: it is what the error is least of
        return (logits > 0).sum(axis=1), probabilities @ levels, probabilities

    def _measured(
        self,
        truth: NDArray[np.float64],
        ranks: NDArray[np.int64],
        expected: NDArray[np.float64] | None = None,
        probabilities: NDArray[np.float64] | None = None,
    ) -> Measured:
        known = np.isfinite(truth)
        _check_some(truth[known])
        metrics = ordinal_regression_metrics(
            self.levels,
            truth[known].astype(np.int64),
            ranks[known],
            expected=None if expected is None else expected[known],
            probabilities=None if probabilities is None else probabilities[known],
        )
        levels = np.array(self.levels)
        values = np.where(known, levels[np.where(known, truth, 0).astype(np.int64)], np.nan)
        said = _said(values, levels[ranks])
        if probabilities is not None:
            said = [line | {"probability": p} for line, p in zip(said, probabilities.tolist(), strict=True)]
        return Measured(metrics, said)

    def baselines(self, training: Sequence[LabelledText], test: Sequence[LabelledText]) -> dict[str, Measured]:
        """The most frequent rating, and TF-IDF with a ridge regression, rounded."""
        truth, learned = self.rows(test).numbers, self.rows(training).numbers
        levels = np.array(self.levels)
        values = np.where(np.isfinite(learned), levels[np.nan_to_num(learned).astype(np.int64)], np.nan)

        def usual(numbers: NDArray[np.float64]) -> float:
            found, counts = np.unique(numbers, return_counts=True)
            return float(found[counts.argmax()])

        frequent, told = _lines(training, values, test, usual)
        return {
            "majority": self._measured(truth, self._ranks(frequent)[0]),
            "tfidf": self._measured(truth, self._ranks(told)[0], told),
        }

    def facts(self) -> dict[str, Any]:
        """The ratings, and how long texts are read."""
        return {"levels": list(self.levels), "long_inputs": self.data.long_inputs.kind}

    def describe(self) -> dict[str, Any]:
        """How the texts are read, and what can be told of them."""
        outside = "refuse" if self.refuses else "leave_out"
        learned = {"levels": list(self.levels), "by": self.by, "outside": outside}
        return {"kind": "ratings", "data": self.data.kind, "learned": learned} | self.data.to_metadata()

    def predict(self, model: Model, records: Iterable[Mapping[str, Any]], *, source: str) -> Iterator[dict[str, Any]]:
        """``rating``, the ``expected`` one between the ratings, and ``probabilities`` of all where there are any."""
        names = [f"{level:g}" for level in self.levels]
        for part in predicted_in_parts(records, self.data, source=source):
            rows = rows_of(part, self.data, self.stored)
            ranks, expected, probabilities = self._told(model, rows)
            for place, rank in enumerate(ranks.tolist()):
                said: dict[str, Any] = {"rating": self.levels[rank], "expected": float(expected[place])}
                if probabilities is not None:
                    said["probabilities"] = dict(zip(names, probabilities[place].tolist(), strict=True))
                yield said | {"truncated": bool(rows.cut[place])}


def _numbers(examples: Sequence[LabelledText]) -> NDArray[np.float64]:
    labels = labels_of(examples)
    if labels and isinstance(labels[0], tuple):
        raise UserError("data.multi_label=true gives several labels a text, and here each has one number; leave it out")
    return parse_numbers([str(label) for label in labels])


def _numbered(
    examples: Sequence[LabelledText], data: TextsData, stored: ModelBundle, numbers: NDArray[np.float64]
) -> RegressionRows:
    rows = rows_of(examples, data, stored)
    return RegressionRows(rows, numbers, rows.counts | {"outside": int(np.isnan(numbers).sum())})


def _left_out(training: RegressionRows) -> NDArray[np.bool_]:
    """Rows that nothing can be learned from."""
    assert isinstance(training.rows, LabelledRows)
    left_out: NDArray[np.bool_] = np.isnan(training.numbers) | training.rows.one_sided
    return left_out


def _check_some(known: NDArray[Any]) -> None:
    if not len(known):
        raise UserError("there is no row with a number within its range; is data.label the right column?")


def _lesson(module: Any, training: RegressionRows, collate: Collate) -> Lesson:
    return Lesson(module, module.model, whole_pairs(training, _left_out(training)), collate, module.export_model)


def _evaluation(lesson: Lesson, metrics: Metrics) -> EvalResult:
    head = lesson.model.head
    assert isinstance(head, StandardizedHead | OrdinalHead)
    loss = head.loss_from_metrics(metrics)
    plain = {name: value for name, value in metrics.items() if value is None or isinstance(value, int | float)}
    return EvalResult(loss, {"loss": loss}, plain)


def _said(truth: NDArray[np.float64], told: NDArray[np.float64]) -> list[dict[str, Any]]:
    return [
        {"truth": true, "predicted": predicted, "score": -abs(true - predicted)}
        if np.isfinite(true)
        else {"truth": None, "predicted": predicted}
        for true, predicted in zip(truth.tolist(), told.tolist(), strict=True)
    ]


def _lines(
    training: Sequence[LabelledText],
    numbers: NDArray[np.float64],
    test: Sequence[LabelledText],
    constant: Callable[[NDArray[np.float64]], Any],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A constant of the training's numbers, and those by TF-IDF, for each of the ``test``."""
    learned = [(example, number) for example, number in zip(training, numbers, strict=True) if np.isfinite(number)]
    known = np.array([number for _, number in learned])
    examples = [example for example, _ in learned]
    pair, other = seconds_of(examples), seconds_of(test)
    told = tfidf_regression(
        [example.text for example in examples],
        known,
        [example.text for example in test],
        seconds=None if pair is None or other is None else (pair, other),
    )
    return np.full(len(test), float(constant(known))), told


def _learned(stored: ModelBundle, source: str, *keys: str) -> Mapping[str, Any]:
    learned = stored.task.get("learned")
    if not isinstance(learned, Mapping) or any(key not in learned for key in keys):
        raise UserError(f"{source} does not say which numbers it tells; fine-tune it with this version of homespun")
    return learned
