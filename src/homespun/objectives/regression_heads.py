"""Heads that tell numbers and ratings, while they are trained.

A head gives one score a text, and a small layer makes of it what is asked for. That layer is linear: when training is
over it goes into the head's classifier, and the stored model is an ordinary one.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.objectives.adversarial import squared_error, symmetric_kl


def classifier_of(head: nn.Module) -> nn.Linear:
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
    classifier = classifier_of(made)
    classifier.weight = nn.Parameter(weight.detach().clone())
    classifier.bias = nn.Parameter(bias.detach().clone())
    classifier.out_features = len(bias)
    return made, config.model_copy(update={"head": _with_labels(config.head, len(bias))})


def _with_labels(head: Any, num_labels: int) -> Any:
    if "num_labels" in type(head).model_fields:
        return head.model_copy(update={"num_labels": num_labels})
    return head.model_copy(update={"head": _with_labels(head.head, num_labels)})


class StandardizedHead(nn.Module):
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
        values = None if levels is None else torch.tensor(levels, dtype=torch.float32)
        self.register_buffer("levels", values, persistent=False)

    @classmethod
    def of(
        cls, numbers: NDArray[np.float64], head: nn.Module, *, levels: NDArray[np.float64] | None = None
    ) -> StandardizedHead:
        """In the units of these numbers.

        Raises:
            UserError: they are all the same.
        """
        if np.ptp(numbers) == 0:  # unlike the deviation, which is rounded
            raise UserError(f"all numbers of the training are {numbers[0]:g}; there is nothing to learn from them")
        return cls(head, mean=float(numbers.mean()), spread=float(numbers.std()), levels=levels)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None, chunks: Tensor | None = None) -> Tensor:
        score: Tensor = self.head(hidden, attention_mask, chunks)
        return self.mean + self.spread * score.float()

    def terms(self, predicted: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(texts,) squared errors in units of the spread, and absolute errors in those of the numbers."""
        truth = labels if self.levels is None else self.levels[labels.long()]
        errors = predicted.squeeze(1) - truth
        return (errors / self.spread).square(), errors.detach().abs()

    def divergence(self, predicted: Tensor, clean: Tensor) -> Tensor:
        """(texts, 1) of each -> (texts,) squared differences in units of the spread."""
        return squared_error(predicted / self.spread, clean / self.spread)

    def loss_from_metrics(self, metrics: Mapping[str, Any]) -> float:
        """The mean squared error in units of the spread."""
        return float(metrics["squared_error"]) / float(self.spread) ** 2

    def export_head(self, config: ModelConfig) -> tuple[nn.Module, ModelConfig]:
        """The same as one head, and the config of the model with it."""
        last = classifier_of(self.head)
        return _refit(self.head, config, self.spread * last.weight, self.mean + self.spread * last.bias)


class OrdinalHead(nn.Module):
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

    def terms(self, predicted: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(texts,) negative log likelihoods of the ranks, and whether the median is right."""
        ranks = labels.long()
        return -log_likelihood(predicted, ranks), ((predicted > 0).sum(dim=1) == ranks).float()

    def divergence(self, predicted: Tensor, clean: Tensor) -> Tensor:
        """(texts, levels - 1) logits of each -> (texts,) `symmetric_kl` of the ratings."""
        return symmetric_kl(_log_probabilities(predicted), _log_probabilities(clean))

    def loss_from_metrics(self, metrics: Mapping[str, Any]) -> float:
        """The mean negative log likelihood."""
        return float(metrics["log_loss"])

    def export_head(self, config: ModelConfig) -> tuple[nn.Module, ModelConfig]:
        """The same as one head, and the config of the model with it."""
        last, thresholds = classifier_of(self.head), self.thresholds
        return _refit(self.head, config, last.weight.expand(len(thresholds), -1), last.bias - thresholds)


def log_likelihood(logits: Tensor, ranks: Tensor) -> Tensor:
    """(texts, levels - 1) descending logits and (texts,) ranks -> (texts,) log probabilities of these, in nats."""
    return _log_probabilities(logits).gather(1, ranks[:, None]).squeeze(1)


def _log_probabilities(logits: Tensor) -> Tensor:
    """(texts, levels - 1) descending logits -> (texts, levels) log probabilities of the ratings, in nats."""
    infinite = logits.new_full((len(logits), 1), math.inf)
    edges = torch.cat([infinite, logits, -infinite], dim=1)  # (texts, levels + 1): of a rating of at least k
    upper, lower = edges[:, :-1], edges[:, 1:]
    # log(sigmoid(u) - sigmoid(l)) without taking the difference of two numbers near one
    return F.logsigmoid(upper) + F.logsigmoid(-lower) + torch.log1p(-torch.exp((lower - upper).clamp(max=-1e-6)))


def rating_probabilities(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """(texts, levels - 1) logits -> (texts, levels) probabilities of the ratings."""
    above = torch.from_numpy(logits).double().sigmoid().numpy()
    edges = np.concatenate([np.ones((len(above), 1)), above, np.zeros((len(above), 1))], axis=1)
    probabilities: NDArray[np.float64] = (edges[:, :-1] - edges[:, 1:]).clip(min=0.0)
    return probabilities
