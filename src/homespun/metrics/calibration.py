"""Whether a classifier is right as often as it says: calibration by a temperature, and how far off it is.

Guo et al. 2017: all logits are divided by one number, found where the examples that the model was not trained on are
likeliest. No prediction changes, only how sure the model says it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax, softmax

from homespun.metrics.thresholds import cross_val_predict

_BINS = 15
_MAX_TEMPERATURE = 20.0  # a temperature further from 1 than this factor says that something else is wrong
MIN_EXAMPLES = 30  # validation examples that anything is tuned on

Logits = NDArray[np.float64]
Truth = NDArray[np.int64]


def row_losses(logits: Logits, truth: Truth) -> NDArray[np.float64]:
    """(rows,) negative log probability of the truth, in nats.

    Args:
        logits: (rows, classes).
        truth: (rows,) classes; or (rows, classes) zeros and ones, of which the mean over the classes is taken.
    """
    values = np.asarray(logits, dtype=np.float64)
    if truth.ndim == 2:
        signed: NDArray[np.float64] = np.where(truth == 1, -values, values)
        return np.asarray(np.logaddexp(0.0, signed).mean(axis=1))
    return np.asarray(-log_softmax(values, axis=1)[np.arange(len(truth)), truth])


def find_temperature(logits: Logits, truth: Truth) -> float:
    """The temperature with the least mean of `row_losses`; between 1/20 and 20."""
    limit = np.log(_MAX_TEMPERATURE)
    found = minimize_scalar(
        lambda t: float(row_losses(logits / np.exp(t), truth).mean()), bounds=(-limit, limit), method="bounded"
    )
    return float(np.exp(found.x))


def cross_val_temperature(logits: Logits, truth: Truth) -> tuple[float, str]:
    """`find_temperature` where one found on four fifths of the rows makes the others likelier too, and why it is 1
    where it is 1."""
    if len(truth) < MIN_EXAMPLES:
        return 1.0, f"{len(truth)} validation examples are too few to find a temperature on; {MIN_EXAMPLES} would do"

    def find(rows: NDArray[np.int64]) -> Callable[[NDArray[np.int64]], NDArray[np.float64]]:
        temperature = find_temperature(logits[rows], truth[rows])
        return lambda others: row_losses(logits[others] / temperature, truth[others])

    if cross_val_predict(len(truth), find).mean() >= row_losses(logits, truth).mean():
        return 1.0, "no temperature made validation examples likelier that it was not found on"
    temperature = find_temperature(logits, truth)
    if not 1.01 / _MAX_TEMPERATURE < temperature < _MAX_TEMPERATURE / 1.01:
        return 1.0, "the best temperature is further from 1 than a factor of 20: the logits say next to nothing"
    return temperature, ""


def measure_calibration(logits: Logits, truth: Truth, temperature: float) -> dict[str, Any]:
    """How far a classifier is off, ``before`` its logits are divided by the temperature and ``after``: `reliability`
    and ``log_loss`` of each.

    Where a text may have several labels, each label of each text is an answer, as sure as its probability.
    """
    return {"before": _measure(logits, truth), "after": _measure(logits / temperature, truth)}


def _measure(logits: Logits, truth: Truth) -> dict[str, Any]:
    if truth.ndim == 2:
        found = reliability(expit(logits).ravel(), truth.ravel() == 1)
    else:
        chances = softmax(logits, axis=1)
        found = reliability(chances.max(axis=1), chances.argmax(axis=1) == truth)
    return {"log_loss": float(row_losses(logits, truth).mean())} | found


def reliability(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> dict[str, Any]:
    """How sure (n,) answers were against whether they were right, in 15 bins of equal width (Guo et al. 2017).

    Returns:
        ``ece``, the expected calibration error: the mean distance between the two, by answers; and ``bins``, of each
        that is not empty ``confidence`` and ``right`` (means) and ``count``.
    """
    places = np.minimum((confidence * _BINS).astype(np.int64), _BINS - 1)
    bins = []
    for place in range(_BINS):
        inside = places == place
        if inside.any():
            bins.append(
                {
                    "confidence": float(confidence[inside].mean()),
                    "right": float(right[inside].mean()),
                    "count": int(inside.sum()),
                }
            )
    error = sum(one["count"] * abs(one["confidence"] - one["right"]) for one in bins) / max(1, len(confidence))
    return {"ece": error, "bins": bins}
