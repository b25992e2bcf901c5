"""Calibration of classifiers by temperature, and its measures.

All logits are divided by one temperature, that of the greatest likelihood of validation examples (Guo et al. 2017). It
changes probabilities, not predictions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from homespun.metrics.classification import Metrics
from homespun.metrics.thresholds import Rows, cross_val_predict

_BINS = 15
_MAX_TEMPERATURE = 20.0  # factor; beyond it something else is wrong
MIN_EXAMPLES = 30  # validation examples needed for tuning

Logits = NDArray[np.float64]
Truth = NDArray[np.int64]


def row_losses(logits: Logits, truth: Truth) -> NDArray[np.float64]:
    """(rows,) negative log probability of the truth, in nats.

    Args:
        logits: (rows, classes).
        truth: (rows,) classes; or (rows, classes) zeros and ones, of which the mean over the classes is taken.
    """
    values = np.asarray(logits, dtype=np.float64)
    from scipy.special import log_softmax

    if truth.ndim == 2:
        signed: NDArray[np.float64] = np.where(truth == 1, -values, values)
        return np.asarray(np.logaddexp(0.0, signed).mean(axis=1))
    return np.asarray(-log_softmax(values, axis=1)[np.arange(len(truth)), truth])


def find_temperature(logits: Logits, truth: Truth) -> float:
    """Temperature with the least mean of `row_losses`, between 1/20 and 20."""
    from scipy.optimize import minimize_scalar

    limit = np.log(_MAX_TEMPERATURE)
    found = minimize_scalar(
        lambda t: float(row_losses(logits / np.exp(t), truth).mean()), bounds=(-limit, limit), method="bounded"
    )
    return float(np.exp(found.x))


def cross_val_temperature(logits: Logits, truth: Truth) -> tuple[float, str]:
    """`find_temperature`, if cross-validation finds it better than 1; and the reason if the temperature is 1."""
    if len(truth) < MIN_EXAMPLES:
        return (
            1.0,
            f"{len(truth)} validation examples are too few for a temperature; at least {MIN_EXAMPLES} are needed",
        )

    def find(rows: Rows) -> Callable[[Rows], NDArray[np.float64]]:
        temperature = find_temperature(logits[rows], truth[rows])
        return lambda others: row_losses(logits[others] / temperature, truth[others])

    if cross_val_predict(len(truth), find).mean() >= row_losses(logits, truth).mean():
        return 1.0, "no temperature improved the cross-validated likelihood"
    temperature = find_temperature(logits, truth)
    if not 1.01 / _MAX_TEMPERATURE < temperature < _MAX_TEMPERATURE / 1.01:
        return 1.0, "the best temperature is further from 1 than a factor of 20: the logits are uninformative"
    return temperature, ""


def measure_calibration(logits: Logits, truth: Truth, temperature: float) -> Metrics:
    """`reliability` and ``log_loss`` ``before`` and ``after`` division of the logits by the temperature.

    Multi-label: every label of every text is a prediction.
    """
    return {"before": _measure(logits, truth), "after": _measure(logits / temperature, truth)}


def _measure(logits: Logits, truth: Truth) -> Metrics:
    from scipy.special import expit, softmax

    if truth.ndim == 2:
        found = reliability(expit(logits).ravel(), truth.ravel() == 1)
    else:
        chances = softmax(logits, axis=1)
        found = reliability(chances.max(axis=1), chances.argmax(axis=1) == truth)
    return {"log_loss": float(row_losses(logits, truth).mean())} | found


def reliability(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> Metrics:
    """Reliability of (n,) confidences against correctness, in 15 bins of equal width (Guo et al. 2017).

    Returns:
        ``ece``, the expected calibration error; and ``bins``, of each that is not empty ``confidence`` and ``right``
            (means) and ``count``.
    """
    places = np.minimum((confidence * _BINS).astype(np.int64), _BINS - 1)
    inside = [places == place for place in np.unique(places)]
    bins = [
        {"confidence": float(confidence[own].mean()), "right": float(right[own].mean()), "count": int(own.sum())}
        for own in inside
    ]
    error = sum(one["count"] * abs(one["confidence"] - one["right"]) for one in bins) / max(1, len(confidence))
    return {"ece": error, "bins": bins}
