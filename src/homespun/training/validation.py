"""Validation loss and metrics."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from homespun.batch import Batch
from homespun.errors import NotFinite, UserError, nearest
from homespun.metrics.classification import Metrics
from homespun.metrics.registry import METRICS, lower_is_better
from homespun.nn.eval_mode import eval_mode

_SEED = 0


@dataclass(frozen=True)
class EvalResult:
    """Loss, mean of each of its terms, and metrics."""

    loss: float
    losses: dict[str, float]
    metrics: Metrics = field(default_factory=dict)

    def score(self, metric: str) -> float:
        """Return ``loss`` or a metric, negated if lower is better; -inf for NaN and ``None``.

        Raises:
            UserError: there is no such metric (see `homespun.metrics.registry`).
        """
        values = {"loss": self.loss} | {name: value for name, value in self.metrics.items() if name in METRICS}
        if metric not in values:
            raise UserError(f"train.best_metric={metric!r} is not a metric of the validation{nearest(metric, values)}")
        value = values[metric]
        if value is None or math.isnan(value):
            return -math.inf
        return -float(value) if lower_is_better(metric) else float(value)


def evaluate_loss(objective: nn.Module, batches: Iterable[Batch], device: torch.device | str) -> EvalResult:
    """Compute the mean of every loss term over ``batches``, in evaluation mode.

    Deterministic, also for objectives that sample, such as ELECTRA. The random state and the mode of ``objective`` are
    restored.

    Raises:
        UserError: ``batches`` is empty.
        NotFinite: a term is not finite.
    """
    device = torch.device(device)
    sums: defaultdict[str, list[Tensor]] = defaultdict(list)
    counts: defaultdict[str, list[Tensor]] = defaultdict(list)
    weights: dict[str, float] = {}
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), eval_mode(objective):
        torch.manual_seed(_SEED)
        for batch in batches:
            for name, term in objective(batch.to(device)).terms.items():
                sums[name].append(term.sum.float())
                counts[name].append(torch.as_tensor(term.count))
                weights[name] = term.weight
    if not weights:
        raise UserError("nothing to validate on: there are no validation rows")
    losses = {}
    for name in weights:
        if not torch.stack(sums[name]).isfinite().all():
            raise NotFinite(f"the loss term {name!r} is not finite on the validation rows")
        count = _total(counts[name])
        losses[name] = _total(sums[name]) / count if count else math.nan
    weighted = [weight * losses[name] for name, weight in weights.items() if weight and not math.isnan(losses[name])]
    return EvalResult(math.fsum(weighted) if weighted else math.nan, losses)


def _total(values: list[Tensor]) -> float:
    return math.fsum(value.item() for value in values)
