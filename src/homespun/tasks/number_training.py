"""Shared parts of regression and ordinal regression: rows with numbers, heads with one score, and their loss."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, Self, SupportsFloat, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn

from homespun.baselines import tfidf_ridge
from homespun.batch import Batch, Loss, RowSeed, Term
from homespun.data.labels import LabelledRows, RegressionRows
from homespun.data.loader import Collate
from homespun.data.long_inputs import pad_chunks
from homespun.data.rows import Row
from homespun.errors import UserError
from homespun.inference.predict import predict_logits
from homespun.metrics.classification import Metrics
from homespun.models.bundle import ModelBundle
from homespun.models.composite_heads import LayerCount, Layers
from homespun.models.config import ModelConfig
from homespun.models.model import Model
from homespun.models.sequence_heads import FeedForwardHeadConfig, SequenceHeadConfig
from homespun.objectives.adversarial import TERM, AdversarialObjective, Adversary, check_not_frozen, squared_error
from homespun.objectives.protocol import WithTargetCounts
from homespun.tasks.head_training import TextLoss
from homespun.tasks.protocol import TaskObjective, TrainingSetup, task_metadata
from homespun.tasks.texts import (
    TEXT_COUNTS,
    TEXT_KINDS,
    LabelledText,
    TextsData,
    readable_texts,
    rows_of,
    rows_without,
    second_texts_of_parts,
)

_OUTSIDE = "a number outside: refuse stops with an error; leave_out counts it and leaves it out of training and metrics"
CORRECT_OR_LEAVE_OUT = "correct it, or leave such rows out with objective.out_of_range=leave_out"


class NumberHead(Protocol):
    """Interface of heads that transform one score; `merge` moves the transform into the classifier after training."""

    measured: str  # reported term besides the loss

    def terms(self, predicted: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the (texts,) losses, and the (texts,) values of ``measured``."""

    def distance(self, predicted: Tensor, clean: Tensor) -> Tensor:
        """Compute the (texts,) distances between two predictions, for adversarial training."""

    def loss_from_metrics(self, metrics: Metrics) -> float:
        """Compute the mean loss from the metrics."""

    def merge(self, config: ModelConfig) -> tuple[nn.Module, ModelConfig]:
        """Merge the transform into an ordinary head with the same logits; return the head and its model config."""


def classifier_of(head: nn.Module) -> nn.Linear:
    """Find the last linear layer of a head on texts, which may be wrapped.

    Raises:
        UserError: the layer has no bias.
    """
    classifier = next(m for name, m in head.named_modules() if name.rpartition(".")[2] == "classifier")
    assert isinstance(classifier, nn.Linear)
    if classifier.bias is None:
        raise UserError(
            "objective.head.kind=last has no bias, which numbers need; set objective.head='{kind: pooled, token: last}'"
        )
    return classifier


def refit(head: nn.Module, config: ModelConfig, weight: Tensor, bias: Tensor) -> tuple[nn.Module, ModelConfig]:
    """Copy a head with a new classifier; return the copy and the config of the model with it."""
    copied = copy.deepcopy(head)
    classifier = classifier_of(copied)
    classifier.weight = nn.Parameter(weight.detach().clone())
    classifier.bias = nn.Parameter(bias.detach().clone())
    classifier.out_features = len(bias)
    return copied, config.model_copy(update={"head": _with_labels(config.head, len(bias))})


def _with_labels(head: Any, num_labels: int) -> Any:
    if "num_labels" in type(head).model_fields:
        return head.model_copy(update={"num_labels": num_labels})
    return head.model_copy(update={"head": _with_labels(head.head, num_labels)})


class StandardizedHead(nn.Module):
    """Head with one score that returns (texts, 1) numbers, ``mean + spread * score``.

    With ``levels`` (levels,), labels are ranks of the levels.
    """

    measured = "absolute_error"
    mean: Tensor
    spread: Tensor
    levels: Tensor | None

    def __init__(
        self, head: nn.Module, *, mean: float, spread: float, levels: NDArray[np.float64] | None = None
    ) -> None:
        super().__init__()
        self.head = head
        ranked = None if levels is None else torch.tensor(levels, dtype=torch.float32)
        for name, value in {"mean": torch.tensor(mean), "spread": torch.tensor(spread), "levels": ranked}.items():
            self.register_buffer(name, value, persistent=False)

    @classmethod
    def fit(
        cls, numbers: NDArray[np.float64], head: nn.Module, *, levels: NDArray[np.float64] | None = None
    ) -> StandardizedHead:
        """Standardize by the mean and standard deviation of ``numbers``.

        Raises:
            UserError: all numbers are equal, or the head has no bias.
        """
        classifier_of(head)  # raises before training, not at the end
        if np.ptp(numbers) == 0:  # exact, unlike the deviation
            raise UserError(
                f"all training labels are {numbers[0]:g}, and regression needs different numbers; check data.label"
            )
        return cls(head, mean=float(numbers.mean()), spread=float(numbers.std()), levels=levels)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None, chunks: Tensor | None = None) -> Tensor:
        return self.mean + self.spread * self.head(hidden, attention_mask, chunks).float()

    def terms(self, predicted: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Compute (texts,) squared errors of standardized numbers, and (texts,) absolute errors.

        Absolute errors are in the original scale.
        """
        truth = labels if self.levels is None else self.levels[labels.long()]
        errors = predicted.squeeze(1) - truth
        return (errors / self.spread).square(), errors.detach().abs()

    def distance(self, predicted: Tensor, clean: Tensor) -> Tensor:
        """Compute (texts,) squared differences of standardized numbers from two (texts, 1) predictions."""
        return squared_error(predicted / self.spread, clean / self.spread)

    def loss_from_metrics(self, metrics: Metrics) -> float:
        """Compute the mean squared error of standardized numbers."""
        return float(metrics["squared_error"]) / float(self.spread) ** 2

    def merge(self, config: ModelConfig) -> tuple[nn.Module, ModelConfig]:
        last = classifier_of(self.head)
        return refit(self.head, config, self.spread * last.weight, self.mean + self.spread * last.bias)


class NumberObjective(TaskObjective):
    """Settings of objectives on numbers."""

    data_kinds = TEXT_KINDS
    count_titles = TEXT_COUNTS | {"outside": "Values outside their range, left out"}
    metrics: ClassVar[tuple[str, ...]] = ("absolute_error", "squared_error", "pearson", "spearman")

    head: SequenceHeadConfig = FeedForwardHeadConfig()
    last_layers: LayerCount = 1
    layers: Layers = "last"
    out_of_range: Literal["refuse", "leave_out"] = Field(default="refuse", description=_OUTSIDE)
    frozen: bool = Field(default=False, description="train only the head")
    adversarial: Adversary | None = Field(default=None, description="adversarial training (SiFT)")

    @model_validator(mode="after")
    def _check_adversary(self) -> Self:
        check_not_frozen(self.adversarial, frozen=self.frozen)
        return self

    def wrap(self, loss: RegressionLoss, collate: Collate) -> tuple[RegressionLoss | AdversarialObjective, Collate]:
        """Wrap loss and collate for adversarial training, if configured."""
        if self.adversarial is None:
            return loss, collate
        wrapped = AdversarialObjective(loss, self.adversarial, loss.head.distance)
        return wrapped, WithTargetCounts(collate, {TERM: self.adversarial.like})

    def setup(
        self, loss: RegressionLoss, training: RegressionRows, pad_id: int, weights: tuple[float, ...] | None = None
    ) -> TrainingSetup:
        """Set up the training of a loss on the rows with a number and with both texts; ``weights`` are (ranks,)."""
        module, collate = self.wrap(loss, RegressionCollator(pad_id, loss.head.measured, weights))
        rows = rows_without(training, left_out(training))
        return TrainingSetup(module, rows, collate, loss_from_metrics=loss.head.loss_from_metrics)


@dataclass(frozen=True)
class RegressionCollator:
    """Collate rows whose label is a number, or the rank of a rating; deterministic."""

    pad_id: int  # padding token
    measured: str  # reported term besides the loss
    weights: tuple[float, ...] | None = None  # (ranks,) weights in the loss

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        """Build a batch whose ``labels`` are (texts,) float32."""
        labels = torch.tensor([float(row.label) for row in rows if row.label is not None], dtype=torch.float32)
        count = float(len(rows))
        weighted = count if self.weights is None else sum(self.weights[int(rank)] for rank in labels.tolist())
        targets = {"loss": weighted, self.measured: count}
        return replace(pad_chunks(rows, self.pad_id), labels=labels, targets=targets)


class RegressionLoss(TextLoss):
    """Loss of a `NumberHead`, optionally weighted by rank, and `NumberHead.measured` (weight 0)."""

    weights: Tensor | None

    def __init__(
        self,
        model: Model,
        head: nn.Module,
        config: ModelConfig,
        *,
        frozen: bool = False,
        weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__(Model(model.backbone, head, reader=config.reader), config, frozen=frozen)
        self.register_buffer("weights", None if weights is None else torch.tensor(weights), persistent=False)

    @property
    def head(self) -> NumberHead:
        """Head of the model."""
        return cast(NumberHead, self.model.head)

    def compute(self, hidden: Tensor, logits: Tensor, batch: Batch, labels: Tensor) -> Loss:
        loss, measured = self.head.terms(logits, labels)
        weights = torch.ones_like(loss) if self.weights is None else self.weights[labels.long()]
        term = Term((weights * loss).sum(), weights.sum())
        return Loss({"loss": term, self.head.measured: Term(measured.sum(), len(measured), weight=0.0)})

    def export_model(self) -> tuple[Model, ModelConfig]:
        """Return the model with an ordinary head that gives the same logits, and its config."""
        head, config = self.head.merge(self.config)
        return Model(self.model.backbone, head, reader=config.reader), config


class NumberTask(ABC):
    """Base of regression and ordinal regression; see `homespun.tasks.protocol.Task`."""

    kind: ClassVar[str]

    def __init__(self, data: TextsData, stored: ModelBundle, *, out_of_range: str = "refuse") -> None:
        self.data = data
        self.stored = stored
        self.out_of_range = out_of_range

    @abstractmethod
    def learned(self) -> dict[str, object]:
        """Return the settings of the training, for metadata and result."""

    def texts(self, examples: Sequence[LabelledText]) -> list[str]:
        return readable_texts(examples)

    def to_metadata(self) -> dict[str, object]:
        return task_metadata(self.kind, self.data, self.learned() | {"out_of_range": self.out_of_range})

    def logits(self, model: Model, rows: RegressionRows | LabelledRows, batch_size: int = 32) -> NDArray[np.float32]:
        """Compute (rows, logits), in the order of ``rows``."""
        return predict_logits(model, rows, pad_id=self.stored.tokenizer.pad_id, batch_size=batch_size)

    def numbered_rows(self, examples: Sequence[LabelledText], numbers: NDArray[np.float64]) -> RegressionRows:
        """Return a row for each text with its number; rows with NaN are left out of training and metrics."""
        rows = rows_of(examples, self.data, self.stored)
        return RegressionRows(rows, numbers, rows.counts | {"outside": int(np.isnan(numbers).sum())})


def left_out(training: RegressionRows) -> NDArray[np.bool_]:
    """Return a (rows,) mask of rows without training: NaN, and pairs with an empty text."""
    assert isinstance(training.rows, LabelledRows)
    return np.isnan(training.numbers) | training.rows.one_sided


def known_numbers(training: RegressionRows) -> NDArray[np.float64]:
    """Return the (n,) numbers of the training rows. Raises `UserError` if there are none."""
    known = training.numbers[~left_out(training)]
    return known[known_mask(known)]


def known_mask(numbers: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return a (rows,) mask of known numbers. Raises `UserError` if there are none."""
    known = np.isfinite(numbers)
    if not known.any():
        raise UserError("no row has a number within the range; check data.label and the range")
    return known


def number_baselines(
    training: Sequence[LabelledText],
    numbers: NDArray[np.float64],
    test: Sequence[LabelledText],
    constant: Callable[[NDArray[np.float64]], SupportsFloat],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Predict (test,) numbers by a constant of the (training,) numbers, and by `tfidf_ridge`."""
    learned = [(example, number) for example, number in zip(training, numbers, strict=True) if np.isfinite(number)]
    examples, known = [example for example, _ in learned], np.array([number for _, number in learned])
    train_texts, test_texts = ([example.text for example in part] for part in (examples, test))
    predicted = tfidf_ridge(train_texts, known, test_texts, seconds=second_texts_of_parts(examples, test))
    return np.full(len(test), float(constant(known))), predicted


def learned_settings(stored: ModelBundle, source: str, *keys: str) -> Mapping[str, Any]:
    """Return ``learned`` of the stored task. Raises `UserError` if a key is missing."""
    learned = stored.task.get("learned")
    if not isinstance(learned, Mapping) or any(key not in learned for key in keys):
        raise UserError(f"{source} lacks settings of a regression; fine-tune it with this version of homespun")
    return learned
