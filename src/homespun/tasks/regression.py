"""Regression on texts and pairs of texts."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from homespun.data.labels import LabelledRows, RegressionRows
from homespun.data.long_inputs import TRUNCATE, LongInputs
from homespun.errors import UserError
from homespun.metrics.calibration import DEFAULT_RULE, DecisionRule
from homespun.metrics.regression import regression_metrics
from homespun.models.bundle import ModelBundle
from homespun.models.config import ModelConfig
from homespun.models.model import Model
from homespun.tasks.head_training import build_text_head, check_text_head
from homespun.tasks.number_training import (
    CORRECT_OR_LEAVE_OUT,
    NumberObjective,
    NumberTask,
    RegressionLoss,
    StandardizedHead,
    known_mask,
    known_numbers,
    learned_settings,
    number_baselines,
)
from homespun.tasks.protocol import Measured, TrainingSetup
from homespun.tasks.text_outputs import Outputs, number_predictions, numbers_of_examples, output_predictions
from homespun.tasks.texts import LabelledText, TextsData, unlabelled_rows
from homespun.text.formats import Record


class Regression(NumberObjective):
    """Regression by squared error.

    Targets are standardized by their mean and standard deviation in training, so that the learning rate does not depend
    on their scale; the stored model predicts in the original scale.
    """

    description = "regression"

    kind: Literal["regression"] = "regression"
    range: tuple[float, float] | None = Field(default=None, description="least and greatest number; clips predictions")

    @model_validator(mode="after")
    def _check_range(self) -> Regression:
        if self.range is not None and not self.range[0] < self.range[1]:
            raise ValueError(f"range={list(self.range)} must be the least and the greatest number")
        return self

    def task(self, data: TextsData, stored: ModelBundle, training: Sequence[LabelledText]) -> RegressionTask:
        check_text_head(self, data, stored)
        return RegressionTask(data, stored, bounds=self.range, out_of_range=self.out_of_range)

    @classmethod
    def task_from_metadata(cls, data: TextsData, stored: ModelBundle, *, source: str) -> RegressionTask:
        learned = learned_settings(stored, source, "range", "out_of_range")
        bounds = None if learned["range"] is None else (float(learned["range"][0]), float(learned["range"][1]))
        return RegressionTask(data, stored, bounds=bounds, out_of_range=learned["out_of_range"])

    def build(
        self, model: Model, config: ModelConfig, targets: NDArray[np.float64], *, long_inputs: LongInputs = TRUNCATE
    ) -> RegressionLoss:
        """Build a new head for (rows,) training ``targets`` on the encoder of ``model``, which is modified in place.

        Raises:
            UserError: all targets are equal, or the head has no bias.
        """
        score, config = build_text_head(self, model, config, 1, long_inputs)
        return RegressionLoss(model, StandardizedHead.fit(targets, score), config, frozen=self.frozen)


class RegressionTask(NumberTask):
    """A number for each text or pair; see `homespun.tasks.protocol.Task`."""

    kind = "regression"
    labels = None
    reported_metrics = ("spearman", "pearson", "absolute_error")
    decision = DEFAULT_RULE

    def __init__(
        self, data: TextsData, stored: ModelBundle, *, bounds: tuple[float, float] | None, out_of_range: str = "refuse"
    ) -> None:
        super().__init__(data, stored, out_of_range=out_of_range)
        self.bounds = bounds

    def stratify_by(self, examples: Sequence[LabelledText]) -> NDArray[np.int64]:
        """Return a key for random splits.

        Raises:
            UserError: a label is not a number, or is outside the range.
        """
        numbers = numbers_of_examples(examples)
        if self.bounds is not None and self.out_of_range == "refuse":
            low, high = self.bounds
            for index in np.flatnonzero(self._outside(numbers))[:1]:
                raise UserError(
                    f"{examples[index].location(index)} has {numbers[index]:g}, which is outside objective.range, "
                    f"{low:g} to {high:g}; {CORRECT_OR_LEAVE_OUT}"
                )
        return np.zeros((len(examples), 0), dtype=np.int64)

    def _outside(self, numbers: NDArray[np.float64]) -> NDArray[np.bool_]:
        if self.bounds is None:
            return np.zeros(len(numbers), dtype=bool)
        return (numbers < self.bounds[0]) | (numbers > self.bounds[1])

    def rows(self, examples: Sequence[LabelledText]) -> RegressionRows:
        numbers = numbers_of_examples(examples)
        return self.numbered_rows(examples, np.where(self._outside(numbers), np.nan, numbers))

    def training_setup(self, objective: Regression, stored: ModelBundle, training: RegressionRows) -> TrainingSetup:
        known = known_numbers(training)
        loss = objective.build(copy.deepcopy(stored.model), stored.config, known, long_inputs=self.data.truncation)
        return objective.setup(loss, training, stored.tokenizer.pad_id)

    def measure(self, model: Model, rows: RegressionRows, *, batch_size: int) -> Measured:
        """Compute `regression_metrics`; the ``score`` of an example is its negative absolute error."""
        return self._measured(rows.numbers, self.outputs(model, rows, batch_size))

    def outputs(self, model: Model, rows: RegressionRows | LabelledRows, batch_size: int = 32) -> NDArray[np.float64]:
        """Compute (rows,) numbers, within the range."""
        predicted = self.logits(model, rows, batch_size)[:, 0].astype(np.float64)
        return predicted if self.bounds is None else np.clip(predicted, *self.bounds)

    def with_decision(self, decision: DecisionRule) -> RegressionTask:
        """Return the task itself, since numbers have no decision rule."""
        return self

    def _measured(self, truth: NDArray[np.float64], predicted: NDArray[np.float64]) -> Measured:
        known = known_mask(truth)
        return Measured(regression_metrics(truth[known], predicted[known]), number_predictions(truth, predicted))

    def baselines(self, training: Sequence[LabelledText], test: Sequence[LabelledText]) -> dict[str, Measured]:
        """Evaluate the mean, and TF-IDF with ridge regression."""
        truth = self.rows(test).numbers
        mean, tfidf = number_baselines(training, self.rows(training).numbers, test, np.mean)
        return {"mean": self._measured(truth, mean), "tfidf": self._measured(truth, tfidf)}

    def learned(self) -> dict[str, object]:
        return {"range": self.bounds}

    def result_fields(self) -> dict[str, object]:
        return self.learned() | {"long_inputs": self.data.truncation.kind}

    def predict(
        self, model: Model, records: Iterable[Record], *, source: str, first: int = 1
    ) -> Iterator[dict[str, object]]:
        """Yield ``number``."""
        for rows in unlabelled_rows(records, self.data, self.stored, source=source, first=first):
            yield from output_predictions(Outputs(self.outputs(model, rows), rows.cut), None, self.decision)
