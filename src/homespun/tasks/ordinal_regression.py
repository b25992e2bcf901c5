"""Ordinal regression: an ordered rating, such as stars, of each text or pair of texts."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.data.labels import LabelledRows, Labels, RegressionRows, label_name
from homespun.data.long_inputs import TRUNCATE, LongInputs
from homespun.errors import UserError
from homespun.metrics.classification import Metrics
from homespun.metrics.regression import ordinal_regression_metrics
from homespun.models.bundle import ModelBundle
from homespun.models.config import ModelConfig
from homespun.models.model import Model
from homespun.objectives.adversarial import symmetric_kl
from homespun.tasks.head_training import balanced_weights, build_text_head, check_text_head
from homespun.tasks.number_training import (
    CORRECT_OR_LEAVE_OUT,
    NumberObjective,
    NumberTask,
    RegressionLoss,
    StandardizedHead,
    classifier_of,
    known_mask,
    known_numbers,
    learned_settings,
    number_baselines,
    refit,
)
from homespun.tasks.protocol import Measured, TrainingSetup, prefix_errors
from homespun.tasks.text_outputs import number_predictions, numbers_of_examples
from homespun.tasks.texts import LabelledText, TextsData, unlabelled_rows
from homespun.text.formats import Record

MAX_LEVELS = 50


class OrdinalRegression(NumberObjective):
    """Ordinal regression on ratings with few levels, such as stars.

    ``cumulative`` is the proportional odds model (McCullagh 1980): one score a text, and a threshold between
    consecutive ratings, ``P(rating > k) = sigmoid(score - threshold_k)``, trained by negative log-likelihood.
    ``squared`` is a regression on the ratings, rounded to the nearest rating.
    """

    metrics = (*NumberObjective.metrics, "quadratic_kappa", "accuracy", "within_one", "log_loss")
    description = "ordinal regression"

    kind: Literal["ordinal_regression"] = "ordinal_regression"
    method: Literal["cumulative", "squared"] = "cumulative"
    levels: list[float] | None = Field(
        default=None, min_length=2, max_length=MAX_LEVELS, description="the ratings; by default those of the training"
    )
    class_weights: Literal["balanced"] | None = Field(
        default=None, description="balanced: weight of each rating in the loss by inverse frequency"
    )

    @model_validator(mode="after")
    def _check_order(self) -> OrdinalRegression:
        if self.levels is not None and sorted(set(self.levels)) != self.levels:
            raise ValueError(f"levels={self.levels} must be ascending ratings, each once")
        return self

    def find_levels(self, numbers: NDArray[np.float64]) -> tuple[float, ...]:
        """Return the distinct ratings of the training ``numbers`` in ascending order.

        Raises:
            UserError: there are too few or too many.
        """
        if self.levels is not None:
            return tuple(self.levels)
        levels = np.unique(numbers)
        if not 2 <= len(levels) <= MAX_LEVELS:
            raise UserError(
                f"the training has {len(levels)} different ratings, and 2 to {MAX_LEVELS} are allowed; "
                f"set objective.kind=regression for other numbers"
            )
        return tuple(levels.tolist())

    def task(self, data: TextsData, stored: ModelBundle, training: Sequence[LabelledText]) -> OrdinalRegressionTask:
        check_text_head(self, data, stored)
        with prefix_errors(data.train):
            levels = self.find_levels(numbers_of_examples(training))
        return OrdinalRegressionTask(data, stored, levels=levels, method=self.method, out_of_range=self.out_of_range)

    @classmethod
    def task_from_metadata(cls, data: TextsData, stored: ModelBundle, *, source: str) -> OrdinalRegressionTask:
        learned = learned_settings(stored, source, "levels", "method", "out_of_range")
        levels = tuple(float(level) for level in learned["levels"])
        method, out_of_range = learned["method"], learned["out_of_range"]
        return OrdinalRegressionTask(data, stored, levels=levels, method=method, out_of_range=out_of_range)

    def weights(self, ranks: NDArray[np.int64], levels: int) -> tuple[float, ...] | None:
        """Compute the (levels,) class weights from the ``ranks`` of the training."""
        return None if self.class_weights is None else balanced_weights(ranks, levels)

    def build(
        self,
        model: Model,
        config: ModelConfig,
        ranks: NDArray[np.int64],
        levels: Sequence[float],
        *,
        weights: tuple[float, ...] | None = None,
        long_inputs: LongInputs = TRUNCATE,
    ) -> RegressionLoss:
        """Build a new head on the encoder of ``model``, which is modified in place.

        ``ranks`` are those of the (rows,) training ratings among the ascending ``levels``; ``weights`` (levels,) are in
        the loss.

        Raises:
            UserError: all ranks are equal, or the head has no bias.
        """
        score, config = build_text_head(self, model, config, 1, long_inputs)
        values = np.array(levels)
        head: nn.Module
        if self.method == "squared":
            head = StandardizedHead.fit(values[ranks], score, levels=values)
        else:
            classifier_of(score)  # raises before training, not at the end
            head = OrdinalHead(score, counts=np.bincount(ranks, minlength=len(levels)))
        return RegressionLoss(model, head, config, frozen=self.frozen, weights=weights)


class OrdinalHead(nn.Module):
    """Head with one score that returns (texts, levels - 1) logits of a rating above each level but the last.

    Thresholds stay ordered: all but the first are sums of positive steps. They are initialized so that a score of zero
    predicts the frequencies of the ratings, given by the (levels,) ``counts`` of the training.
    """

    measured = "accuracy"

    def __init__(self, head: nn.Module, *, counts: NDArray[np.int64]) -> None:
        super().__init__()
        self.head = head
        shares = (counts + 0.5) / (counts + 0.5).sum()
        below = np.cumsum(shares)[:-1]
        thresholds = np.log(below / (1 - below))
        steps = np.diff(thresholds).clip(min=1e-3)
        self.first = nn.Parameter(torch.tensor(thresholds[:1], dtype=torch.float32))
        self.steps = nn.Parameter(torch.tensor(np.log(np.expm1(steps)), dtype=torch.float32))  # inverse of softplus

    @property
    def thresholds(self) -> Tensor:
        """(levels - 1,) thresholds, ascending."""
        return torch.cat([self.first, self.first + F.softplus(self.steps).cumsum(0)])

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None, chunks: Tensor | None = None) -> Tensor:
        return self.head(hidden, attention_mask, chunks).float() - self.thresholds

    def terms(self, predicted: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Compute (texts,) negative log-likelihoods of the ranks, and whether the predicted median is right."""
        ranks = labels.long()
        return -log_likelihood(predicted, ranks), ((predicted > 0).sum(dim=1) == ranks).float()

    def distance(self, predicted: Tensor, clean: Tensor) -> Tensor:
        """Compute the (texts,) `symmetric_kl` of the ratings from two (texts, levels - 1) logits."""
        return symmetric_kl(_log_probabilities(predicted), _log_probabilities(clean))

    def loss_from_metrics(self, metrics: Metrics) -> float:
        return float(metrics["log_loss"])

    def merge(self, config: ModelConfig) -> tuple[nn.Module, ModelConfig]:
        last, thresholds = classifier_of(self.head), self.thresholds
        return refit(self.head, config, last.weight.expand(len(thresholds), -1), last.bias - thresholds)


def log_likelihood(logits: Tensor, ranks: Tensor) -> Tensor:
    """Compute (texts,) log-likelihoods in nats of (texts,) ranks from (texts, levels - 1) descending logits."""
    return _log_probabilities(logits).gather(1, ranks[:, None]).squeeze(1)


def _log_probabilities(logits: Tensor) -> Tensor:
    """Compute (texts, levels) log probabilities in nats from (texts, levels - 1) descending logits."""
    infinite = logits.new_full((len(logits), 1), math.inf)
    edges = torch.cat([infinite, logits, -infinite], dim=1)  # (texts, levels + 1): logits of a rating of at least k
    upper, lower = edges[:, :-1], edges[:, 1:]
    # log(sigmoid(u) - sigmoid(l)) without cancellation
    return F.logsigmoid(upper) + F.logsigmoid(-lower) + torch.log1p(-torch.exp((lower - upper).clamp(max=-1e-6)))


def rating_probabilities(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Compute (texts, levels) probabilities of the ratings from (texts, levels - 1) logits."""
    above = torch.from_numpy(logits).double().sigmoid().numpy()
    edges = np.pad(above, ((0, 0), (1, 1)), constant_values=(1.0, 0.0))
    return (edges[:, :-1] - edges[:, 1:]).clip(min=0.0)


class OrdinalRegressionTask(NumberTask):
    """A rating for each text or pair; see `homespun.tasks.protocol.Task`."""

    kind = "ordinal_regression"
    reported_metrics = ("quadratic_kappa", "accuracy", "absolute_error", "spearman")

    def __init__(
        self, data: TextsData, stored: ModelBundle, *, levels: tuple[float, ...], method: str, out_of_range: str
    ) -> None:
        super().__init__(data, stored, out_of_range=out_of_range)
        self.levels = levels
        self.method = method

    @property
    def labels(self) -> Labels | None:
        """Names of the cumulative logits, ``> level`` each; ``None`` for ``squared``."""
        if self.method == "squared":
            return None
        return Labels(tuple(f"> {label_name(level)}" for level in self.levels[:-1]), multi_label=True)

    def stratify_by(self, examples: Sequence[LabelledText]) -> NDArray[np.int64]:
        """Stratify by rating.

        Raises:
            UserError: a label is not a number, or not one of the ratings.
        """
        numbers = numbers_of_examples(examples)
        ranks, outside = self._ranks(numbers)
        if self.out_of_range == "refuse":
            for index in np.flatnonzero(outside)[:1]:
                raise UserError(
                    f"{examples[index].location(index)} has the rating {label_name(numbers[index])}, which is none of "
                    f"{', '.join(map(label_name, self.levels))}; add it to objective.levels, {CORRECT_OR_LEAVE_OUT}"
                )
        return ranks

    def _ranks(self, numbers: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the (numbers,) nearest ranks, and a (numbers,) mask of numbers that are not a rating."""
        distances = np.abs(numbers[:, None] - np.array(self.levels))
        return distances.argmin(axis=1), ~np.isclose(distances.min(axis=1), 0.0)

    def rows(self, examples: Sequence[LabelledText]) -> RegressionRows:
        ranks, outside = self._ranks(numbers_of_examples(examples))
        return self.numbered_rows(examples, np.where(outside, np.nan, ranks.astype(np.float64)))

    def training_setup(
        self, objective: OrdinalRegression, stored: ModelBundle, training: RegressionRows
    ) -> TrainingSetup:
        known = known_numbers(training).astype(np.int64)
        weights = objective.weights(known, len(self.levels))
        model, long_inputs = copy.deepcopy(stored.model), self.data.truncation
        loss = objective.build(model, stored.config, known, self.levels, weights=weights, long_inputs=long_inputs)
        return objective.setup(loss, training, stored.tokenizer.pad_id, weights)

    def measure(self, model: Model, rows: RegressionRows, *, batch_size: int) -> Measured:
        """Compute `ordinal_regression_metrics`; the ``score`` of an example is its negative absolute error."""
        return self._measured(rows.numbers, *self._predict(model, rows, batch_size))

    def _predict(
        self, model: Model, rows: RegressionRows | LabelledRows, batch_size: int = 32
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64] | None]:
        """Predict ranks, expected ratings, and probabilities (None for ``squared``)."""
        logits = self.logits(model, rows, batch_size)
        levels = np.array(self.levels)
        if self.method == "squared":
            expected = np.clip(logits[:, 0].astype(np.float64), levels[0], levels[-1])
            return self._ranks(expected)[0], expected, None
        probabilities = rating_probabilities(logits)
        return (logits > 0).sum(axis=1), probabilities @ levels, probabilities  # the median minimises absolute error

    def _measured(
        self,
        truth: NDArray[np.float64],
        ranks: NDArray[np.int64],
        expected: NDArray[np.float64] | None = None,
        probabilities: NDArray[np.float64] | None = None,
    ) -> Measured:
        known = known_mask(truth)
        metrics = ordinal_regression_metrics(
            self.levels,
            truth[known].astype(np.int64),
            ranks[known],
            expected=None if expected is None else expected[known],
            probabilities=None if probabilities is None else probabilities[known],
        )
        predictions = number_predictions(self._ratings(truth), np.array(self.levels)[ranks])
        if probabilities is not None:
            predictions = [p | {"probability": row} for p, row in zip(predictions, probabilities.tolist(), strict=True)]
        return Measured(metrics, predictions)

    def _ratings(self, ranks: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert ranks to ratings; NaN stays NaN."""
        return np.where(np.isfinite(ranks), np.array(self.levels)[np.nan_to_num(ranks).astype(np.int64)], np.nan)

    def baselines(self, training: Sequence[LabelledText], test: Sequence[LabelledText]) -> dict[str, Measured]:
        """Evaluate the most frequent rating, and TF-IDF with ridge regression, rounded."""
        from scipy.stats import mode

        truth, learned = self.rows(test).numbers, self._ratings(self.rows(training).numbers)
        frequent, predicted = number_baselines(training, learned, test, lambda known: mode(known).mode)
        return {
            "majority": self._measured(truth, self._ranks(frequent)[0]),
            "tfidf": self._measured(truth, self._ranks(predicted)[0], predicted),
        }

    def learned(self) -> dict[str, object]:
        return {"levels": list(self.levels), "method": self.method}

    def result_fields(self) -> dict[str, object]:
        return {"levels": list(self.levels), "long_inputs": self.data.truncation.kind}

    def predict(
        self, model: Model, records: Iterable[Record], *, source: str, first: int = 1
    ) -> Iterator[dict[str, object]]:
        """Yield ``rating``, the ``expected`` rating, and ``probabilities`` by rating (not for ``squared``)."""
        names = list(map(label_name, self.levels))
        for rows in unlabelled_rows(records, self.data, self.stored, source=source, first=first):
            ranks, expected, probabilities = self._predict(model, rows)
            for index, rank in enumerate(ranks.tolist()):
                prediction: dict[str, object] = {"rating": self.levels[rank], "expected": float(expected[index])}
                if probabilities is not None:
                    prediction["probabilities"] = dict(zip(names, probabilities[index].tolist(), strict=True))
                yield prediction | {"truncated": bool(rows.cut[index])}
