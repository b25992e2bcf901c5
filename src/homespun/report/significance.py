"""Significance tests and confidence intervals for models measured on the same test set.

A difference has two sources of variance: the sample of test examples (`permutation_test`, `bootstrap_interval`) and the
seed of training (`seed_test`). It is significant only if both tests reject (`combine`), after `holm` has corrected for
the number of pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.05
POWER = 0.8
DRAWS = 10_000
SMALLEST = 1e-12  # smaller probabilities are rounding errors of the Fourier transform
_BLOCK = 2**22  # numbers drawn at once

Scores = NDArray[np.float64]


def permutation_test(differences: Scores, unit: float | None = None, *, seed: int = 0) -> float:
    """Compute the two-sided p-value of the paired permutation test.

    This is the probability that random signs give a sum at least as far from 0. If all differences are multiples of
    ``unit``, the distribution of the sum is exact: each group of equal sizes adds a scaled binomial (McNemar's exact
    test if every size is 1). `scipy.stats.permutation_test` samples it, which takes 4 s for 1,000 examples, 800 times
    as long, for each pair of models. Otherwise `DRAWS` sign vectors are drawn, and p is at least ``1 / (1 + DRAWS)``
    (Phipson and Smyth 2010).

    Args:
        differences: (examples,) score of one model minus score of the other.
        unit: 1 / number of averaged trainings, for scores of 0 and 1; None for other scores.
        seed: random seed of the sign vectors.
    """
    from scipy.signal import fftconvolve
    from scipy.stats import binom

    steps = None if unit is None else np.round(np.abs(differences) / unit).astype(np.int64)
    if steps is None or unit is None or not np.allclose(steps * unit, np.abs(differences), rtol=0.0, atol=1e-6 * unit):
        generator, hits, done = np.random.default_rng(seed), 0, 0
        # the tolerance allows for sums of the same numbers in another order
        observed = abs(differences.sum()) - 1e-9 * np.abs(differences).sum()
        while done < DRAWS:
            block = min(DRAWS - done, max(1, _BLOCK // len(differences)))
            signs = 2 * generator.integers(0, 2, (block, len(differences)), dtype=np.int8) - 1
            hits += int((np.abs(signs @ differences) >= observed).sum())
            done += block
        return (1 + hits) / (1 + DRAWS)
    mass = np.ones(1)
    for step, count in zip(*np.unique(steps[steps > 0], return_counts=True), strict=True):
        own = np.zeros(step * count + 1)
        own[::step] = binom.pmf(np.arange(count + 1), count, 0.5)
        mass = fftconvolve(mass, own)
    sums = np.abs(2 * np.arange(len(mass)) - steps.sum())
    return float(np.clip(mass[sums >= abs(round(differences.sum() / unit))].sum(), SMALLEST, 1.0))


def mean_error(differences: Scores) -> tuple[float, int]:
    """Return the standard error of the mean paired difference over test examples, and its degrees of freedom."""
    return float(np.std(differences, ddof=1)) / math.sqrt(len(differences)), len(differences) - 1


def bootstrap_interval(differences: Scores) -> tuple[float, float]:
    """Compute the 95 % interval of the mean paired difference over test examples (paired bootstrap, percentiles)."""
    from scipy.stats import bootstrap

    if not np.ptp(differences):
        return float(differences[0]), float(differences[0])
    batch = max(1, _BLOCK // len(differences))
    interval = bootstrap(
        (differences,), np.mean, n_resamples=DRAWS, batch=batch, method="percentile", confidence_level=1 - LEVEL, rng=0
    ).confidence_interval
    return float(interval.low), float(interval.high)


def macro_f1_interval(counts: ArrayLike) -> tuple[float, float]:
    """Compute the 95 % interval of macro F1 over test examples (bootstrap, percentiles of 2,000 samples).

    ``counts`` is the (classes, classes) confusion matrix, rows are the truth.
    """
    table = np.asarray(counts, dtype=np.int64)
    occupied = table > 0
    generator, total, values = np.random.default_rng(0), int(table.sum()), np.empty(2_000)
    for draw in range(len(values)):
        sample = np.zeros_like(table)
        sample[occupied] = generator.multinomial(total, table[occupied] / total)
        both = sample.sum(axis=0) + sample.sum(axis=1)
        values[draw] = (2 * sample.diagonal()[both > 0] / both[both > 0]).mean()
    low, high = np.quantile(values, [LEVEL / 2, 1 - LEVEL / 2])
    return float(low), float(high)


def pooled_variance(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Compute the variance within groups, pooled over all groups, and its degrees of freedom."""
    freedom = sum(max(0, len(group) - 1) for group in groups)
    squares = sum(float(((np.array(group) - np.mean(group)) ** 2).sum()) for group in groups if len(group) > 1)
    return (squares / freedom, freedom) if freedom else (0.0, 0)


def seed_test(
    first: Sequence[float],
    second: Sequence[float],
    pooled: tuple[float, int],
    *,
    deterministic: Sequence[bool] = (False, False),
) -> float | None:
    """Compute the two-sided p-value of Student's t for two means over seeds; None if no model was trained twice.

    The variance is pooled over all models, since three seeds are too few for one model. A model with a larger variance
    keeps its own, so that stable models do not make an unstable one significant.

    Args:
        first, second: metric of each training.
        pooled: from `pooled_variance`.
        deterministic: whether a model has no variance over seeds, as a baseline.
    """
    from scipy.stats import t

    variance, freedom = pooled
    if not freedom:
        return None
    error = seed_error(first, second, variance, deterministic=deterministic)
    gap = abs(float(np.mean(first)) - float(np.mean(second)))
    if error <= 0.0:
        return 1.0 if gap == 0.0 else SMALLEST
    return max(SMALLEST, 2 * float(t.sf(gap / error, freedom)))


def seed_error(
    first: Sequence[float],
    second: Sequence[float],
    variance: float,
    *,
    deterministic: Sequence[bool] = (False, False),
) -> float:
    """Compute the standard error over seeds of the difference of two means; see `seed_test`."""
    error = 0.0
    for values, fixed in zip((first, second), deterministic, strict=True):
        if not fixed:
            error += max(variance, float(np.var(values, ddof=1)) if len(values) > 1 else 0.0) / len(values)
    return math.sqrt(error)


def detectable_difference(error: float, freedom: int, *, pairs: int = 1) -> float:
    """Compute the smallest true difference that a two-sided t test finds with a probability of `POWER`.

    The level is `LEVEL` / ``pairs``, as in the first step of `holm`; ``error`` is the standard error of the difference
    with ``freedom`` degrees of freedom.
    """
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    critical = float(t.isf(LEVEL / (2 * pairs), freedom))
    return error * float(brentq(lambda shift: nct.sf(critical, freedom, shift) - POWER, 0.0, 3 * critical + 3))


def combine(*probabilities: float | None) -> float | None:
    """Return the largest of the known p-values (intersection-union test, Berger 1982)."""
    return max((p for p in probabilities if p is not None), default=None)


def holm(probabilities: Sequence[float], *, pairs: int | None = None) -> list[float]:
    """Adjust p-values to bound the family-wise error rate (Holm 1979).

    Args:
        probabilities: p-values, in any order.
        pairs: number of tests, if some have no p-value yet, which counts as 1.
    """
    number = len(probabilities) if pairs is None else pairs
    adjusted, worst = [0.0] * len(probabilities), 0.0
    for rank, index in enumerate(sorted(range(len(probabilities)), key=lambda i: probabilities[i])):
        worst = max(worst, min(1.0, (number - rank) * probabilities[index]))
        adjusted[index] = worst
    return adjusted


def wilson_interval(share: float, examples: float) -> tuple[float, float]:
    """Compute the 95 % interval of a share of ``examples`` (Wilson 1927)."""
    from scipy.stats import binomtest

    interval = binomtest(round(share * examples), round(examples)).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def difference_interval(first: float, second: float, examples: float) -> tuple[float, float]:
    """Compute the 95 % interval of ``first - second``, accuracies on ``examples`` each (Newcombe 1998, method 10).

    Both are assumed to be independent: on the same examples the true interval is mostly narrower.
    """
    low_first, high_first = wilson_interval(first, examples)
    low_second, high_second = wilson_interval(second, examples)
    middle = first - second
    return (
        middle - math.hypot(first - low_first, high_second - second),
        middle + math.hypot(high_first - first, second - low_second),
    )
