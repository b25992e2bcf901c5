"""Crossovers and Pareto fronts of costs; figures of comparisons: quality against cost, cost by length, ablations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from homespun.comparison_results import Crossover
from homespun.report import formats
from homespun.report.comparison_quality import TaskComparison
from homespun.report.formats import number
from homespun.report.plots import DASHES, INK, PALETTE, End, LineStyle, Plot, drawing, shorten
from homespun.report.table import Writer

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


Look = dict[str, Any]
"""Keywords of matplotlib."""
_BASELINE = "#5a5a57"
_WIDE = 8  # ratio of the largest to the smallest value from which an axis is logarithmic


@dataclass(frozen=True)
class Cost:
    """Cost of each variant in the unit of the title, and the variants on the Pareto front."""

    kind: str
    title: str
    values: Mapping[str, float]
    front: Sequence[str]


@dataclass(frozen=True)
class Ablation:
    """Quality by one setting: lines of points ``(value, mean, deviation)`` by the settings that a line shares."""

    setting: str
    lines: Mapping[str, Sequence[tuple[object, float, float | None]]]


def tradeoff(task: TaskComparison, cost: Cost, styles: Mapping[str, LineStyle], name: str) -> Plot:
    """Quality against cost with deviations and the Pareto front; baselines are dotted levels.

    A baseline further below all variants than these differ is not drawn, since they would merge into one line.
    """
    quality = {c.name: c.spread for c in task.candidates}
    points = {name: (x, *found) for name, x in cost.values.items() if (found := quality[name]) is not None}
    means = [mean for _, mean, _ in points.values()]
    floor = min(means) - max(max(means) - min(means), 0.01)
    levels = {c.name: c.mean for c in task.candidates if c.kind == "baseline" and c.mean and c.mean >= floor}
    caption = f"{task.name}: {task.title} against {cost.title}"
    with drawing(name, caption, len(points) + len(levels)) as canvas:
        axes = canvas.axes
        for model, (x, mean, deviation) in points.items():
            own, bar = styles[model], [deviation] if deviation else None
            look: Look = {"color": own.colour, "marker": own.marker, "markersize": 6, "elinewidth": 1.0, "capsize": 2}
            axes.errorbar([x], [mean], bar, **look)
            canvas.ends.append(End(mean, model, own.colour, marker=own.marker))
        largest = max(x for x, *_ in points.values())
        x_front, y_front, _ = zip(*(points[model] for model in cost.front), strict=True)
        front: Look = {"color": INK, "linewidth": 0.8, "linestyle": "-", "zorder": 0, "alpha": 0.55}
        axes.step([*x_front, largest], [*y_front, y_front[-1]], where="post", **front)
        for baseline, level in levels.items():
            axes.axhline(level, color=_BASELINE, linewidth=0.9, linestyle=":")
            canvas.ends.append(End(level, baseline, _BASELINE, ":"))
        smallest = min(cost.values.values())
        if smallest > 0 and largest / smallest >= _WIDE:
            axes.set_xscale("log")
            axes.minorticks_off()
            axes.set_xticks(_ticks(smallest / 1.3, largest * 1.3))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.4g}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}")
        axes.set_xlabel(cost.title)
        axes.set_ylabel(f"{task.title}, %")
        axes.margins(x=0.08, y=0.08)
    return canvas.plot


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between two limits."""
    return [m * 10.0**e for e in range(-9, 16) for m in (1, 2, 5) if low <= m * 10.0**e <= high]


def by_length(
    costs: Mapping[str, ByLength], styles: Mapping[str, LineStyle], what: str, name: str, unit: float
) -> Plot | None:
    """Cost of inference by length on logarithmic axes, with the range over trials; None for fewer than two lengths."""
    lengths = sorted({length for measured in costs.values() for length in measured})
    if len(lengths) < 2:
        return None
    with drawing(name, f"{what} by length", len(costs)) as canvas:
        axes = canvas.axes
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for variant, measured in costs.items():
            own, x = styles[variant], sorted(measured)
            means = [fmean(measured[length]) / unit for length in x]
            lows, highs = ([pick(measured[length]) / unit for length in x] for pick in (min, max))
            ranges = [(mean - low, high - mean) for low, mean, high in zip(lows, means, highs, strict=True)]
            look: Look = {"color": own.colour, "linestyle": own.dash, "marker": own.marker, "markersize": 4}
            axes.errorbar(x, means, [*zip(*ranges, strict=True)], linewidth=1.1, elinewidth=0.8, **look)
            canvas.ends.append(End(means[-1], variant, own.colour, own.dash))
        axes.set_xticks(lengths, labels=[f"{length:,.0f}" for length in lengths])
        axes.minorticks_off()
        ticks = _ticks(*axes.get_ylim())
        axes.set_yticks(ticks, labels=[f"{tick:,.10g}" for tick in ticks])
        axes.set_xlabel("tokens a text")
        axes.set_ylabel(what)
    return canvas.plot


def ablation_plot(found: Ablation, title: str, name: str, write: Writer) -> Plot:
    """Quality by one setting, with deviations."""
    values = list({repr(value): value for line in found.lines.values() for value, *_ in line}.values())
    known = sorted(n for value in values if (n := number(value)) is not None)
    if len(known) == len(values):
        values = sorted(values, key=lambda value: number(value) or 0.0)
    logarithmic = len(known) == len(values) and known[0] > 0 and known[-1] / known[0] >= _WIDE
    positions = {repr(value): known[i] if logarithmic else float(i) for i, value in enumerate(values)}
    with drawing(name, f"{title} along {found.setting}", len(found.lines), 2.6) as canvas:
        axes = canvas.axes
        if logarithmic:
            axes.set_xscale("log", base=2)
        for i, (shared, line) in enumerate(found.lines.items()):
            colour, dash = PALETTE[i % len(PALETTE)], DASHES[i // len(PALETTE) % len(DASHES)]
            x, means = [positions[repr(value)] for value, *_ in line], [mean for _, mean, _ in line]
            look: Look = {
                "color": colour,
                "linestyle": dash,
                "marker": "o",
                "markersize": 4,
                "linewidth": 1.1,
                "capsize": 2,
            }
            axes.errorbar(x, means, [deviation or 0.0 for *_, deviation in line], **look)
            if len(found.lines) > 1:
                canvas.ends.append(End(means[-1], shared, colour, dash))
        axes.set_xticks(list(positions.values()), labels=[shorten(formats.text(value)) for value in values])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(lambda value, _: write(value))
        axes.set_xlabel(found.setting)
        axes.set_ylabel(title)
        axes.margins(x=0.08)
    return canvas.plot
