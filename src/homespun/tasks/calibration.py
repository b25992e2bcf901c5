"""Calibration after training: temperature and thresholds, chosen on validation examples and never on test examples."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from homespun.config import Config
from homespun.inference.predict import DecisionRule
from homespun.metrics.calibration import (
    MIN_EXAMPLES,
    Average,
    cross_val_f1,
    cross_val_temperature,
    f1,
    find_thresholds,
    row_losses,
)


class Calibration(Config):
    """Settings of the calibration of a classifier's logits on validation examples."""

    temperature: bool = Field(default=True, description="calibrate: divide the logits by a number (Guo et al. 2017)")
    thresholds: Literal["half", "global", "per_label"] = Field(
        default="global", description="of several labels a text: the least probability of one, for all or for each"
    )
    thresholds_for: Average = Field(default="micro_f1", description="what the thresholds are to be best for")


def calibrate(
    logits: NDArray[np.float32], truth: NDArray[np.int64], settings: Calibration
) -> tuple[DecisionRule, dict[str, object]]:
    """Choose temperature and thresholds for (rows, classes) logits of validation examples.

    Each is kept only if it is better in cross-validation, on examples that it was not chosen on.

    Returns:
        The decision rule, and the values for ``tuning`` in the result.
    """
    values = logits.astype(np.float64)
    temperature, reason = cross_val_temperature(values, truth) if settings.temperature else (1.0, "not asked for")
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
    confidence = 1.0 / (1.0 + np.exp(-values / temperature))
    scope, average = settings.thresholds, settings.thresholds_for
    half = (0.5,) * truth.shape[1]
    before = f1(confidence, truth, half, average)
    held = cross_val_f1(confidence, truth, scope=scope, average=average)
    why = "" if held > before else "none did better than one half on validation examples that it was not found on"
    if len(truth) < MIN_EXAMPLES:
        why = f"{len(truth)} validation examples are too few to find thresholds on; {MIN_EXAMPLES} would do"
    kept = not why
    thresholds = find_thresholds(confidence, truth, scope=scope, average=average) if kept else half
    result |= {
        "thresholds": list(thresholds),
        "thresholds_for": average,
        f"{average}_before": before,
        f"{average}_held_up": held,
        average: f1(confidence, truth, thresholds, average),
    }
    if why:
        result["thresholds_why"] = why
    return DecisionRule(temperature=temperature, thresholds=thresholds if kept else None), result
