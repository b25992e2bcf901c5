import numpy as np
import pytest
from scipy import stats

from homespun.report.significance import (
    SMALLEST,
    bootstrap_interval,
    combine,
    detectable_difference,
    difference_interval,
    holm,
    macro_f1_interval,
    mean_error,
    permutation_test,
    pooled_variance,
    seed_error,
    seed_test,
    wilson_interval,
)


def paired(seed: int, rows: int, first: float, second: float, count: int = 1) -> np.ndarray:
    noise = np.random.default_rng(seed)
    return (noise.binomial(count, first, rows) - noise.binomial(count, second, rows)) / count


def test_one_training_each_is_mcnemars_exact_test() -> None:
    differences = np.array([1.0] * 11 + [-1.0] * 3 + [0.0] * 29)
    expected = stats.binomtest(3, 14, 0.5).pvalue  # of the 14 rows on which they differ
    assert permutation_test(differences, 1.0) == pytest.approx(expected, rel=1e-9)
    assert permutation_test(-differences, 1.0) == permutation_test(differences, 1.0)


@pytest.mark.parametrize("seed", [2, 3, 5])
def test_the_exact_distribution_equals_scipys_over_all_signs(seed: int) -> None:
    differences = paired(seed, 13, 0.8, 0.3, count=3)
    everything = stats.permutation_test(
        (differences,), np.sum, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
    )
    assert permutation_test(differences, 1 / 3) == pytest.approx(everything.pvalue, rel=1e-9)


def test_drawn_signs_agree_with_the_exact_ones_and_are_repeatable() -> None:
    differences = paired(7, 211, 0.60, 0.53)
    drawn = permutation_test(differences, seed=11)
    assert drawn == pytest.approx(permutation_test(differences, 1.0), abs=0.015)
    assert drawn == permutation_test(differences, seed=11)
    assert drawn != permutation_test(differences, seed=12)
    assert permutation_test(np.full(40, 0.37)) == pytest.approx(1 / 10_001)
    uneven = np.array([0.25, -0.1, 0.7, 0.3, 0.2])  # no multiples of the unit
    assert permutation_test(uneven, 1.0, seed=2) == permutation_test(uneven, seed=2)


def test_no_difference_is_certain_and_a_clear_one_is_not_zero() -> None:
    assert permutation_test(np.zeros(17), 1.0) == 1.0
    assert permutation_test(np.array([1.0, -1.0] * 9), 1.0) == pytest.approx(1.0)
    assert permutation_test(np.ones(5000), 1.0) == SMALLEST
    assert permutation_test(np.ones(3), 1.0) == pytest.approx(0.25)  # two of eight


def test_equal_models_are_rejected_at_most_at_the_level() -> None:
    noise = np.random.default_rng(5)
    refused = [permutation_test(noise.integers(-1, 2, 67).astype(float), 1.0) <= 0.05 for _ in range(700)]
    assert 0.02 < np.mean(refused) <= 0.055


def test_bootstrap_intervals_of_a_binomial_and_of_a_constant() -> None:
    differences = np.array([1.0] * 31 + [0.0] * 22)
    expected = tuple(stats.binom.ppf(share, 53, 31 / 53) / 53 for share in (0.025, 0.975))
    assert bootstrap_interval(differences) == pytest.approx(expected, abs=0.02)
    assert bootstrap_interval(differences) == bootstrap_interval(differences)
    assert bootstrap_interval(np.full(19, 0.5)) == (0.5, 0.5)


def test_seed_test_is_students_test_of_two_models() -> None:
    first, second = [0.81, 0.83, 0.85], [0.78, 0.80, 0.82]
    expected = stats.ttest_ind(first, second).pvalue
    assert seed_test(first, second, pooled_variance([first, second])) == pytest.approx(expected)
    constant = seed_test(first, [0.7], pooled_variance([first]), deterministic=(False, True))
    assert constant == pytest.approx(stats.ttest_1samp(first, 0.7).pvalue)
    assert seed_test([0.8], [0.7], pooled_variance([[0.8], [0.7]])) is None


def test_the_variance_is_pooled_but_an_unstable_model_keeps_its_own() -> None:
    steady = [[0.800, 0.801, 0.802], [0.780, 0.781, 0.782], [0.760, 0.761, 0.762]]
    wild = [0.70, 0.80, 0.60]
    assert pooled_variance([*steady, [0.5]]) == (pytest.approx(1e-6), 6)
    variance, freedom = pooled_variance([*steady, wild])
    p = seed_test(steady[0], wild, (variance, freedom))
    t = 0.101 / np.sqrt(variance / 3 + np.var(wild, ddof=1) / 3)
    assert p == pytest.approx(2 * stats.t.sf(t, freedom))


def test_holm_and_combine_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([0.04, 0.01], pairs=3) == pytest.approx(holm([0.04, 0.01, 1.0])[:2])
    assert holm([]) == []
    assert (combine(0.2, 0.01), combine(None, 0.3), combine(None, None)) == (0.2, 0.3, None)


def test_wilson_interval_is_newcombes_example() -> None:
    assert wilson_interval(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998, table I
    assert wilson_interval(1.0, 10)[1] == pytest.approx(1.0)
    assert wilson_interval(0.0, 10)[0] == pytest.approx(0.0)


def test_difference_interval_is_newcombes_and_antisymmetric() -> None:
    # Newcombe 1998, table II, method 10: 10 of 10 against 0 of 10
    assert difference_interval(1.0, 0.0, 10) == pytest.approx((0.6075, 1.0), abs=1e-4)
    low, high = difference_interval(0.91, 0.90, 1000)
    assert difference_interval(0.90, 0.91, 1000) == pytest.approx((-high, -low))
    assert low < 0 < high


def test_the_interval_of_macro_f1_is_that_of_the_accuracy_where_classes_are_alike() -> None:
    counts = np.array([[83, 17, 0], [17, 83, 0], [0, 0, 0]])  # the third class does not occur
    assert macro_f1_interval(counts) == pytest.approx(wilson_interval(0.83, 200), abs=0.01)
    assert macro_f1_interval([[7, 0], [0, 11]]) == (1.0, 1.0)


@pytest.mark.parametrize(("seeds", "pairs"), [(2, 1), (3, 1), (3, 5)])
def test_the_detectable_difference_is_detected_in_four_of_five_comparisons(seeds: int, pairs: int) -> None:
    variance, freedom = 1.7, 2 * (seeds - 1)
    error = seed_error([0.0] * seeds, [0.0] * seeds, variance)
    gap = detectable_difference(error, freedom, pairs=pairs)
    draws = np.random.default_rng(7).normal(scale=np.sqrt(variance), size=(40_000, 2, seeds))
    draws[:, 1] += gap
    tested = stats.ttest_ind(draws[:, 0], draws[:, 1], axis=1)
    assert (tested.pvalue < 0.05 / pairs).mean() == pytest.approx(0.8, abs=0.01)


def test_the_error_of_a_mean_difference_is_that_of_scipy() -> None:
    differences = paired(3, 211, 0.60, 0.53)
    assert mean_error(differences) == (pytest.approx(stats.sem(differences)), 210)
