"""Fine-tuning to tell numbers of texts: a regression, and ratings in order by cumulative logits.

The heads that learn them are in `homespun.objectives.regression_heads`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn

from homespun.batch import Batch, Loss, RowSeed, Term
from homespun.config import Config
from homespun.data.loader import Collate
from homespun.data.long_inputs import TRUNCATE, LongInputs, pad_chunks
from homespun.data.rows import Row
from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.models.last_layers import LayerCount
from homespun.models.model import Model
from homespun.models.scalar_mix import Layers
from homespun.models.sequence_heads import FeedForwardHeadConfig, SequenceHeadConfig
from homespun.objectives.adversarial import TERM, AdversarialObjective, Adversary, check_not_frozen
from homespun.objectives.head_training import build_text_head
from homespun.objectives.protocol import ClassifierOutput, WithTargetCounts
from homespun.objectives.regression_heads import OrdinalHead, StandardizedHead, classifier_of

OutOfRange = Literal["refuse", "leave_out"]
_OUT_OF_RANGE = "a number outside: refuse says which and stops; leave_out counts it, and neither learns nor measures it"
_MOST_LEVELS = 50


class _AdversarialConfig(Config):
    """An objective on texts that may be perturbed besides."""

    kind: str
    frozen: bool = Field(default=False, description="train the head alone; the encoder stays as it is")
    adversarial: Adversary | None = Field(default=None, description="texts are perturbed besides (SiFT)")

    @model_validator(mode="after")
    def _learns(self) -> Self:
        check_not_frozen(self.adversarial, frozen=self.frozen)
        return self

    def wrap(self, objective: RegressionObjective) -> Any:
        """What `build` gave, with an adversary where there is one."""
        if self.adversarial is None:
            return objective
        head = objective.model.head
        assert isinstance(head, StandardizedHead | OrdinalHead)
        return AdversarialObjective(objective, self.adversarial, head.divergence)

    def counting(self, collate: Collate) -> Collate:
        """A collate that counts what `wrap` adds."""
        return collate if self.adversarial is None else WithTargetCounts(collate, {TERM: self.adversarial.like})


class Regression(_AdversarialConfig):
    """A number a text or pair of texts, by squared error.

    The numbers are learned as deviations from their mean in units of their own spread, so that the learning rate needs
    to know nothing of their scale; the stored model gives them as they were given.
    """

    kind: Literal["regression"] = "regression"
    head: SequenceHeadConfig = FeedForwardHeadConfig()
    last_layers: LayerCount = 1
    layers: Layers = "last"
    range: tuple[float, float] | None = Field(
        default=None, description="the least and the greatest number there can be; what is told lies within it too"
    )
    outside: Annotated[OutOfRange, Field(description=_OUT_OF_RANGE)] = "refuse"

    @model_validator(mode="after")
    def _makes_sense(self) -> Regression:
        if self.range is not None and not self.range[0] < self.range[1]:
            raise ValueError(f"range is the least and the greatest number, not {list(self.range)}")
        return self

    def build(
        self, model: Model, config: ModelConfig, targets: NDArray[np.float64], *, long_inputs: LongInputs = TRUNCATE
    ) -> RegressionObjective:
        """A new head on the encoder of ``model``, which is taken over, not copied; ``targets`` are the training's.

        Raises:
            UserError: all numbers are the same, or the head cannot take a constant.
        """
        plain, config = _build_head(self, model, config, long_inputs)
        return RegressionObjective(model, StandardizedHead.of(targets, plain), config, frozen=self.frozen)


class OrdinalRegression(_AdversarialConfig):
    """One of a few ratings in order, such as stars.

    ``cumulative`` is the proportional odds model (McCullagh 1980): one score a text, and between each rating and the
    next a threshold, ``P(rating > k) = sigmoid(score - threshold_k)``; its loss is the negative log likelihood of the
    rating. ``squared`` is a regression on the ratings, rounded to the nearest. Both know that 4 is closer to 5 than 1
    is, which classes do not.
    """

    kind: Literal["ratings"] = "ratings"
    head: SequenceHeadConfig = FeedForwardHeadConfig()
    by: Literal["cumulative", "squared"] = "cumulative"
    levels: list[float] | None = Field(
        default=None,
        min_length=2,
        max_length=_MOST_LEVELS,
        description="the ratings; those of the training if not given",
    )
    outside: Annotated[OutOfRange, Field(description=_OUT_OF_RANGE)] = "refuse"
    class_weights: Literal["balanced"] | None = Field(
        default=None, description="balanced: every rating weighs the same in the loss, by inverse frequency"
    )
    last_layers: LayerCount = 1
    layers: Layers = "last"

    @model_validator(mode="after")
    def _in_order(self) -> OrdinalRegression:
        if self.levels is not None and sorted(set(self.levels)) != self.levels:
            raise ValueError(f"levels are the ratings from the lowest to the highest, each once, not {self.levels}")
        return self

    def find_levels(self, numbers: NDArray[np.float64]) -> tuple[float, ...]:
        """The ratings, lowest first, where ``numbers`` are those of the training.

        Raises:
            UserError: there are too few or too many of them.
        """
        if self.levels is not None:
            return tuple(self.levels)
        found = np.unique(numbers)
        if not 2 <= len(found) <= _MOST_LEVELS:
            raise UserError(
                f"the training has {len(found)} different ratings, and there can be 2 to {_MOST_LEVELS}; "
                f"set objective.kind=regression for numbers that may be any"
            )
        return tuple(found.tolist())

    def weights(self, ranks: NDArray[np.int64], levels: int) -> tuple[float, ...] | None:
        """The weight of each rating, where ``ranks`` are those of the training."""
        if self.class_weights is None:
            return None
        counts = np.bincount(ranks, minlength=levels).clip(min=1)
        return tuple((len(ranks) / (levels * counts)).tolist())

    def build(
        self,
        model: Model,
        config: ModelConfig,
        ranks: NDArray[np.int64],
        levels: Sequence[float],
        *,
        weights: tuple[float, ...] | None = None,
        long_inputs: LongInputs = TRUNCATE,
    ) -> RegressionObjective:
        """A new head on the encoder of ``model``, which is taken over, not copied; ``ranks`` are the training's."""
        plain, config = _build_head(self, model, config, long_inputs)
        values = np.array(levels)
        head: StandardizedHead | OrdinalHead
        if self.by == "squared":
            head = StandardizedHead.of(values[ranks], plain, levels=values)
        else:
            head = OrdinalHead(plain, counts=np.bincount(ranks, minlength=len(levels)))
        return RegressionObjective(model, head, config, frozen=self.frozen, weights=weights)


def _build_head(
    objective: Regression | OrdinalRegression, model: Model, config: ModelConfig, long_inputs: LongInputs
) -> tuple[nn.Module, ModelConfig]:
    """A new head of one score, and the config of the model with it."""
    built, config = build_text_head(objective, model, config, 1, long_inputs)
    classifier_of(built)  # refuses now what could not be stored then
    return built, config


@dataclass(frozen=True)
class RegressionCollator:
    """Rows whose label is a number, or the rank of a rating -> a `Batch`. Nothing is random here.

    ``measured``: the term that is reported beside the loss. ``weights``: of each rank in the loss.
    """

    pad_id: int
    measured: str
    weights: tuple[float, ...] | None = None

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        """``labels`` are (texts,) float32."""
        labels = torch.tensor([float(row.label) for row in rows if row.label is not None], dtype=torch.float32)
        count = float(len(rows))
        weighed = count if self.weights is None else sum(self.weights[int(rank)] for rank in labels.tolist())
        targets = {"loss": weighed, self.measured: count}
        return replace(pad_chunks(rows, self.pad_id), labels=labels, targets=targets)


class RegressionObjective(nn.Module):
    """What the head's numbers or ratings cost: see `StandardizedHead.terms` and `OrdinalHead.terms`."""

    weights: Tensor | None

    def __init__(
        self,
        model: Model,
        head: StandardizedHead | OrdinalHead,
        config: ModelConfig,
        *,
        frozen: bool = False,
        weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self.model = Model(model.backbone, head, reader=config.reader)
        self.config = config
        self.register_buffer("weights", None if weights is None else torch.tensor(weights), persistent=False)
        if frozen:
            self.model.freeze(self.model.backbone)

    def forward(self, batch: Batch) -> Loss:
        """Terms ``loss`` (weight 1) and `measured` (weight 0)."""
        return self.output(batch).loss

    def logits(self, batch: Batch) -> Tensor:
        """(texts, 1) numbers, or (texts, levels - 1) logits."""
        return self._predict(self.model.read(batch.input_ids, batch.context), batch)

    def _predict(self, hidden: Tensor, batch: Batch) -> Tensor:
        predicted: Tensor = self._head(hidden, batch.attention_mask, batch.chunks)
        return predicted

    def output(self, batch: Batch) -> ClassifierOutput:
        """The loss, and what it is made of."""
        if batch.labels is None:
            raise ValueError("numbers are learned from a batch with labels")
        hidden = self.model.read(batch.input_ids, batch.context)
        predicted = self._predict(hidden, batch)
        head = self._head
        loss, measured = head.terms(predicted, batch.labels)
        weights = torch.ones_like(loss) if self.weights is None else self.weights[batch.labels.long()]
        terms = {
            "loss": Term((weights * loss).sum(), weights.sum()),
            head.measured: Term(measured.sum(), len(measured), weight=0.0),
        }
        return ClassifierOutput(hidden, predicted, Loss(terms))

    @property
    def _head(self) -> StandardizedHead | OrdinalHead:
        assert isinstance(self.model.head, StandardizedHead | OrdinalHead)
        return self.model.head

    def loss_from_metrics(self, metrics: Mapping[str, Any]) -> float:
        """What the loss is of examples with these metrics (see `homespun.metrics.regression`)."""
        return self._head.loss_from_metrics(metrics)

    def export_model(self) -> tuple[Model, ModelConfig]:
        """The model with an ordinary head, which gives the same logits."""
        head, config = self._head.export_head(self.config)
        return Model(self.model.backbone, head, reader=config.reader), config
