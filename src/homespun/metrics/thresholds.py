"""Decision thresholds of multi-label classifiers.

One half is seldom best: probabilities of rare labels hardly reach it. Thresholds are found on validation examples, and
kept only if they hold in cross-validation (`cross_val_predict`): with few examples the best one is noise (Lipton et al.
2014).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Average = Literal["micro_f1", "macro_f1"]
Probabilities = NDArray[np.float64]
Truth = NDArray[np.int64]
Rows = NDArray[np.int64]  # row numbers
_FOLDS = 5
_HALF = 0.5


def best_threshold(probabilities: Probabilities, truth: Truth) -> float:
    """Threshold with the greatest F1 of (n,) probabilities against (n,) zeros and ones, midway between two of them.

    Of equal ones the nearest to one half; one half if nothing is true.
    """
    order = np.argsort(-probabilities, kind="stable")
    values, hits = probabilities[order], np.cumsum(truth[order])
    if not len(values) or not hits[-1]:
        return _HALF
    f1 = 2 * hits / (np.arange(1, len(values) + 1) + hits[-1])
    last = np.append(values[1:] < values[:-1], True)  # equal probabilities are taken together
    cuts = (values + np.append(values[1:], 0.0)) / 2
    best = np.flatnonzero(last & (f1 >= f1[last].max() - 1e-12))
    return float(cuts[best[np.abs(cuts[best] - _HALF).argmin()]])


def find_thresholds(
    probabilities: Probabilities, truth: Truth, *, scope: Literal["global", "per_label"], average: Average
) -> tuple[float, ...]:
    """A threshold a label, for (rows, labels) probabilities and zeros and ones.

    ``global`` is one for all. For macro F1 each label has its own best; for micro F1 the labels are optimized in turn,
    with the others fixed, until none changes (Fan and Lin 2007).
    """
    labels = int(probabilities.shape[1])
    if scope == "global":
        if average == "micro_f1":
            return (best_threshold(probabilities.ravel(), truth.ravel()),) * labels
        cuts = np.unique(np.quantile(probabilities, np.linspace(0, 1, 201)))
        scores = [f1(probabilities, truth, (float(cut),) * labels, average) for cut in cuts]
        near = np.flatnonzero(np.array(scores) >= max(scores) - 1e-12)
        return (float(cuts[near[np.abs(cuts[near] - _HALF).argmin()]]),) * labels
    own = [best_threshold(p, t) for p, t in zip(probabilities.T, truth.T, strict=True)]
    return tuple(own) if average == "macro_f1" else _by_turns(probabilities, truth, own)


def _by_turns(probabilities: Probabilities, truth: Truth, thresholds: list[float]) -> tuple[float, ...]:
    predicted = probabilities > np.array(thresholds)
    for _ in range(10):
        moved = False
        for label, column in enumerate(probabilities.T):
            others = np.delete(np.arange(len(thresholds)), label)
            hits = int((predicted[:, others] & (truth[:, others] == 1)).sum())
            num_predicted = int(predicted[:, others].sum())
            order = np.argsort(-column, kind="stable")
            values = column[order]
            own = np.concatenate([[0], np.cumsum(truth[order, label])])
            scores = 2 * (hits + own) / np.maximum(1, num_predicted + np.arange(len(own)) + truth.sum())
            boundary = np.concatenate([[True], values[1:] < values[:-1], [True]])  # none, up to a change, all
            cuts = np.concatenate([[1.0], (values[1:] + values[:-1]) / 2, [0.0]])
            now = scores[int((column > thresholds[label]).sum())]
            best = int(np.where(boundary, scores, -1.0).argmax())
            if scores[best] > now + 1e-12:
                thresholds[label], moved = float(cuts[best]), True
                predicted[:, label] = column > thresholds[label]
        if not moved:
            break
    return tuple(thresholds)


def f1(probabilities: Probabilities, truth: Truth, thresholds: tuple[float, ...], average: Average) -> float:
    """F1 of the thresholds; 0 for a label that is neither true nor predicted, as in scikit-learn."""
    return _f1(probabilities > np.array(thresholds), truth, average)


def _f1(predicted: NDArray[np.bool_], truth: Truth, average: Average) -> float:
    axis = 0 if average == "macro_f1" else None
    hits = (predicted & (truth == 1)).sum(axis=axis)
    return float(np.mean(2 * hits / np.maximum(1, predicted.sum(axis=axis) + truth.sum(axis=axis))))


def cross_val_predict(rows: int, find: Callable[[Rows], Callable[[Rows], NDArray[np.float64]]]) -> NDArray[np.float64]:
    """(rows, ...) predictions by five-fold cross-validation.

    ``find`` maps training rows to a function that maps test rows to their predictions.
    """
    parts = np.arange(rows) % _FOLDS
    np.random.Generator(np.random.PCG64(0)).shuffle(parts)
    tested = [inside for part in range(_FOLDS) if len(inside := np.flatnonzero(parts == part))]
    values = np.concatenate([find(np.setdiff1d(np.arange(rows), inside))(inside) for inside in tested])
    return values[np.argsort(np.concatenate(tested))]


def cross_val_f1(
    probabilities: Probabilities, truth: Truth, *, scope: Literal["global", "per_label"], average: Average
) -> float:
    """Cross-validated F1 of thresholds."""

    def find(rows: Rows) -> Callable[[Rows], NDArray[np.float64]]:
        cuts = np.array(find_thresholds(probabilities[rows], truth[rows], scope=scope, average=average))
        return lambda others: (probabilities[others] > cuts).astype(np.float64)

    return _f1(cross_val_predict(len(truth), find) > 0, truth, average)
