from __future__ import annotations

import numpy as np
import pytest

from homespun.report.statistics import SMALLEST, bootstrap, both, holm, permutation, pooled, trainings

stats = pytest.importorskip("scipy.stats")


def rights(seed: int, rows: int, first: float, second: float, count: int = 1) -> np.ndarray:
    noise = np.random.default_rng(seed)
    return (noise.binomial(count, first, rows) - noise.binomial(count, second, rows)) / count


def test_one_training_each_is_mcnemars_exact_test() -> None:
    differences = np.array([1.0] * 11 + [-1.0] * 3 + [0.0] * 29)
    expected = stats.binomtest(3, 14, 0.5).pvalue  # of the 14 rows on which they differ
    assert permutation(differences, 1.0) == pytest.approx(expected, rel=1e-9)
    assert permutation(differences, 1.0) == pytest.approx(0.0574, abs=1e-4)
    assert permutation(-differences, 1.0) == permutation(differences, 1.0)


@pytest.mark.parametrize("seed", [2, 3, 5])
def test_the_exact_distribution_is_scipys_over_all_signs(seed: int) -> None:
    differences = rights(seed, 13, 0.8, 0.3, count=3)
    everything = stats.permutation_test(
        (differences,), np.sum, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
    )
    assert permutation(differences, 1 / 3) == pytest.approx(everything.pvalue, rel=1e-9)


def test_drawn_signs_agree_with_the_exact_ones_and_are_the_same_again() -> None:
    differences = rights(7, 211, 0.60, 0.53)
    drawn = permutation(differences, seed=11)
    assert drawn == pytest.approx(permutation(differences, 1.0), abs=0.015)
    assert drawn == permutation(differences, seed=11)
    assert drawn != permutation(differences, seed=12)
    assert permutation(np.full(40, 0.37)) == pytest.approx(1 / 10_001)  # never below what the draws can show


def test_no_difference_is_certain_and_a_clear_one_is_not_zero() -> None:
    assert permutation(np.zeros(17), 1.0) == 1.0
    assert permutation(np.array([1.0, -1.0] * 9), 1.0) == 1.0
    assert permutation(np.ones(5000), 1.0) == SMALLEST
    assert permutation(np.ones(3), 1.0) == pytest.approx(0.25)  # two of eight


def test_the_probability_is_that_of_its_definition_under_no_difference() -> None:
    noise = np.random.default_rng(5)
    refused = [permutation(noise.integers(-1, 2, 67).astype(float), 1.0) <= 0.05 for _ in range(700)]
    assert 0.02 < np.mean(refused) <= 0.055  # at most the level, but for the luck of 700 tries


def test_the_exact_bootstrap_is_what_many_resamples_approach() -> None:
    differences = rights(13, 307, 0.8, 0.7, count=3)
    exact, drawn = bootstrap(differences, 1 / 3), bootstrap(differences, seed=3, draws=40_000)
    assert exact == pytest.approx(drawn, abs=0.0015)
    assert exact[0] < differences.mean() < exact[1]
    theirs = stats.bootstrap((differences,), np.mean, n_resamples=40_000, method="percentile", rng=1)
    assert exact == pytest.approx(tuple(theirs.confidence_interval), abs=0.0015)


def test_the_exact_bootstrap_of_one_of_two_is_a_binomial() -> None:
    differences = np.array([1.0] * 31 + [0.0] * 22)
    low, high = (stats.binom.ppf(share, 53, 31 / 53) / 53 for share in (0.025, 0.975))
    assert bootstrap(differences, 1.0) == pytest.approx((low, high))
    assert bootstrap(np.full(19, 0.5), 0.5) == (0.5, 0.5)


def test_what_is_no_multiple_of_the_unit_is_drawn() -> None:
    differences = np.array([0.25, -0.1, 0.7, 0.3, 0.2])
    assert permutation(differences, 1.0, seed=2) == permutation(differences, seed=2)
    assert bootstrap(differences, 1.0, seed=2) == bootstrap(differences, seed=2)


def test_trainings_are_students_test_where_two_models_are_all() -> None:
    first, second = [0.81, 0.83, 0.85], [0.78, 0.80, 0.82]
    expected = stats.ttest_ind(first, second).pvalue
    assert trainings(first, second, pooled([first, second])) == pytest.approx(expected)
    constant = trainings(first, [0.7], pooled([first]), certain=(False, True))
    assert constant == pytest.approx(stats.ttest_1samp(first, 0.7).pvalue)
    assert trainings([0.8], [0.7], pooled([[0.8], [0.7]])) is None


def test_the_variance_is_shared_but_an_unstable_model_keeps_its_own() -> None:
    steady = [[0.800, 0.801, 0.802], [0.780, 0.781, 0.782], [0.760, 0.761, 0.762]]
    wild = [0.70, 0.80, 0.60]
    assert pooled([*steady, [0.5]]) == (pytest.approx(1e-6), 6)
    variance, freedom = pooled([*steady, wild])
    p = trainings(steady[0], wild, (variance, freedom))
    t = 0.101 / np.sqrt(variance / 3 + np.var(wild, ddof=1) / 3)
    assert p == pytest.approx(2 * stats.t.sf(t, freedom))
    assert p > 0.05


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([]) == []
    assert both(0.2, 0.01) == 0.2
    assert both(None, 0.3) == 0.3
    assert both(None, None) is None
