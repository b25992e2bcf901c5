"""From which probability on a text has a label, where it may have several.

Of several labels a text, one half is seldom the best place to cut: a rare label's probabilities hardly get there. The
place is found on examples that the model was not trained on, and kept only where it holds for examples that it was not
found on either (`cross_val_predict`): with few examples the best cut is that of chance (Lipton et al. 2014).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Average = Literal["micro_f1", "macro_f1"]
Probabilities = NDArray[np.float64]
Truth = NDArray[np.int64]
_FOLDS = 5
_HALF = 0.5


def best_threshold(probabilities: Probabilities, truth: Truth) -> float:
    """The cut with the greatest F1 of these (n,) probabilities against (n,) zeros and ones, between two of them.

    Of equal ones, that nearest to one half; one half where nothing is true.
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

    ``global`` is one for all. The best of each label by itself is the best macro F1; for micro F1 the labels are gone
    through, each with the others as they stand, until none moves (Fan and Lin 2007).
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
    """The F1 that the thresholds come to; of a label that is neither true nor predicted it is 0, as in scikit-learn."""
    return _f1(probabilities > np.array(thresholds), truth, average)


def _f1(predicted: NDArray[np.bool_], truth: Truth, average: Average) -> float:
    axis = 0 if average == "macro_f1" else None
    hits = (predicted & (truth == 1)).sum(axis=axis)
    return float(np.mean(2 * hits / np.maximum(1, predicted.sum(axis=axis) + truth.sum(axis=axis))))


def cross_val_predict(
    rows: int,
    find: Callable[[NDArray[np.int64]], Callable[[NDArray[np.int64]], NDArray[np.float64]]],
) -> NDArray[np.float64]:
    """Of each of ``rows``, what is said by something found on others: in five parts, each by what the other four say.

    Args:
        rows: how many there are.
        find: rows -> a function of rows, whose values are what is said of them.
    """
    parts = np.arange(rows) % _FOLDS
    np.random.Generator(np.random.PCG64(0)).shuffle(parts)
    found: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []
    for part in range(_FOLDS):
        inside = np.flatnonzero(parts == part)
        if len(inside):
            found.append((inside, find(np.flatnonzero(parts != part))(inside)))
    first = found[0][1]
    predictions = np.empty((rows, *first.shape[1:]), dtype=np.float64)
    for inside, values in found:
        predictions[inside] = values
    return predictions


def cross_val_f1(
    probabilities: Probabilities, truth: Truth, *, scope: Literal["global", "per_label"], average: Average
) -> float:
    """The F1 on these rows of thresholds that were each found on others of them."""

    def find(rows: NDArray[np.int64]) -> Callable[[NDArray[np.int64]], NDArray[np.float64]]:
        cuts = np.array(find_thresholds(probabilities[rows], truth[rows], scope=scope, average=average))
        return lambda others: (probabilities[others] > cuts).astype(np.float64)

    return _f1(cross_val_predict(len(truth), find) > 0, truth, average)
