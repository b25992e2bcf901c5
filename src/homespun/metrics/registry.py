"""Metrics that can choose a checkpoint (`train.best_metric`) or settings (`search.metric`), and their direction.

The metrics of a validation are an attribute of the objective: `homespun.tasks.protocol.TaskObjective.metrics`.
"""

from __future__ import annotations

from collections.abc import Sequence

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
_NEEDS_VARIATION = frozenset({"roc_auc", "pr_auc", "pearson", "spearman"})  # undefined if all labels are equal


def lower_is_better(metric: str) -> bool:
    """True if lower values of a metric are better. Raises `UserError` for an unknown metric."""
    if metric not in METRICS:
        raise UserError(f"unknown metric {metric!r}{nearest(metric, METRICS)}")
    return metric in _LOWER


def check_best_metric(
    metric: str,
    objective: str,
    metrics: Sequence[str] = (),
    labels: Labels | None = None,
    truth: NDArray[np.generic] | None = None,
    *,
    key: str = "train.best_metric",
) -> None:
    """Raise `UserError` before training if the validation will not have ``metric``, or if it is undefined there.

    Args:
        metric: name of the metric.
        objective: kind of the objective.
        metrics: metrics of its validation besides the loss.
        labels: the classes, if any.
        truth: (rows,) classes or numbers of the validation, if known.
        key: the setting that names the metric.
    """
    measured = {"loss", *metrics}
    setting = f"{key}={metric}"
    if labels is not None and measured.issuperset(_TWO_CLASSES):
        measured -= {"micro_f1"} if not labels.multi_label else set()
        if labels.multi_label or len(labels) != 2:
            if metric in _TWO_CLASSES:
                classes = "several labels a text" if labels.multi_label else f"{len(labels)} classes"
                raise UserError(f"{setting} needs two classes, and there are {classes}; set it to macro_f1 or loss")
            measured -= set(_TWO_CLASSES)
    if labels is None and metric == "log_loss" and metric in measured:
        others = ", ".join(sorted(measured - {metric}))
        raise UserError(f"{setting} needs probabilities, and the model predicts numbers; set it to one of {others}")
    if metric not in measured:
        raise UserError(f"{setting} is no metric of objective {objective}{nearest(metric, measured)}")
    known = np.zeros(0) if truth is None else truth[np.isfinite(truth)]
    if metric in _NEEDS_VARIATION and len(known) and np.ptp(known) == 0:
        target = "class" if metric in _TWO_CLASSES else "number"
        raise UserError(f"{setting} is undefined: the validation has one {target}; set it to loss, or add examples")
