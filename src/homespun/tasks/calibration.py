"""Calibration after training: temperature and thresholds, chosen on validation examples."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from homespun.config import Config
from homespun.metrics.calibration import (
    MIN_EXAMPLES,
    Average,
    DecisionRule,
    cross_val_f1,
    cross_val_temperature,
    f1,
    find_thresholds,
    row_losses,
)


class Calibration(Config):
    """Settings of the calibration of a classifier."""

    temperature: bool = Field(default=True, description="divide the logits by a temperature (Guo et al. 2017)")
    thresholds: Literal["half", "global", "per_label"] = Field(
        default="global", description="multi-label: minimum probability of a label, one for all or one for each"
    )
    thresholds_for: Average = Field(default="micro_f1", description="metric that the thresholds optimise")


def calibrate(
    logits: NDArray[np.float32], truth: NDArray[np.int64], settings: Calibration
) -> tuple[DecisionRule, dict[str, object]]:
    """Choose temperature and thresholds from (rows, classes) logits of validation examples.

    Each is used only if it improves the cross-validated metric.

    Returns:
        The decision rule, and the values for ``decision_rule`` in the result.
    """
    from scipy.special import expit  # takes 0.1 s to import

    values = logits.astype(np.float64)
    temperature, reason = cross_val_temperature(values, truth) if settings.temperature else (1.0, "disabled")
    result: dict[str, object] = {
        "rows": len(truth),
        "temperature": temperature,
        "log_loss_before": float(row_losses(values, truth).mean()),
        "log_loss": float(row_losses(values / temperature, truth).mean()),
    }
    if reason:
        result["temperature_why"] = reason
    if truth.ndim == 1 or settings.thresholds == "half":
        return DecisionRule(temperature=temperature), result
    confidence = expit(values / temperature)
    scope, average = settings.thresholds, settings.thresholds_for
    half = (0.5,) * truth.shape[1]
    before = f1(confidence, truth, half, average)
    cross_validated = cross_val_f1(confidence, truth, scope=scope, average=average)
    reason = "" if cross_validated > before else "no thresholds improved the cross-validated F1 over one half"
    if len(truth) < MIN_EXAMPLES:
        reason = f"{len(truth)} validation examples are too few for thresholds; at least {MIN_EXAMPLES} are needed"
    thresholds = half if reason else find_thresholds(confidence, truth, scope=scope, average=average)
    result |= {
        "thresholds": list(thresholds),
        "thresholds_for": average,
        f"{average}_before": before,
        f"{average}_held_up": cross_validated,
        average: f1(confidence, truth, thresholds, average),
    }
    if reason:
        result["thresholds_why"] = reason
    return DecisionRule(temperature=temperature, thresholds=None if reason else thresholds), result
