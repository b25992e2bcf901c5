"""The figures of a comparison: a variation has one colour, line and marker in all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from homespun.report import formats
from homespun.report.comparison_quality import TaskComparison
from homespun.report.comparison_records import Comparison, Variant, average
from homespun.report.crossovers import ByLength
from homespun.report.formats import number
from homespun.report.plots import (
    BY_STEP,
    BY_TIME,
    BY_TOKENS,
    CARD,
    INK,
    LINE,
    PALETTE,
    Curve,
    End,
    Plot,
    draw_terms,
    label_ends,
    render,
    smoothed,
    style,
)
from homespun.report.records import Series, Tree, comparable, loss_terms, pretraining_quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DASHES, _MARKERS = ("-", "--", ":", "-."), ("o", "s", "^", "D", "v", "P", "X")
_BASELINE = "#5a5a57"


@dataclass(frozen=True)
class LineStyle:
    """How a variation is drawn."""

    colour: str
    dash: str
    marker: str


def assign_styles(comparison: Comparison) -> dict[str, LineStyle]:
    """The look of each variation; beyond the seven colours the lines and markers go on."""
    return {
        variant.name: LineStyle(
            PALETTE[i % len(PALETTE)],
            _DASHES[i // len(PALETTE) % len(_DASHES)],
            _MARKERS[(i + i // len(PALETTE)) % len(_MARKERS)],
        )
        for i, variant in enumerate(comparison.variants)
    }


@dataclass
class Canvas:
    """A figure being drawn; ``plot`` is there when it is done."""

    axes: Any
    ends: list[End] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)


@contextmanager
def drawing(name: str, caption: str, lines: int, height: float = 2.9) -> Iterator[Canvas]:
    """Axes to draw on; what is in ``ends`` is named at the right, and the drawn figure is in ``plots``."""
    from matplotlib.figure import Figure

    height = max(height, LINE * (lines + 1) + 0.7)
    with style():
        figure = Figure(figsize=(4.7, height), facecolor=CARD, layout="constrained")
        canvas = Canvas(figure.add_subplot(facecolor=CARD))
        yield canvas
        figure.draw_without_rendering()
        label_ends(canvas.axes, canvas.ends, height)
        canvas.plots.append(Plot(name, caption, render(figure, "svg"), render(figure, "png")))


def groups(comparison: Comparison, stage: str) -> list[list[Variant]]:
    """The variations in groups whose losses of a stage are the same quantity: of the same terms, and in pretraining on
    the same held-out rows, under an objective of the same settings."""
    means = [mean for variant in comparison.variants if (mean := variant.mean(stage)) is not None]
    by_name = {variant.name: variant for variant in comparison.variants}
    found: dict[str, list[Variant]] = {}
    for terms, group in enumerate(comparable(means)):
        for record in group:
            quantity = pretraining_quantity(record) if stage == "pretrain" else str(terms)
            found.setdefault(quantity, []).append(by_name[record.name])
    return list(found.values())


def loss_curves(group: Sequence[Variant], stage: str, styles: Mapping[str, LineStyle], prefix: str) -> list[Plot]:
    """The mean losses of some variations by step, by token and by time, on shared axes. Those that have the same runs
    are one line, which bears all their names."""
    same: dict[tuple[Path, ...], list[Variant]] = {}
    for variant in group:
        same.setdefault(tuple(record.path.resolve() for record in variant.records(stage)), []).append(variant)

    def curve(variants: Sequence[Variant], term: str) -> Curve:
        own, records = styles[variants[0].name], variants[0].records(stage)
        mean = average(records, ", ".join(variant.name for variant in variants))
        empty = Series()
        ranges = [r.validation[term].values for r in records if term in r.validation] if len(records) > 1 else []
        points = min(map(len, ranges), default=0)
        bounds = [[pick(column) for column in zip(*(r[:points] for r in ranges), strict=True)] for pick in (min, max)]
        train, validation = mean.train.get(term, empty), mean.validation.get(term, empty)
        return Curve(mean.name, own.colour, smoothed(train), validation, own.dash, *bounds)

    terms = loss_terms(group[0].records(stage)[0])
    axes = (BY_STEP, BY_TOKENS, BY_TIME)
    return draw_terms(terms, lambda term: [curve(variants, term) for variants in same.values()], axes, prefix)


def tradeoff(
    task: TaskComparison,
    costs: Mapping[str, float],
    front: Sequence[str],
    styles: Mapping[str, LineStyle],
    what: str,
    name: str,
) -> Plot:
    """Quality against a cost (by variation), with deviations and the Pareto front; baselines are dotted levels.

    A baseline as far below all variations as these are apart is not drawn: they would lie in one line.
    """
    means = {c.name: c.mean for c in task.candidates if c.mean is not None}
    points = {c: (cost, means[c]) for c, cost in costs.items()}
    spreads = {c.name: c.spread for c in task.candidates if c.name in points}
    lowest, highest = (pick(quality for _, quality in points.values()) for pick in (min, max))
    floor = lowest - max(highest - lowest, 0.01)
    levels = {c.name: c.mean for c in task.candidates if c.kind == "baseline" and c.mean and c.mean >= floor}
    caption = f"{task.name}: {task.title} against {what}"
    with drawing(name, caption, len(points) + len(levels)) as canvas:
        axes: Axes = canvas.axes
        for candidate, (cost, quality) in points.items():
            spread = spreads[candidate]
            deviation = (spread[1] if spread else None) or 0.0
            own = styles[candidate]
            axes.errorbar(
                [cost],
                [quality],
                [deviation] if deviation else None,
                color=own.colour,
                marker=own.marker,
                markersize=6,
                elinewidth=1.0,
                capsize=2,
            )
            canvas.ends.append(End(quality, candidate, own.colour, marker=own.marker))
        steps = [points[c] for c in front]
        axes.step(
            [x for x, _ in steps] + [max(x for x, _ in points.values())],
            [y for _, y in steps] + [steps[-1][1]],
            where="post",
            color=INK,
            linewidth=0.8,
            linestyle="-",
            zorder=0,
            alpha=0.55,
        )
        for baseline, level in levels.items():
            axes.axhline(level, color=_BASELINE, linewidth=0.9, linestyle=":")
            canvas.ends.append(End(level, baseline, _BASELINE, ":"))
        if min(costs.values()) > 0 and max(costs.values()) / min(costs.values()) >= 8:
            axes.set_xscale("log")
            axes.minorticks_off()
            low, high = min(costs.values()) / 1.3, max(costs.values()) * 1.3
            axes.set_xticks([m * 10.0**e for e in range(-6, 16) for m in (1, 2, 5) if low <= m * 10.0**e <= high])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.4g}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}")
        axes.set_xlabel(what)
        axes.set_ylabel(f"{task.title}, %")
        axes.margins(x=0.08, y=0.08)
    return canvas.plots[0]


def by_length(
    costs: Mapping[str, ByLength], styles: Mapping[str, LineStyle], what: str, name: str, unit: float
) -> Plot | None:
    """A cost in inference by length, both in logarithms; ``None`` without two lengths. Bars span the trials."""
    lengths = sorted({length for measured in costs.values() for length in measured})
    if len(lengths) < 2:
        return None
    with drawing(name, f"{what} by length", len(costs)) as canvas:
        axes: Axes = canvas.axes
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for variant, measured in costs.items():
            own, positions = styles[variant], sorted(measured)
            means = [fmean(measured[position]) / unit for position in positions]
            away = [
                [mean - min(measured[position]) / unit for position, mean in zip(positions, means, strict=True)],
                [max(measured[position]) / unit - mean for position, mean in zip(positions, means, strict=True)],
            ]
            axes.errorbar(
                positions,
                means,
                away,
                color=own.colour,
                linestyle=own.dash,
                marker=own.marker,
                markersize=4,
                linewidth=1.1,
                elinewidth=0.8,
            )
            canvas.ends.append(End(means[-1], variant, own.colour, own.dash))
        axes.set_xticks(lengths, labels=[f"{length:,.0f}" for length in lengths])
        axes.minorticks_off()
        low, high = axes.get_ylim()
        ticks = [m * 10.0**e for e in range(-9, 13) for m in (1, 2, 5) if low <= m * 10.0**e <= high]
        axes.set_yticks(ticks, labels=[f"{tick:,.10g}" for tick in ticks])
        axes.set_xlabel("tokens a text")
        axes.set_ylabel(what)
    return canvas.plots[0]


@dataclass(frozen=True)
class Ablation:
    """Quality along one setting: lines of points ``(value, mean, deviation)``, each with what its points share."""

    setting: str
    lines: Mapping[str, Sequence[tuple[Any, float, float | None]]]


def ablation_plot(found: Ablation, title: str, name: str, write: Callable[[float], str]) -> Plot:
    """Quality along one setting, with deviations."""
    values = list({repr(value): value for line in found.lines.values() for value, *_ in line}.values())
    numeric = all(number(value) is not None for value in values)
    if numeric:
        values.sort()
    logarithmic = numeric and values[0] > 0 and values[-1] / values[0] >= 8
    positions = {repr(value): float(value) if logarithmic else i for i, value in enumerate(values)}
    with drawing(name, f"{title} along {found.setting}", len(found.lines), 2.6) as canvas:
        axes: Axes = canvas.axes
        if logarithmic:
            axes.set_xscale("log", base=2)
        for i, (shared, line) in enumerate(found.lines.items()):
            colour, dash = PALETTE[i % len(PALETTE)], _DASHES[i // len(PALETTE) % len(_DASHES)]
            x = [positions[repr(value)] for value, *_ in line]
            axes.errorbar(
                x,
                [mean for _, mean, _ in line],
                [deviation or 0.0 for *_, deviation in line],
                color=colour,
                linestyle=dash,
                marker="o",
                markersize=4,
                linewidth=1.1,
                capsize=2,
            )
            if len(found.lines) > 1:
                canvas.ends.append(End(line[-1][1], shared, colour, dash))
        axes.set_xticks(list(positions.values()), labels=[_short(formats.text(value)) for value in values])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(lambda value, _: write(value))
        axes.set_xlabel(found.setting)
        axes.set_ylabel(title)
        axes.margins(x=0.08)
    return canvas.plots[0]


def length_histogram(rows: Sequence[Tree], name: str, caption: str) -> Plot | None:
    """How long the texts of each class are: a strip a class under one axis, each to its own height."""
    drawn = [
        (str(row.get("class") or row.get("split") or "all"), histogram["edges"], histogram["counts"])
        for row in rows
        if isinstance(histogram := row.get("histogram"), dict) and histogram.keys() >= {"edges", "counts"}
    ]
    drawn = [(label, edges, counts) for label, edges, counts in drawn if len(edges) == len(counts) + 1 and sum(counts)]
    if not drawn:
        return None
    with drawing(name, caption, 0, 0.34 * len(drawn) + 0.9) as canvas:
        axes: Axes = canvas.axes
        for i, (_, edges, counts) in enumerate(reversed(drawn)):
            # the bars are narrower where lengths are short: a density over the logarithm, as the axis is
            width = np.diff(np.log(np.maximum(edges, 0.5)))
            density = np.array(counts) / np.maximum(width, 1e-9)
            height = np.append(density, density[-1]) / density.max() * 0.86
            axes.fill_between(edges, i + height, i, step="post", color=PALETTE[0], alpha=0.75, linewidth=0)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_yticks(range(len(drawn)), labels=[_short(label) for label, *_ in reversed(drawn)])
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("tokens")
        axes.set_ylim(-0.05, len(drawn))
    return canvas.plots[0]


def _short(label: str) -> str:
    return label if len(label) <= 18 else f"{label[:17]}…"
