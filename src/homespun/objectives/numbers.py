"""Fine-tuning to tell numbers of texts: a regression, and ratings in order by cumulative logits.

While it is trained, the head gives one score a text, and a small layer makes of it what is asked for. That layer is
linear: when training is over it goes into the head's classifier, and the stored model is an ordinary one.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.batch import Batch, Draw, Loss, Term
from homespun.config import Config
from homespun.data.loader import Collate
from homespun.data.long_inputs import TRUNCATE, LongInputs, pad_chunks
from homespun.data.rows import Row
from homespun.errors import UserError
from homespun.models.chunk_pool import ChunkPoolHeadConfig
from homespun.models.config import ModelConfig
from homespun.models.encoder import initialise
from homespun.models.last_layers import LayerCount
from homespun.models.model import Model
from homespun.models.scalar_mix import Layers, on_layers
from homespun.models.sequence_heads import FeedForwardHeadConfig, SequenceHeadConfig
from homespun.objectives.adversarial import TERM, AdversarialObjective, Adversary, check_not_frozen, squared_error
from homespun.objectives.answer import Answer, Counted

Outside = Literal["refuse", "leave_out"]
_OUTSIDE = "a number outside: refuse says which and stops; leave_out counts it, and neither learns nor measures it"
_MOST_LEVELS = 50


class Regression(Config):
    """A number a text or pair of texts, by squared error.

    The numbers are learned as deviations from their mean in units of their own spread, so that the learning rate needs
    to know nothing of their scale; the stored model gives them as they were given.
    """

    kind: Literal["regression"] = "regression"
    head: SequenceHeadConfig = FeedForwardHeadConfig()
    frozen: bool = Field(default=False, description="train the head alone; the encoder stays as it is")
    last_layers: LayerCount = 1
    layers: Layers = "last"
    range: tuple[float, float] | None = Field(
        default=None, description="the least and the greatest number there can be; what is told lies within it too"
    )
    outside: Annotated[Outside, Field(description=_OUTSIDE)] = "refuse"
    adversarial: Adversary | None = Field(default=None, description="texts are perturbed besides (SiFT)")

    @model_validator(mode="after")
    def _makes_sense(self) -> Regression:
        check_not_frozen(self.adversarial, frozen=self.frozen)
        if self.range is not None and not self.range[0] < self.range[1]:
            raise ValueError(f"range is the least and the greatest number, not {list(self.range)}")
        return self

    def build(
        self, model: Model, config: ModelConfig, targets: NDArray[np.float64], *, long_inputs: LongInputs = TRUNCATE
    ) -> NumbersObjective:
        """A new head on the encoder of ``model``, which is taken over, not copied; ``targets`` are the training's.

        Raises:
            UserError: all numbers are the same, or the head cannot take a constant.
        """
        plain, config = _stand(self, model, config, long_inputs)
        return NumbersObjective(model, Scaled.of(targets, plain), config, frozen=self.frozen)

    def around(self, objective: NumbersObjective) -> Any:
        """What `build` gave, with an adversary where there is one."""
        if self.adversarial is None:
            return objective
        head = objective.model.head
        assert isinstance(head, Scaled)
        return AdversarialObjective(objective, self.adversarial, head.apart)

    def counting(self, collate: Collate) -> Collate:
        """A collate that counts what `around` adds."""
        return collate if self.adversarial is None else Counted(collate, {TERM: self.adversarial.like})


class Ratings(Config):
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
    outside: Annotated[Outside, Field(description=_OUTSIDE)] = "refuse"
    class_weights: Literal["balanced"] | None = Field(
        default=None, description="balanced: every rating weighs the same in the loss, by inverse frequency"
    )
    frozen: bool = Field(default=False, description="train the head alone; the encoder stays as it is")
    last_layers: LayerCount = 1
    layers: Layers = "last"

    @model_validator(mode="after")
    def _in_order(self) -> Ratings:
        if self.levels is not None and sorted(set(self.levels)) != self.levels:
            raise ValueError(f"levels are the ratings from the lowest to the highest, each once, not {self.levels}")
        return self

    def levels_of(self, numbers: NDArray[np.float64]) -> tuple[float, ...]:
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
    ) -> NumbersObjective:
        """A new head on the encoder of ``model``, which is taken over, not copied; ``ranks`` are the training's."""
        plain, config = _stand(self, model, config, long_inputs)
        values = np.array(levels)
        head: Scaled | Cumulative
        if self.by == "squared":
            head = Scaled.of(values[ranks], plain, levels=values)
        else:
            head = Cumulative(plain, counts=np.bincount(ranks, minlength=len(levels)))
        return NumbersObjective(model, head, config, frozen=self.frozen, weights=weights)


def _stand(
    objective: Regression | Ratings, model: Model, config: ModelConfig, long_inputs: LongInputs
) -> tuple[nn.Module, ModelConfig]:
    """A new head of one score, and the config of the model with it."""
    own: SequenceHeadConfig = objective.head.model_copy(update={"num_labels": 1})
    chunks, above = long_inputs.chunks, long_inputs.layers
    pooled = ChunkPoolHeadConfig(head=own, chunks=chunks, layers=above) if above else own
    head_config = on_layers(pooled, objective.layers, objective.last_layers)
    built = head_config.build(model.backbone)
    initialise(built.modules(), config.backbone.initializer_range)
    _classifier(built)  # refuses now what could not be stored then
    return built, config.model_copy(update={"head": head_config})


def _classifier(head: nn.Module) -> nn.Linear:
    """The last layer of any head over texts, which stands in it or in the head that it wraps."""
    own = [module for name, module in head.named_modules() if name.rpartition(".")[2] == "classifier"]
    classifier = own[0]
    assert isinstance(classifier, nn.Linear)
    if classifier.bias is None:
        raise UserError(
            "head last has no constant, which numbers need; set objective.head='{kind: pooled, token: last}', or mean"
        )
    return classifier


def _refit(head: nn.Module, config: ModelConfig, weight: Tensor, bias: Tensor) -> tuple[nn.Module, ModelConfig]:
    """A copy of a head whose classifier has these weights, and the config of it."""
    made = copy.deepcopy(head)
    classifier = _classifier(made)
    classifier.weight = nn.Parameter(weight.detach().clone())
    classifier.bias = nn.Parameter(bias.detach().clone())
    classifier.out_features = len(bias)
    return made, config.model_copy(update={"head": _with_labels(config.head, len(bias))})


def _with_labels(head: Any, num_labels: int) -> Any:
    if "num_labels" in type(head).model_fields:
        return head.model_copy(update={"num_labels": num_labels})
    return head.model_copy(update={"head": _with_labels(head.head, num_labels)})


class Scaled(nn.Module):
    """A head of one score -> (texts, 1) numbers: ``mean + spread * score``.

    Where there are ``levels``, (levels,), what is learned from are ranks of these.
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
        self.register_buffer("mean", torch.tensor(mean), persistent=False)
        self.register_buffer("spread", torch.tensor(spread), persistent=False)
        told = None if levels is None else torch.tensor(levels, dtype=torch.float32)
        self.register_buffer("levels", told, persistent=False)

    @classmethod
    def of(cls, numbers: NDArray[np.float64], head: nn.Module, *, levels: NDArray[np.float64] | None = None) -> Scaled:
        """In the units of these numbers.

        Raises:
            UserError: they are all the same.
        """
        mean, spread = float(numbers.mean()), float(numbers.std())
        if spread == 0.0:
            raise UserError(f"all numbers of the training are {mean:g}; there is nothing to learn from them")
        return cls(head, mean=mean, spread=spread, levels=levels)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None, chunks: Tensor | None = None) -> Tensor:
        score: Tensor = self.head(hidden, attention_mask, chunks)
        return self.mean + self.spread * score.float()

    def terms(self, told: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(texts,) squared errors in units of the spread, and absolute errors in those of the numbers."""
        truth = labels if self.levels is None else self.levels[labels.long()]
        errors = told.squeeze(1) - truth
        return (errors / self.spread).square(), errors.detach().abs()

    def apart(self, told: Tensor, clean: Tensor) -> Tensor:
        """(texts, 1) of each -> (texts,) squared differences in units of the spread."""
        return squared_error(told / self.spread, clean / self.spread)

    def loss_of(self, metrics: Mapping[str, Any]) -> float:
        """The mean squared error in units of the spread."""
        return float(metrics["squared_error"]) / float(self.spread) ** 2

    def plain(self, config: ModelConfig) -> tuple[nn.Module, ModelConfig]:
        """The same as one head, and the config of the model with it."""
        last = _classifier(self.head)
        return _refit(self.head, config, self.spread * last.weight, self.mean + self.spread * last.bias)


class Cumulative(nn.Module):
    """A head of one score -> (texts, levels - 1) logits of a rating above the first, above the second, and so on.

    The thresholds cannot change their order: all but the first are sums of positive steps. They begin where a score of
    zero says how frequent each rating is.

    Args:
        head: of one score.
        counts: (levels,) how often each rating stands in the training.
    """

    measured = "accuracy"

    def __init__(self, head: nn.Module, *, counts: NDArray[np.int64]) -> None:
        super().__init__()
        self.head = head
        likely = (counts + 0.5) / (counts + 0.5).sum()
        below = np.cumsum(likely)[:-1]
        thresholds = np.log(below / (1 - below))
        steps = np.diff(thresholds).clip(min=1e-3)
        # the inverse of softplus
        self.first = nn.Parameter(torch.tensor(thresholds[:1], dtype=torch.float32))
        self.steps = nn.Parameter(torch.tensor(np.log(np.expm1(steps)), dtype=torch.float32))

    @property
    def thresholds(self) -> Tensor:
        """(levels - 1,), ascending."""
        return torch.cat([self.first, self.first + F.softplus(self.steps).cumsum(0)])

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None, chunks: Tensor | None = None) -> Tensor:
        score: Tensor = self.head(hidden, attention_mask, chunks)
        return score.float() - self.thresholds

    def terms(self, told: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(texts,) negative log likelihoods of the ranks, and whether the median is right."""
        ranks = labels.long()
        return -log_likelihood(told, ranks), ((told > 0).sum(dim=1) == ranks).float()

    def loss_of(self, metrics: Mapping[str, Any]) -> float:
        """The mean negative log likelihood."""
        return float(metrics["log_loss"])

    def plain(self, config: ModelConfig) -> tuple[nn.Module, ModelConfig]:
        """The same as one head, and the config of the model with it."""
        last, thresholds = _classifier(self.head), self.thresholds
        return _refit(self.head, config, last.weight.expand(len(thresholds), -1), last.bias - thresholds)


def log_likelihood(logits: Tensor, ranks: Tensor) -> Tensor:
    """(texts, levels - 1) descending logits and (texts,) ranks -> (texts,) log probabilities of these, in nats."""
    infinite = logits.new_full((len(logits), 1), math.inf)
    edges = torch.cat([infinite, logits, -infinite], dim=1)  # (texts, levels + 1): of a rating of at least k
    upper = edges.gather(1, ranks[:, None]).squeeze(1)
    lower = edges.gather(1, ranks[:, None] + 1).squeeze(1)
    # log(sigmoid(u) - sigmoid(l)) without taking the difference of two numbers near one
    return F.logsigmoid(upper) + F.logsigmoid(-lower) + torch.log1p(-torch.exp((lower - upper).clamp(max=-1e-6)))


def rating_probabilities(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """(texts, levels - 1) logits -> (texts, levels) probabilities of the ratings."""
    above = torch.from_numpy(logits).double().sigmoid().numpy()
    edges = np.concatenate([np.ones((len(above), 1)), above, np.zeros((len(above), 1))], axis=1)
    probabilities: NDArray[np.float64] = (edges[:, :-1] - edges[:, 1:]).clip(min=0.0)
    return probabilities


@dataclass(frozen=True)
class NumbersCollate:
    """Rows whose label is a number, or the rank of a rating -> a `Batch`. Nothing is random here.

    ``measured``: the term that is reported beside the loss. ``weights``: of each rank in the loss.
    """

    pad_id: int
    measured: str
    weights: tuple[float, ...] | None = None

    def __call__(self, rows: Sequence[Row], draws: Sequence[Draw]) -> Batch:
        """``labels`` are (texts,) float32."""
        labels = torch.tensor([float(row.label) for row in rows if row.label is not None], dtype=torch.float32)
        count = float(len(rows))
        weighed = count if self.weights is None else sum(self.weights[int(rank)] for rank in labels.tolist())
        targets = {"loss": weighed, self.measured: count}
        return replace(pad_chunks(rows, self.pad_id), labels=labels, targets=targets)


class NumbersObjective(nn.Module):
    """What the head's numbers or ratings cost: see `Scaled.terms` and `Cumulative.terms`."""

    weights: Tensor | None

    def __init__(
        self,
        model: Model,
        head: Scaled | Cumulative,
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
        return self.answer(batch).loss

    def logits(self, batch: Batch) -> Tensor:
        """(texts, 1) numbers, or (texts, levels - 1) logits."""
        return self._told(self.model.read(batch.input_ids, batch.context), batch)

    def _told(self, hidden: Tensor, batch: Batch) -> Tensor:
        told: Tensor = self._head(hidden, batch.attention_mask, batch.chunks)
        return told

    def answer(self, batch: Batch) -> Answer:
        """The loss, and what it is made of."""
        if batch.labels is None:
            raise ValueError("numbers are learned from a batch with labels")
        hidden = self.model.read(batch.input_ids, batch.context)
        told = self._told(hidden, batch)
        head = self._head
        loss, measured = head.terms(told, batch.labels)
        weights = torch.ones_like(loss) if self.weights is None else self.weights[batch.labels.long()]
        terms = {
            "loss": Term((weights * loss).sum(), weights.sum()),
            head.measured: Term(measured.sum(), len(measured), weight=0.0),
        }
        return Answer(hidden, told, Loss(terms))

    @property
    def _head(self) -> Scaled | Cumulative:
        assert isinstance(self.model.head, Scaled | Cumulative)
        return self.model.head

    def loss_of(self, metrics: Mapping[str, Any]) -> float:
        """What the loss is of examples with these metrics (see `homespun.training.numbers`)."""
        return self._head.loss_of(metrics)

    def product(self) -> tuple[Model, ModelConfig]:
        """The model with an ordinary head, which gives the same logits."""
        head, config = self._head.plain(self.config)
        return Model(self.model.backbone, head, reader=config.reader), config
