"""What is chosen on the validation examples once a training is over; nothing is ever chosen on test examples."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from homespun.config import Config
from homespun.inference.decision_rule import DecisionRule
from homespun.metrics.calibration import MIN_EXAMPLES, cross_val_temperature, row_losses
from homespun.metrics.thresholds import Average, cross_val_f1, f1, find_thresholds


class Tuning(Config):
    """How a classifier's logits are read, found on the validation examples."""

    temperature: bool = Field(default=True, description="calibrate: divide the logits by a number (Guo et al. 2017)")
    thresholds: Literal["half", "global", "per_label"] = Field(
        default="global", description="of several labels a text: the least probability of one, for all or for each"
    )
    thresholds_for: Average = Field(default="micro_f1", description="what the thresholds are to be best for")


def decide(
    logits: NDArray[np.float32], truth: NDArray[np.int64], tuning: Tuning
) -> tuple[DecisionRule, dict[str, Any]]:
    """How the (rows, classes) logits of the validation examples are best read, and what ``tuning`` of a result tells.

    Both parts are kept only where they hold for examples that they were not found on.
    """
    values = logits.astype(np.float64)
    temperature, reason = cross_val_temperature(values, truth) if tuning.temperature else (1.0, "not asked for")
    told: dict[str, Any] = {
        "rows": len(truth),
        "temperature": temperature,
        "log_loss_before": float(row_losses(values, truth).mean()),
        "log_loss": float(row_losses(values / temperature, truth).mean()),
    }
    if reason:
        told["temperature_why"] = reason
    if truth.ndim == 1 or tuning.thresholds == "half":
        return DecisionRule(temperature=temperature), told
    sure = 1.0 / (1.0 + np.exp(-values / temperature))
    scope, average = tuning.thresholds, tuning.thresholds_for
    half = (0.5,) * truth.shape[1]
    before = f1(sure, truth, half, average)
    held = cross_val_f1(sure, truth, scope=scope, average=average)
    why = "" if held > before else "none did better than one half on validation examples that it was not found on"
    if len(truth) < MIN_EXAMPLES:
        why = f"{len(truth)} validation examples are too few to find thresholds on; {MIN_EXAMPLES} would do"
    kept = not why
    thresholds = find_thresholds(sure, truth, scope=scope, average=average) if kept else half
    told |= {
        "thresholds": list(thresholds),
        "thresholds_for": average,
        f"{average}_before": before,
        f"{average}_held_up": held,
        average: f1(sure, truth, thresholds, average),
    }
    if why:
        told["thresholds_why"] = why
    return DecisionRule(temperature=temperature, thresholds=thresholds if kept else None), told
