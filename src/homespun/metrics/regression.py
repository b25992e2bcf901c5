"""How good told numbers are: metrics of regressions and of ratings in order, as plain values for JSON and the report.

`regression_metrics` gives the first of these keys, `ordinal_regression_metrics` all of them:

| key | what |
|---|---|
| `rows` | examples |
| `absolute_error` | mean distance of what was told from the truth |
| `squared_error` | mean of its square |
| `pearson`, `spearman` | correlation of both, of their ranks; `None` where either is constant |
| `quadratic_kappa` | of ratings: agreement beyond chance, a mistake weighing the square of its distance in levels (Cohen 1968); `None` where all are one level |
| `accuracy`, `within_one` | of ratings: the share that is right, and that is at most one level off |
| `log_loss` | of ratings with probabilities: mean negative log probability of the right one, in nats |
| `confusion` | of ratings: as in `homespun.metrics.classification` |
"""  # noqa: E501  a table

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.metrics import cohen_kappa_score, confusion_matrix

from homespun.metrics.classification import Metrics, log_loss


def regression_metrics(truth: NDArray[np.float64], predicted: NDArray[np.float64]) -> Metrics:
    """The metrics of (rows,) numbers that were ``predicted`` where the ``truth`` is these."""
    if len(truth) == 0 or truth.shape != predicted.shape:
        raise ValueError(f"truth {truth.shape} and what was told {predicted.shape} must be alike and not empty")
    errors = predicted - truth
    return {
        "rows": len(truth),
        "absolute_error": float(np.abs(errors).mean()),
        "squared_error": float(np.square(errors).mean()),
        "pearson": correlation(truth, predicted),
        "spearman": correlation(rankdata(truth), rankdata(predicted)),
    }


def correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float | None:
    """Pearson's, or ``None`` where either side is constant, or there is but one row."""
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return float(np.clip(np.corrcoef(one, other)[0, 1], -1.0, 1.0))


def ordinal_regression_metrics(
    levels: Sequence[float],
    truth: NDArray[np.int64],
    ranks: NDArray[np.int64],
    *,
    expected: NDArray[np.float64] | None = None,
    probabilities: NDArray[np.float64] | None = None,
) -> Metrics:
    """The metrics of ratings.

    Args:
        levels: the ratings, lowest first.
        truth: (rows,) ranks in ``levels``.
        ranks: (rows,) what was told.
        expected: (rows,) ratings between the levels, for squared error and correlations; the ``ranks`` if not given.
        probabilities: (rows, levels), where there are any.
    """
    values = np.array(levels, dtype=np.float64)
    predicted = values[ranks]
    metrics = regression_metrics(values[truth], predicted)
    if expected is not None:
        finer = regression_metrics(values[truth], expected)
        metrics |= {name: finer[name] for name in ("squared_error", "pearson", "spearman")}
    every = np.arange(len(levels))  # levels that do not occur count as distance too
    counts = confusion_matrix(truth, ranks, labels=every)
    percent = 100 * counts / counts.sum(axis=1, keepdims=True).clip(min=1)
    distances = np.abs(truth - ranks)
    metrics |= {
        "quadratic_kappa": float(cohen_kappa_score(truth, ranks, labels=every, weights="quadratic"))
        if np.ptp(np.concatenate([truth, ranks]))
        else None,
        "accuracy": float((distances == 0).mean()),
        "within_one": float((distances <= 1).mean()),
    }
    if probabilities is not None:
        metrics["log_loss"] = log_loss(truth, probabilities)
    names = [f"{level:g}" for level in levels]
    metrics["confusion"] = {"labels": names, "counts": counts.tolist(), "percent": percent.round(2).tolist()}
    return metrics
