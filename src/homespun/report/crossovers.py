"""From which length on one model is cheaper than another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from homespun.comparison_results import Crossover

ByLength = Mapping[float, Sequence[float]]
"""Measurements (of several trials) of a cost by length."""


def crossovers(costs: Mapping[str, ByLength]) -> list[Crossover]:
    """Find changes of order between two models along the measured lengths, the shortest first.

    Lengths at which the ranges of the two models' measurements overlap are skipped, so that noise gives no crossover.
    A crossover is interpolated linearly in the logarithms of length and cost.
    """
    found: list[Crossover] = []
    for first, second in itertools.combinations(costs, 2):
        before: tuple[float, float] | None = None  # last length without overlap, log cost ratio
        for length in sorted(costs[first].keys() & costs[second].keys()):
            a, b = costs[first][length], costs[second][length]
            if min(a) <= max(b) and min(b) <= max(a):
                continue
            ratio = math.log(fmean(a) / fmean(b))
            if before is not None and (before[1] > 0) != (ratio > 0):
                share = before[1] / (before[1] - ratio)
                at = math.exp(math.log(before[0]) + share * math.log(length / before[0]))
                cheaper, dearer = (first, second) if ratio < 0 else (second, first)
                found.append(Crossover(cheaper=cheaper, dearer=dearer, length=at, after=before[0], until=length))
            before = length, ratio
    return sorted(found, key=lambda crossing: crossing.length)


def pareto(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Pareto front of ``{name: (cost, quality)}``, the cheapest first."""
    ordered = sorted(points, key=lambda name: (points[name][0], -points[name][1]))
    front: list[str] = []
    for name in ordered:
        same = bool(front) and points[name] == points[front[-1]]
        if not front or same or points[name][1] > points[front[-1]][1]:
            front.append(name)
    return front
