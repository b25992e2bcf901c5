"""Whether two models differ: tests on the same test rows, tests over trainings, and what many comparisons cost.

Two sources of chance are kept apart. *Other texts*: the models as they were trained, another draw of test rows;
`permutation` and `bootstrap` answer for it. *Other trainings*: the same rows, another seed; `trainings` answers for
that. A difference counts only where both say so (`both`), after `holm` has paid for the number of comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.05
"""Below it a difference is told from chance."""

DRAWS = 10_000
SMALLEST = 1e-12  # what the rounding of a Fourier transform leaves of a smaller probability is noise
_LATTICE = 2**22  # points of an exact distribution; beyond, it is drawn from
_BLOCK = 2**22  # numbers drawn at once

Scores = NDArray[np.float64]


def permutation(differences: Scores, unit: float | None = None, *, seed: int = 0, draws: int = DRAWS) -> float:
    """The two-sided probability of a sum of paired differences at least as far from 0, were the two models alike.

    Were they, each row's two scores could as well have been the other's: given the sizes ``|d_i|``, every one of the
    ``2^n`` choices of signs is equally likely, and ``p = P(|sum(+-|d_i|)| >= |sum(d_i)|)`` (Fisher 1935; for text,
    Noreen 1989). Where the differences are whole multiples of ``unit`` that distribution is computed, not drawn: with
    ``k_i = |d_i| / unit`` and ``N = sum(k_i)`` the sum is ``2 T - N`` for ``T = sum(k_i B_i)`` of fair coins ``B_i``,
    whose generating function ``prod((1 + z^k_i) / 2)`` is taken at the ``N + 1`` roots of unity and transformed back
    (Pagano and Tritchler 1983). With one training a model and rows that are right or wrong this is McNemar's exact
    test. Without a unit ``draws`` choices are drawn, and ``p = (1 + hits) / (1 + draws)`` is never below what they can
    show (Phipson and Smyth 2010).

    Args:
        differences: (rows,) score of one model less that of the other, on the same rows.
        unit: what all differences are whole multiples of, where there is such a number.
    """
    sizes = np.abs(differences)
    steps = _whole(sizes, unit)
    if steps is None or steps.sum() + 1 > _LATTICE:
        return _drawn_permutation(differences, seed, draws)
    total, observed = int(steps.sum()), abs(round(float(differences.sum()) / (unit or 1.0)))
    if observed == 0:
        return 1.0
    angles = np.pi * np.arange(total + 1) / (total + 1)
    magnitude, sign = np.zeros(total + 1), np.ones(total + 1)
    with np.errstate(divide="ignore"):
        for step, count in zip(*np.unique(steps[steps > 0], return_counts=True), strict=True):
            cosine = np.cos(step * angles)
            magnitude += count * np.log(np.abs(cosine))
            sign *= np.sign(cosine) ** (count % 2)
    # prod((1 + z^k)/2) at z = exp(2 i angle) is exp(i N angle) prod(cos(k angle))
    transform = sign * np.exp(magnitude) * np.exp(1j * total * angles)
    mass = np.fft.fft(transform).real / (total + 1)
    sums = np.abs(2 * np.arange(total + 1) - total)
    return float(min(1.0, max(SMALLEST, mass[sums >= observed].sum())))


def bootstrap(
    differences: Scores, unit: float | None = None, *, seed: int = 0, draws: int = DRAWS, level: float = LEVEL
) -> tuple[float, float]:
    """The interval of the mean paired difference over other draws of test rows: percentiles of the paired bootstrap.

    Rows are drawn with replacement, both models' scores together (Efron and Tibshirani 1993, chapter 13; for text,
    Koehn 2004; Berg-Kirkpatrick, Burkett and Klein 2012). The bootstrap's distribution is that of the mean of ``n``
    independent draws from the differences seen. Where they are multiples of ``unit`` it is computed: the transform of
    the histogram of ``d_i / unit`` to the power ``n``, transformed back, is the distribution that infinitely many
    resamples would approach. Otherwise ``draws`` resamples are drawn with ``seed``.

    Args:
        differences: (rows,) score of one model less that of the other, on the same rows.
    """
    rows = len(differences)
    steps = _whole(differences, unit)
    if steps is None or unit is None or rows * int(np.ptp(steps)) + 1 > _LATTICE:
        return _drawn_bootstrap(differences, seed, draws, level)
    lowest, span = int(steps.min()), int(np.ptp(steps))
    histogram = np.bincount(steps - lowest, minlength=span + 1) / rows
    size = rows * span + 1
    mass = np.fft.irfft(np.fft.rfft(histogram, size) ** rows, size) if size > 1 else np.ones(1)
    cumulative = np.cumsum(mass.clip(min=0.0))
    cumulative /= cumulative[-1]
    ends = [int(np.searchsorted(cumulative, share)) for share in (level / 2, 1 - level / 2)]
    low, high = ((end + rows * lowest) * unit / rows for end in ends)
    return low, high


def pooled(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """The variance within groups that share one, and its degrees of freedom: ``sum((x - mean)^2) / sum(n - 1)``."""
    freedom = sum(max(0, len(group) - 1) for group in groups)
    squares = sum(float(((np.array(group) - np.mean(group)) ** 2).sum()) for group in groups if len(group) > 1)
    return (squares / freedom, freedom) if freedom else (0.0, 0)


def trainings(
    first: Sequence[float],
    second: Sequence[float],
    spread: tuple[float, int],
    *,
    certain: Sequence[bool] = (False, False),
) -> float | None:
    """The two-sided probability of means this far apart, were both models alike but for the luck of their seeds.

    Student's t with the variance within models pooled over all of them (``spread``, of `pooled`), as in Tukey's and
    Dunnett's comparisons: three trainings each say too little of their own variance. A model whose own trainings
    vary more than that keeps its own, so that an unstable one is never told from others by the steadiness of these.

    Args:
        first, second: a measure of each training.
        certain: whether a model has no luck: a baseline that gives the same again.

    Returns:
        ``None`` where nothing was trained twice, so that the luck is not known.
    """
    from scipy.special import stdtr  # type: ignore[import-untyped,unused-ignore]

    variance, freedom = spread
    if not freedom:
        return None
    error = 0.0
    for values, known in zip((first, second), certain, strict=True):
        if not known:
            own = float(np.var(values, ddof=1)) if len(values) > 1 else 0.0
            error += max(variance, own) / len(values)
    gap = abs(float(np.mean(first)) - float(np.mean(second)))
    if error <= 0.0:
        return 1.0 if gap == 0.0 else SMALLEST
    return max(SMALLEST, 2 * float(stdtr(freedom, -gap / math.sqrt(error))))


def both(texts: float | None, luck: float | None) -> float | None:
    """The larger of two probabilities: a difference that must stand against either chance (Berger 1982: a union of
    null hypotheses is refused where each is). With only one of them known, that one."""
    known = [p for p in (texts, luck) if p is not None]
    return max(known) if known else None


def holm(probabilities: Sequence[float]) -> list[float]:
    """Adjusted probabilities: with all those below ``a`` called differences, the chance that any is none is at most
    ``a``, however the tests depend on each other (Holm 1979): ``max over j <= i of min(1, (m - j + 1) p_(j))``."""
    adjusted, worst = [0.0] * len(probabilities), 0.0
    for rank, place in enumerate(sorted(range(len(probabilities)), key=lambda i: probabilities[i])):
        worst = max(worst, min(1.0, (len(probabilities) - rank) * probabilities[place]))
        adjusted[place] = worst
    return adjusted


def _whole(values: Scores, unit: float | None) -> NDArray[np.int64] | None:
    """``values`` in units, where all are whole numbers of them."""
    if unit is None:
        return None
    counts = np.round(values / unit)
    return counts.astype(np.int64) if np.allclose(counts * unit, values, rtol=0.0, atol=1e-6 * unit) else None


def _drawn_permutation(differences: Scores, seed: int, draws: int) -> float:
    generator = np.random.default_rng(seed)
    observed = abs(float(differences.sum()))
    tolerance = 1e-9 * float(np.abs(differences).sum())  # sums of the same numbers in another order
    hits, done = 0, 0
    while done < draws:
        block = min(draws - done, max(1, _BLOCK // max(1, len(differences))))
        signs = 2 * generator.integers(0, 2, (block, len(differences)), dtype=np.int8) - 1
        hits += int((np.abs(signs @ differences) >= observed - tolerance).sum())
        done += block
    return (1 + hits) / (1 + draws)


def _drawn_bootstrap(differences: Scores, seed: int, draws: int, level: float) -> tuple[float, float]:
    generator = np.random.default_rng(seed)
    rows, means, done = len(differences), np.empty(draws), 0
    while done < draws:
        block = min(draws - done, max(1, _BLOCK // rows))
        means[done : done + block] = differences[generator.integers(0, rows, (block, rows))].mean(axis=1)
        done += block
    low, high = np.quantile(means, [level / 2, 1 - level / 2])
    return float(low), float(high)
