"""Metrics of numbers and ratings against scipy's, scikit-learn's, and values worked out by hand."""

import json

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import log_loss

from homespun.metrics.regression import correlation, ordinal_regression_metrics, regression_metrics

DRAW = np.random.default_rng(5)
TRUTH = DRAW.normal(size=31).round(1)  # with ties
PREDICTED = TRUTH + DRAW.normal(size=31)


def test_correlations_are_scipys() -> None:
    metrics = regression_metrics(TRUTH, PREDICTED)
    assert metrics["pearson"] == pytest.approx(stats.pearsonr(TRUTH, PREDICTED).statistic)
    assert metrics["spearman"] == pytest.approx(stats.spearmanr(TRUTH, PREDICTED).statistic)
    assert metrics["rows"] == 31
    assert json.loads(json.dumps(metrics)) == metrics


def test_errors_by_hand() -> None:
    metrics = regression_metrics(np.array([1.0, 2.0, 5.0]), np.array([2.0, 2.0, 3.0]))
    assert metrics["absolute_error"] == pytest.approx(1.0)
    assert metrics["squared_error"] == pytest.approx(5 / 3)


def test_a_constant_correlates_with_nothing() -> None:
    assert correlation(TRUTH, np.full(31, 2.0)) is None
    assert correlation(TRUTH[:1], PREDICTED[:1]) is None
    assert regression_metrics(TRUTH, np.full(31, 2.0))["spearman"] is None
    with pytest.raises(ValueError, match="not empty"):
        regression_metrics(np.array([]), np.array([]))


def test_ratings_are_scikit_learns() -> None:
    truth, predicted = DRAW.integers(0, 5, size=41), DRAW.integers(0, 5, size=41)
    probabilities = DRAW.dirichlet(np.ones(5), size=41)
    levels = (1.0, 2.0, 3.0, 4.0, 5.0)
    metrics = ordinal_regression_metrics(levels, truth, predicted, probabilities=probabilities)
    assert metrics["log_loss"] == pytest.approx(log_loss(truth, probabilities, labels=range(5)))
    assert metrics["accuracy"] == pytest.approx((truth == predicted).mean())
    assert metrics["absolute_error"] == pytest.approx(np.abs(truth - predicted).mean())
    assert metrics["confusion"]["labels"] == ["1", "2", "3", "4", "5"]
    assert np.sum(metrics["confusion"]["counts"]) == 41


def test_uneven_levels_are_distances_in_their_own_units() -> None:
    metrics = ordinal_regression_metrics((0.0, 1.0, 10.0), np.array([0, 1, 2]), np.array([2, 1, 1]))
    assert metrics["absolute_error"] == pytest.approx(19 / 3)
    assert metrics["within_one"] == pytest.approx(2 / 3)
    right = np.array([0, 1, 2])
    finer = ordinal_regression_metrics((0.0, 1.0, 10.0), right, right, expected=np.array([0.5, 1, 9]))
    assert finer["absolute_error"] == 0
    assert finer["squared_error"] == pytest.approx(1.25 / 3)


@pytest.mark.parametrize(
    ("truth", "ranks", "kappa"),
    [("00", "00", None), ("00", "11", 0), ("0011", "0011", 1), ("0011", "1100", -1), ("0023", "0223", 1 - 4 / 12.5)],
)
def test_kappa_by_hand(truth: str, ranks: str, kappa: float | None) -> None:
    given = (np.array([*map(int, digits)]) for digits in (truth, ranks))
    metrics = ordinal_regression_metrics((1.0, 2.0, 3.0, 4.0), *given)
    assert metrics["quadratic_kappa"] == (kappa if kappa is None else pytest.approx(kappa))
