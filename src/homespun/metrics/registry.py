"""Metrics that can choose a checkpoint (`train.best_metric`) or settings (`search.metric`), and which way is better.

Counts and tables of a result, such as ``rows``, are no such metrics. Which metrics a validation has is an attribute of
the objective: `homespun.tasks.protocol.TaskObjective.metrics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from homespun.data.labels import Labels
from homespun.errors import UserError, nearest

_TWO_CLASSES = ("f1", "roc_auc", "pr_auc")
_LOWER = frozenset({"loss", "log_loss", "ece", "absolute_error", "squared_error"})
_HIGHER = frozenset(
    {"accuracy", "macro_f1", "micro_f1", "weighted_f1", "precision", "recall", *_TWO_CLASSES}
    | {"pearson", "spearman", "quadratic_kappa", "within_one"}
    | {f"{part}{name}" for part in ("", "has_answer_", "no_answer_") for name in ("exact_match", "f1")}
)
METRICS = _LOWER | _HIGHER
_NEEDS_VARIATION = frozenset({"roc_auc", "pr_auc", "pearson", "spearman"})  # undefined where all examples are equal


def lower_is_better(metric: str) -> bool:
    """True if lower values of a metric are better.

    Raises:
        UserError: an unknown metric.
    """
    if metric not in METRICS:
        raise UserError(f"{metric!r} is no measure of a validation{nearest(metric, METRICS)}")
    return metric in _LOWER


def check_best_metric(
    metric: str,
    objective: str,
    metrics: Sequence[str] = (),
    labels: Labels | None = None,
    truth: NDArray[Any] | None = None,
    *,
    key: str = "train.best_metric",
) -> None:
    """Refuse, before a training, a metric that its validation does not have.

    Args:
        metric: its name.
        objective: kind of the objective.
        metrics: those of its validation, besides the loss.
        labels: the classes, where there are any.
        truth: (rows,) classes or numbers of the validation, as far as they are known.
        key: the setting that names the metric.

    Raises:
        UserError: no metric of such a validation, or undefined because all of the validation is equal.
    """
    measured = {"loss", *metrics}
    given = f"{key}={metric}"
    if labels is not None and measured.issuperset(_TWO_CLASSES):
        measured -= {"micro_f1"} if not labels.multi_label else set()
        if labels.multi_label or len(labels) != 2:
            if metric in _TWO_CLASSES:
                what = "several labels a text" if labels.multi_label else f"{len(labels)} classes"
                raise UserError(f"{given} is of two classes, and there are {what}; set it to macro_f1 or loss")
            measured -= set(_TWO_CLASSES)
    if metric not in measured:
        raise UserError(f"{given} is not measured where {objective} is learned{nearest(metric, measured)}")
    known = np.zeros(0) if truth is None else truth[np.isfinite(truth)]
    if metric in _NEEDS_VARIATION and len(known) and np.ptp(known) == 0:
        target = "class" if metric in _TWO_CLASSES else "number"
        raise UserError(
            f"{given} cannot be measured: one {target} in the validation; give other examples as data.validation, or "
            f"set it to loss"
        )
