"""Metrics of regression and ordinal regression, as plain values for JSON and the report.

`regression_metrics` gives the first of these keys, `ordinal_regression_metrics` all of them:

| key | what |
|---|---|
| `rows` | examples |
| `absolute_error` | mean absolute error |
| `squared_error` | mean squared error |
| `pearson`, `spearman` | correlation of both, of their ranks; `None` where either is constant |
| `quadratic_kappa` | of ratings: agreement beyond chance, weighted by the squared distance in levels (Cohen 1968); `None` if all are one level |
| `accuracy`, `within_one` | of ratings: share of exact predictions, and of those at most one level off |
| `log_loss` | of ratings with probabilities: mean negative log probability of the right one, in nats |
| `confusion` | of ratings: as in `homespun.metrics.classification` |
"""  # noqa: E501  a table

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from homespun.metrics.classification import Metrics, confusion, log_loss


def regression_metrics(truth: NDArray[np.float64], predicted: NDArray[np.float64]) -> Metrics:
    """Metrics of (rows,) predicted numbers."""
    from scipy.stats import rankdata

    if len(truth) == 0 or truth.shape != predicted.shape:
        raise ValueError(f"truth {truth.shape} and predictions {predicted.shape} must have the same shape, not empty")
    errors = predicted - truth
    return {
        "rows": len(truth),
        "absolute_error": float(np.abs(errors).mean()),
        "squared_error": float(np.square(errors).mean()),
        "pearson": correlation(truth, predicted),
        "spearman": correlation(rankdata(truth), rankdata(predicted)),
    }


def correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float | None:
    """Pearson correlation; ``None`` if either side is constant, or there is one row."""
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
    """Metrics of ratings.

    Args:
        levels: the ratings, lowest first.
        truth: (rows,) ranks in ``levels``.
        ranks: (rows,) predicted ranks.
        expected: (rows,) ratings between the levels, for squared error and correlations; by default the ``ranks``.
        probabilities: (rows, levels), if any.
    """
    from sklearn.metrics import cohen_kappa_score

    values = np.array(levels, dtype=np.float64)
    predicted = values[ranks]
    metrics = regression_metrics(values[truth], predicted)
    if expected is not None:
        finer = regression_metrics(values[truth], expected)
        metrics |= {name: finer[name] for name in ("squared_error", "pearson", "spearman")}
    every = np.arange(len(levels))  # levels that do not occur count as distance too
    distances, varies = np.abs(truth - ranks), np.ptp(np.concatenate([truth, ranks])) > 0
    kappa = float(cohen_kappa_score(truth, ranks, labels=every, weights="quadratic")) if varies else None
    metrics |= {
        "quadratic_kappa": kappa,
        "accuracy": float((distances == 0).mean()),
        "within_one": float((distances <= 1).mean()),
    }
    if probabilities is not None:
        metrics["log_loss"] = log_loss(truth, probabilities)
    metrics["confusion"] = confusion([f"{level:g}" for level in levels], truth, ranks)
    return metrics
