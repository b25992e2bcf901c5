"""Which measures may choose, a checkpoint (`train.best_metric`) or settings (`search.measure`), and which way.

Among a task's metrics are counts and tables too, such as ``rows``: these are no measures.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from homespun.data.labels import Labels
from homespun.errors import UserError, nearest

_CLASSES = ("accuracy", "macro_f1", "weighted_f1", "log_loss")
_TWO_CLASSES = ("f1", "roc_auc", "pr_auc")
_NUMBERS = ("absolute_error", "squared_error", "pearson", "spearman")

METRICS_BY_OBJECTIVE: dict[str, tuple[str, ...]] = {
    "classification": (*_CLASSES, *_TWO_CLASSES, "micro_f1", "ece"),
    "sentence_labels": (*_CLASSES, *_TWO_CLASSES),
    "regression": _NUMBERS,
    "ratings": (*_NUMBERS, "quadratic_kappa", "accuracy", "within_one", "log_loss"),
    "tagging": ("f1", "precision", "recall", "accuracy", "macro_f1"),
    "span_answers": tuple(
        f"{part}{name}" for part in ("", "has_answer_", "no_answer_") for name in ("exact_match", "f1")
    ),
}
"""What the validation of a fine-tuning is measured by, besides its loss; that of any other training has its loss."""

METRICS = frozenset({"loss"}.union(*METRICS_BY_OBJECTIVE.values()))
_LOWER = frozenset({"loss", "log_loss", "ece", "absolute_error", "squared_error"})
_NEEDS_VARIATION = frozenset({"roc_auc", "pr_auc", "pearson", "spearman"})  # nothing where all examples are alike


def lower_is_better(metric: str) -> bool:
    """Whether the least of a measure is the best.

    Raises:
        UserError: it is no measure.
    """
    if metric not in METRICS:
        raise UserError(f"{metric!r} is no measure of a validation{nearest(metric, METRICS)}")
    return metric in _LOWER


def check_best_metric(
    metric: str,
    objective: str,
    labels: Labels | None = None,
    truth: NDArray[Any] | None = None,
    *,
    key: str = "train.best_metric",
) -> None:
    """Refuse, before a training, a measure that its validation cannot have.

    Args:
        metric: its name.
        objective: the kind of what is learned.
        labels: the classes, where there are any.
        truth: (rows,) of the validation, its classes or numbers, as far as they are known.
        key: the setting that names the measure.

    Raises:
        UserError: it is no measure of such a validation, or all of the validation is alike.
    """
    available = {"loss", *METRICS_BY_OBJECTIVE.get(objective, ())}
    given = f"{key}={metric}"
    if labels is not None and objective in ("classification", "sentence_labels"):
        available -= {"micro_f1"} if not labels.multi_label else set()
        if labels.multi_label or len(labels) != 2:
            if metric in _TWO_CLASSES:
                what = "several labels a text" if labels.multi_label else f"{len(labels)} classes"
                raise UserError(f"{given} is of two classes, and there are {what}; set it to macro_f1 or loss")
            available -= set(_TWO_CLASSES)
    if metric not in available:
        raise UserError(f"{given} is not measured where {objective} is learned{nearest(metric, available)}")
    known = np.zeros(0) if truth is None else truth[np.isfinite(truth)]
    if metric in _NEEDS_VARIATION and len(known) and np.ptp(known) == 0:
        unit = "class" if metric in _TWO_CLASSES else "number"
        raise UserError(
            f"{given} cannot be measured: one {unit} in the validation; give other examples as data.validation, or "
            f"set it to loss"
        )
