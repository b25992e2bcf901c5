"""Metrics of regression and ordinal regression, as plain values for JSON and the report.

`regression_metrics` returns the first of these keys, `ordinal_regression_metrics` all of them:

| key | value |
|---|---|
| `rows` | examples |
| `absolute_error` | mean absolute error |
| `squared_error` | mean squared error |
| `pearson`, `spearman` | correlation of numbers and of ranks; `None` if truth or predictions are constant |
| `quadratic_kappa` | agreement of ratings beyond chance, weighted by the squared distance in levels (Cohen 1968); `None` if all are one level |
| `accuracy`, `within_one` | share of exact ratings, and of ratings at most one level off |
| `log_loss` | mean negative log-likelihood of ratings in nats, if there are probabilities |
| `confusion` | as in `homespun.metrics.classification` |
"""  # noqa: E501  a table

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from homespun.data.labels import label_name
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


def correlation(first: NDArray[np.float64], second: NDArray[np.float64]) -> float | None:
    """Pearson correlation; ``None`` if an argument is constant or there is one row."""
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.clip(np.corrcoef(first, second)[0, 1], -1.0, 1.0))


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
        expected: (rows,) expected ratings, for squared error and correlations; by default the ``ranks``.
        probabilities: (rows, levels), if any.
    """
    from sklearn.metrics import cohen_kappa_score

    values = np.array(levels, dtype=np.float64)
    predicted = values[ranks]
    metrics = regression_metrics(values[truth], predicted)
    if expected is not None:
        expected_metrics = regression_metrics(values[truth], expected)
        metrics |= {name: expected_metrics[name] for name in ("squared_error", "pearson", "spearman")}
    numbers = np.arange(len(levels))  # levels that do not occur count in the distances
    distances, varies = np.abs(truth - ranks), np.ptp(np.concatenate([truth, ranks])) > 0
    kappa = float(cohen_kappa_score(truth, ranks, labels=numbers, weights="quadratic")) if varies else None
    metrics |= {
        "quadratic_kappa": kappa,
        "accuracy": float((distances == 0).mean()),
        "within_one": float((distances <= 1).mean()),
    }
    if probabilities is not None:
        metrics["log_loss"] = log_loss(truth, probabilities)
    metrics["confusion"] = confusion(list(map(label_name, levels)), truth, ranks)
    return metrics
