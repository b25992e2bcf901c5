"""Calibration of classifiers on validation examples: temperature, decision thresholds, reliability.

All logits are divided by one temperature, the one with the greatest likelihood (Guo et al. 2017); it changes
probabilities, not predictions. Multi-label classifiers also get thresholds: probabilities of rare labels seldom reach
one half. Both are kept only if they help in cross-validation (`cross_val_predict`), since with few examples the best
threshold is noise (Lipton et al. 2014).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from homespun.config import Config
from homespun.data.labels import Labels
from homespun.metrics.classification import Metrics

Average = Literal["micro_f1", "macro_f1"]
Probabilities = NDArray[np.float64]
Truth = NDArray[np.int64]
Rows = NDArray[np.int64]  # row numbers
_BINS = 15
_MAX_TEMPERATURE = 20.0  # beyond it the logits are uninformative
MIN_EXAMPLES = 30  # validation examples needed for calibration
Logits = NDArray[np.float64]
_FOLDS = 5
_HALF = 0.5


class DecisionRule(Config):
    """Temperature and thresholds, calibrated on validation examples and stored with the model."""

    temperature: float = Field(default=1.0, gt=0, description="divisor of the logits")
    thresholds: tuple[Annotated[float, Field(ge=0, le=1)], ...] | None = Field(
        default=None, description="multi-label: probability threshold of each label; default: 0.5"
    )


DEFAULT_RULE = DecisionRule()


def probabilities(
    logits: NDArray[np.float32] | NDArray[np.float64], labels: Labels, *, temperature: float = 1.0
) -> NDArray[np.float64]:
    """Softmax of logits / temperature, (rows, classes); sigmoid for multi-label."""
    values = logits.astype(np.float64) / temperature
    if labels.multi_label:
        return np.exp(-np.logaddexp(0.0, -values))
    exponentials = np.exp(values - values.max(axis=1, keepdims=True))  # scipy.special takes 0.1 s to import
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def row_losses(logits: Logits, truth: Truth) -> NDArray[np.float64]:
    """Return (rows,) negative log-likelihood of the labels, in nats.

    Args:
        logits: (rows, classes).
        truth: (rows,) classes; or (rows, classes) zeros and ones, whose losses are averaged over the classes.
    """
    values = np.asarray(logits, dtype=np.float64)
    from scipy.special import log_softmax

    if truth.ndim == 2:
        signed: NDArray[np.float64] = np.where(truth == 1, -values, values)
        return np.asarray(np.logaddexp(0.0, signed).mean(axis=1))
    return np.asarray(-log_softmax(values, axis=1)[np.arange(len(truth)), truth])


def find_temperature(logits: Logits, truth: Truth) -> float:
    """Temperature with the lowest mean of `row_losses`, between 1/20 and 20."""
    from scipy.optimize import minimize_scalar

    limit = np.log(_MAX_TEMPERATURE)
    optimum = minimize_scalar(
        lambda t: float(row_losses(logits / np.exp(t), truth).mean()), bounds=(-limit, limit), method="bounded"
    )
    return float(np.exp(optimum.x))


def cross_val_temperature(logits: Logits, truth: Truth) -> tuple[float, str]:
    """`find_temperature` if cross-validation finds it better than 1; else 1 and the reason."""
    if len(truth) < MIN_EXAMPLES:
        return 1.0, f"{len(truth)} validation examples are too few for a temperature; {MIN_EXAMPLES} are needed"

    def find(rows: Rows) -> Callable[[Rows], NDArray[np.float64]]:
        temperature = find_temperature(logits[rows], truth[rows])
        return lambda others: row_losses(logits[others] / temperature, truth[others])

    if cross_val_predict(len(truth), find).mean() >= row_losses(logits, truth).mean():
        return 1.0, "no temperature improved the cross-validated likelihood"
    temperature = find_temperature(logits, truth)
    if not 1.01 / _MAX_TEMPERATURE < temperature < _MAX_TEMPERATURE / 1.01:
        return 1.0, "the best temperature differs from 1 by more than a factor of 20: the logits are uninformative"
    return temperature, ""


def measure_calibration(logits: Logits, truth: Truth, temperature: float) -> Metrics:
    """`reliability` and ``log_loss`` ``before`` and ``after`` division of the logits by the temperature.

    Multi-label: each label of each text counts as a prediction.
    """
    return {"before": _measure(logits, truth), "after": _measure(logits / temperature, truth)}


def _measure(logits: Logits, truth: Truth) -> Metrics:
    from scipy.special import expit, softmax

    if truth.ndim == 2:
        metrics = reliability(expit(logits).ravel(), truth.ravel() == 1)
    else:
        probabilities = softmax(logits, axis=1)
        metrics = reliability(probabilities.max(axis=1), probabilities.argmax(axis=1) == truth)
    return {"log_loss": float(row_losses(logits, truth).mean())} | metrics


def reliability(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> Metrics:
    """Reliability of (n,) confidences in 15 bins of equal width (Guo et al. 2017).

    Returns:
        ``ece``, the expected calibration error; ``bins``, the mean ``confidence``, the accuracy ``right`` and the
            ``count`` of each non-empty bin.
    """
    numbers = np.minimum((confidence * _BINS).astype(np.int64), _BINS - 1)
    bins = [
        {"confidence": float(confidence[mask].mean()), "right": float(right[mask].mean()), "count": int(mask.sum())}
        for mask in (numbers == number for number in np.unique(numbers))
    ]
    error = sum(one["count"] * abs(one["confidence"] - one["right"]) for one in bins) / max(1, len(confidence))
    return {"ece": error, "bins": bins}


def best_threshold(probabilities: Probabilities, truth: Truth) -> float:
    """Threshold with the highest F1 of (n,) probabilities against (n,) zeros and ones, midway between two
    probabilities.

    Of equal ones the nearest to one half; one half if no label is 1.
    """
    order = np.argsort(-probabilities, kind="stable")
    values, hits = probabilities[order], np.cumsum(truth[order])
    if not len(values) or not hits[-1]:
        return _HALF
    f1 = 2 * hits / (np.arange(1, len(values) + 1) + hits[-1])
    last = np.append(values[1:] < values[:-1], True)  # equal probabilities have one threshold
    cuts = (values + np.append(values[1:], 0.0)) / 2
    best = np.flatnonzero(last & (f1 >= f1[last].max() - 1e-12))
    return float(cuts[best[np.abs(cuts[best] - _HALF).argmin()]])


def find_thresholds(
    probabilities: Probabilities, truth: Truth, *, scope: Literal["global", "per_label"], average: Average
) -> tuple[float, ...]:
    """Return (labels,) thresholds for (rows, labels) probabilities and zeros and ones.

    ``global`` is one threshold for all. ``per_label`` optimises each label for macro F1; for micro F1 the labels in
    turn, with the others fixed, until none changes (Fan and Lin 2007).
    """
    labels = int(probabilities.shape[1])
    if not len(truth):  # the other folds of one row
        return (_HALF,) * labels
    if scope == "global":
        if average == "micro_f1":
            return (best_threshold(probabilities.ravel(), truth.ravel()),) * labels
        cuts = np.unique(np.quantile(probabilities, np.linspace(0, 1, 201)))
        scores = [f1(probabilities, truth, (float(cut),) * labels, average) for cut in cuts]
        near = np.flatnonzero(np.array(scores) >= max(scores) - 1e-12)
        return (float(cuts[near[np.abs(cuts[near] - _HALF).argmin()]]),) * labels
    thresholds = [best_threshold(p, t) for p, t in zip(probabilities.T, truth.T, strict=True)]
    return tuple(thresholds) if average == "macro_f1" else _coordinate_ascent(probabilities, truth, thresholds)


def _coordinate_ascent(probabilities: Probabilities, truth: Truth, thresholds: list[float]) -> tuple[float, ...]:
    predicted, positives = probabilities > np.array(thresholds), int(truth.sum())
    hits, counts = (predicted & (truth == 1)).sum(axis=0), predicted.sum(axis=0)  # (labels,)
    for _ in range(10):
        changed = False
        for label, column in enumerate(probabilities.T):
            order = np.argsort(-column, kind="stable")
            values = column[order]
            label_hits = np.concatenate([[0], np.cumsum(truth[order, label])])  # correct by number of predicted rows
            other_hits, others = hits.sum() - hits[label], counts.sum() - counts[label] + positives
            scores = 2 * (other_hits + label_hits) / np.maximum(1, others + np.arange(len(label_hits)))
            boundary = np.concatenate([[True], values[1:] < values[:-1], [True]])  # between different values
            cuts = np.concatenate([[1.0], (values[1:] + values[:-1]) / 2, [0.0]])
            current = scores[int((column > thresholds[label]).sum())]
            best = int(np.where(boundary, scores, -1.0).argmax())
            if scores[best] > current + 1e-12:
                thresholds[label], changed = float(cuts[best]), True
                chosen = column > thresholds[label]
                hits[label], counts[label] = (chosen & (truth[:, label] == 1)).sum(), chosen.sum()
        if not changed:
            break
    return tuple(thresholds)


def f1(probabilities: Probabilities, truth: Truth, thresholds: tuple[float, ...], average: Average) -> float:
    """F1 of the thresholds; 0 for a label without positives and predictions, as in scikit-learn."""
    return _f1(probabilities > np.array(thresholds), truth, average)


def _f1(predicted: NDArray[np.bool_], truth: Truth, average: Average) -> float:
    axis = 0 if average == "macro_f1" else None
    hits = (predicted & (truth == 1)).sum(axis=axis)
    return float(np.mean(2 * hits / np.maximum(1, predicted.sum(axis=axis) + truth.sum(axis=axis))))


def cross_val_predict(rows: int, find: Callable[[Rows], Callable[[Rows], NDArray[np.float64]]]) -> NDArray[np.float64]:
    """Return (rows, ...) predictions by five-fold cross-validation.

    ``find`` maps training rows to a function that maps test rows to their predictions.
    """
    parts = np.arange(rows) % _FOLDS
    np.random.default_rng(0).shuffle(parts)
    folds = [fold for part in range(_FOLDS) if len(fold := np.flatnonzero(parts == part))]
    values = np.concatenate([find(np.setdiff1d(np.arange(rows), fold))(fold) for fold in folds])
    return values[np.argsort(np.concatenate(folds))]


def cross_val_f1(
    probabilities: Probabilities, truth: Truth, *, scope: Literal["global", "per_label"], average: Average
) -> float:
    """Cross-validated F1 of thresholds."""

    def find(rows: Rows) -> Callable[[Rows], NDArray[np.float64]]:
        cuts = np.array(find_thresholds(probabilities[rows], truth[rows], scope=scope, average=average))
        return lambda others: (probabilities[others] > cuts).astype(np.float64)

    return _f1(cross_val_predict(len(truth), find) > 0, truth, average)
