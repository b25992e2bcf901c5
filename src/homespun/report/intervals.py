"""How sure one can be of an accuracy, and of the difference of two, from the number of test texts."""

from __future__ import annotations

import math

_Z = 1.959964  # the normal distribution's 97.5 % point


def wilson(accuracy: float, rows: float) -> tuple[float, float]:
    """The 95 % interval of a share seen in ``rows`` trials (Wilson 1927): honest near 0 and 1, and for few rows."""
    centre = (accuracy + _Z**2 / (2 * rows)) / (1 + _Z**2 / rows)
    half = _Z / (1 + _Z**2 / rows) * math.sqrt(accuracy * (1 - accuracy) / rows + _Z**2 / (4 * rows**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def difference(first: float, second: float, rows: float) -> tuple[float, float]:
    """The 95 % interval of ``first - second``, two accuracies over ``rows`` texts each (Newcombe 1998, method 10).

    It takes them for independent. Two classifiers tested on the same texts mostly err on the same ones, so that the
    true interval is narrower: this one errs on the side of caution.
    """
    low_first, high_first = wilson(first, rows)
    low_second, high_second = wilson(second, rows)
    middle = first - second
    return (
        middle - math.hypot(first - low_first, high_second - second),
        middle + math.hypot(high_first - first, second - low_second),
    )
