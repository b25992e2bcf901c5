"""Figures of runs, comparisons and word vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import JsonValue

from homespun.report import formats
from homespun.report.figure import DASHES, INK, PALETTE, Curve, Look, Plot, drawing, log_ticks, shorten, style
from homespun.report.formats import Writer, baseline_title, metric_title, number, term_title
from homespun.report.records import Point, RunRecord, Series, Tree, average, loss_terms
from homespun.report.tables import baselines_of_curve, points_of_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from homespun.report.comparison_quality import TaskComparison
    from homespun.report.comparison_tables import Ablation, ByLength, Cost

MAX_POINTS = 800
_NATS = {"generator", "discriminator", "mlm", "causal", "next_sentence"}
_BASELINE = "#5a5a57"
_LOG_RATIO = 8  # ratio of the largest to the smallest value, from which an axis is logarithmic


@dataclass(frozen=True)
class Axis:
    """Quantity of a horizontal axis."""

    name: str
    label: Callable[[float], tuple[float, str]]  # maps the largest value to the unit to divide by and the title
    of: Callable[[Point], float]


def _time_unit(largest: float) -> tuple[float, str]:
    for size, unit in ((3600.0, "hours"), (60.0, "minutes")):
        if largest >= 2 * size:
            return size, f"time of training, {unit}"
    return 1.0, "time of training, seconds"


def _token_unit(largest: float) -> tuple[float, str]:
    return (1e6, "tokens seen, millions") if largest >= 2e6 else (1.0, "tokens seen")


BY_STEP = Axis("step", lambda largest: (1.0, "step"), lambda point: point.step)
BY_TIME = Axis("time", _time_unit, lambda point: point.seconds)
BY_TOKENS = Axis("tokens", _token_unit, lambda point: point.tokens)


@dataclass(frozen=True)
class Line:
    """Mean of runs, drawn as one line; several runs have a band from the lowest to the highest validation loss."""

    name: str
    look: Look
    records: Sequence[RunRecord]


@dataclass(frozen=True)
class _Losses:
    line: Line
    train: Series
    validation: Series = field(default_factory=list)
    bounds: Sequence[Sequence[float]] = ((), ())


def loss_plots(lines: Sequence[Line], axes: Sequence[Axis], prefix: str) -> list[Plot]:
    """Draw each loss term and the total along each of the axes; all runs have the same terms."""
    plots = []
    means = [average(line.records, line.name) for line in lines]
    terms = loss_terms(lines[0].records[0])
    # a single term is the total loss
    for term in [*terms, "loss"] if len(terms) > 1 else ["loss"]:
        named = terms[0] if len(terms) == 1 else term
        title = f"{term_title(named)} loss" if named != "loss" else "overall loss" if terms else "loss"
        file = "overall" if named == "loss" else "".join(c if c.isascii() and c.isalnum() else "-" for c in named)[:40]
        losses = [_losses(line, mean, term) for line, mean in zip(lines, means, strict=True)]
        if any(one.train or one.validation for one in losses):
            for axis in axes:
                caption = f"{formats.capitalized(title)} by {axis.name}"
                ylabel = f"{title} (nats)" if named in _NATS else title
                plots.append(_draw(f"{prefix}{file}-by-{axis.name}", caption, ylabel, losses, axis))
    return plots


def _losses(line: Line, mean: RunRecord, term: str) -> _Losses:
    several = line.records if len(line.records) > 1 else ()
    ranges = [[point.value for point in r.validation[term]] for r in several if term in r.validation]
    bounds = [[pick(column) for column in zip(*ranges, strict=False)] for pick in (min, max)]
    train = mean.train.get(term, [])
    smoothed = smooth(np.array([point.value for point in train])).tolist()
    smooth_train = [point._replace(value=value) for point, value in zip(train, smoothed, strict=True)]
    return _Losses(line, smooth_train, mean.validation.get(term, []), bounds)


def learning_rate_plot(lines: Sequence[Line], name: str) -> Plot | None:
    """Draw the learning rate of the first run of each line by step."""
    rates = [_Losses(line, rate) for line in lines if (rate := line.records[0].learning_rate)]
    return _draw(name, "Learning rate by step", "learning rate", rates, BY_STEP, height=1.9) if rates else None


def _draw(name: str, caption: str, ylabel: str, losses: Sequence[_Losses], axis: Axis, height: float = 2.9) -> Plot:
    largest = max((axis.of(point) for one in losses for point in (*one.train, *one.validation)), default=0.0)
    unit, xlabel = axis.label(largest)
    with drawing(name, caption, xlabel=xlabel, ylabel=ylabel, height=height) as canvas:
        for one in losses:
            look, run = one.line.look, one.line.name
            (x, y), (vx, vy) = (
                (_thin([axis.of(point) / unit for point in series]), _thin([point.value for point in series]))
                for series in (one.train, one.validation)
            )
            labels = ("" if len(vx) else run, run) if len(losses) > 1 else ("train", "validation")
            if len(losses) == 1 and not (len(vx) and len(x)):
                labels = ("", "")
            canvas.draw(Curve(x, y, replace(look, marker="_" if len(x) == 1 else ""), labels[0], alpha=0.75))
            lows, highs = map(_thin, one.bounds)
            band = (lows, highs) if len(lows) and len(lows) == len(vx) else None
            size = 4.0 if len(vx) < 40 else 2.0
            canvas.draw(Curve(vx, vy, replace(look, marker="o"), labels[1], width=0.6, size=size, band=band))
        canvas.axes.xaxis.set_major_formatter(lambda value, _: formats.tick(value))
        canvas.axes.margins(x=0.01)
    return canvas.plot


def smooth(values: np.ndarray) -> np.ndarray:
    """Compute the centred moving mean over 4 % of the points, ``(points,)``."""
    half = len(values) // 50
    sums = np.concatenate([[0.0], np.cumsum(values)])
    positions = np.arange(len(values))
    first, last = np.maximum(positions - half, 0), np.minimum(positions + half + 1, len(values))
    return (sums[last] - sums[first]) / (last - first)


def _thin(values: Sequence[float]) -> np.ndarray:
    """Select at most `MAX_POINTS` values, including the first and the last."""
    if len(values) <= MAX_POINTS:
        return np.array(values)
    return np.array(values)[np.linspace(0, len(values) - 1, MAX_POINTS).round().astype(int)]


def length_histogram(rows: Sequence[Mapping[str, JsonValue]], name: str, caption: str) -> Plot | None:
    """Draw histograms of lengths on a logarithmic axis, one strip for each class, each scaled to its own height."""
    drawn = []
    for row in rows:
        histogram = row.get("histogram")
        if isinstance(histogram, dict) and histogram.keys() >= {"edges", "counts"}:
            edges, counts = (np.asarray(histogram[key], dtype=float) for key in ("edges", "counts"))
            if len(edges) == len(counts) + 1 and counts.sum():
                drawn.append((str(row.get("class") or row.get("split") or "all"), edges, counts))
    if not drawn:
        return None
    with drawing(name, caption, xlabel="tokens", height=0.34 * len(drawn) + 0.9) as canvas:
        axes = canvas.axes
        for i, (_, edges, counts) in enumerate(reversed(drawn)):
            # the bars of short lengths are narrower: density over the logarithm, as on the axis
            density = counts / np.maximum(np.diff(np.log(np.maximum(edges, 0.5))), 1e-9)
            height = np.append(density, density[-1]) / density.max() * 0.86
            axes.fill_between(edges, i + height, i, step="post", color=PALETTE[0], alpha=0.75, linewidth=0)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_yticks(range(len(drawn)), labels=[shorten(label) for label, *_ in reversed(drawn)])
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(-0.05, len(drawn))
    return canvas.plot


def curve_plot(record: RunRecord, name: str) -> Plot | None:
    """Draw a learning curve with baselines; None for fewer than two numbers of examples."""
    points, measure = points_of_curve(record), record.measures[0]
    if len(points) < 2:
        return None
    title, sizes = metric_title(measure), [float(point.examples) for point, _ in points]
    bars = [deviation or 0.0 for _, (_, deviation) in points]
    with drawing(
        name, f"{title} by the number of training examples", xlabel="training examples", ylabel=title
    ) as canvas:
        canvas.draw(Curve(sizes, [mean for _, (mean, _) in points], Look(PALETTE[0]), record.name, 1.5, bars=bars))
        for index, line in enumerate(baselines_of_curve(points), start=1):
            measured = [
                (float(p.examples), p.baselines[line].number(measure)) for p, _ in points if line in p.baselines
            ]
            known = [(x, y) for x, y in measured if y is not None]
            look = Look(PALETTE[index % len(PALETTE)], "--", "")
            canvas.draw(Curve([x for x, _ in known], [y for _, y in known], look, baseline_title(line)))
        canvas.axes.set_xscale("log")
        canvas.axes.set_xticks(sizes, _tick_labels(sizes))
        canvas.axes.minorticks_off()
    return canvas.plot


def _tick_labels(sizes: Sequence[float]) -> list[str]:
    """Label increasing sizes on a logarithmic axis; empty where the next label would overlap."""
    room = 0.13 * np.log(max(sizes) / min(sizes))
    labels, beyond = [], np.inf
    for size in reversed(sizes):
        fits = beyond - np.log(size) > room
        labels.append(f"{size:,.0f}" if fits else "")
        beyond = np.log(size) if fits else beyond
    return labels[::-1]


def in_context_plot(result: Tree) -> Plot:
    """Draw accuracy by the number of examples in the prompt, at equal distances, with the range over draws."""
    found, majority = result["shots"], float(result["majority"])
    caption = "Accuracy by examples in the prompt, with TF-IDF and the majority class"
    with drawing("in-context-accuracy", caption, xlabel="examples in the prompt", ylabel="accuracy") as canvas:
        for name, key, colour in (("prompted", "accuracy", PALETTE[0]), ("TF-IDF", "tfidf", PALETTE[1])):
            positions = [position for position, one in enumerate(found) if key in one]
            draws = [[draw[key] for draw in found[position]["draws"]] for position in positions]
            band = [*map(min, draws)], [*map(max, draws)]
            canvas.draw(Curve(positions, [*map(fmean, draws)], Look(colour), name, band=band))
        canvas.draw(Curve((), [majority], Look(PALETTE[2], "--", ""), "majority"))
        canvas.axes.set_xticks(range(len(found)), [str(one["shots"]) for one in found])
    return canvas.plot


def tradeoff_plot(task: TaskComparison, cost: Cost, looks: Mapping[str, Look], name: str) -> Plot:
    """Draw quality against cost with deviations and the Pareto front; baselines are dotted lines.

    Baselines far below all variants are not drawn, since the variants would merge: further than the variants differ.
    """
    quality = {c.name: c.spread for c in task.candidates}
    points = {name: (x, *found) for name, x in cost.values.items() if (found := quality[name]) is not None}
    means = [mean for _, mean, _ in points.values()]
    floor = min(means) - max(max(means) - min(means), 0.01)
    levels = {c.name: c.mean for c in task.candidates if c.kind == "baseline" and c.mean and c.mean >= floor}
    caption = f"{task.name}: {task.title} against {cost.title}"
    with drawing(name, caption, xlabel=cost.title, ylabel=f"{task.title}, %") as canvas:
        axes = canvas.axes
        for model, (x, mean, deviation) in points.items():
            bars = [deviation] if deviation else None
            canvas.draw(Curve([x], [mean], replace(looks[model], dash=""), model, size=6.0, bars=bars))
        largest, smallest = max(cost.values.values()), min(cost.values.values())
        x_front, y_front, _ = zip(*(points[model] for model in cost.front), strict=True)
        steps = [*x_front, largest], [*y_front, y_front[-1]]
        axes.step(*steps, where="post", color=INK, linewidth=0.8, linestyle="-", zorder=0, alpha=0.55)
        for baseline, level in levels.items():
            canvas.draw(Curve((), [level], Look(_BASELINE, ":", ""), baseline))
        if smallest > 0 and largest / smallest >= _LOG_RATIO:
            axes.set_xscale("log")
            axes.minorticks_off()
            axes.set_xticks(log_ticks(smallest / 1.3, largest * 1.3))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.4g}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}")
        axes.margins(x=0.08, y=0.08)
    return canvas.plot


def by_length_plot(
    costs: Mapping[str, ByLength], looks: Mapping[str, Look], title: str, name: str, unit: float
) -> Plot | None:
    """Draw a cost of inference by length on logarithmic axes, with the range over trials.

    None for fewer than two lengths.
    """
    lengths = sorted({length for measured in costs.values() for length in measured})
    if len(lengths) < 2:
        return None
    with drawing(name, f"{title} by length", xlabel="tokens a text", ylabel=title) as canvas:
        axes = canvas.axes
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for variant, measured in costs.items():
            x = sorted(measured)
            means, lows, highs = (np.array([pick(measured[at]) for at in x]) / unit for pick in (fmean, min, max))
            bars = [(means - lows).tolist(), (highs - means).tolist()]
            canvas.draw(Curve(x, means, looks[variant], variant, bars=bars))
        axes.set_xticks(lengths, labels=[f"{length:,.0f}" for length in lengths])
        axes.minorticks_off()
        ticks = log_ticks(*axes.get_ylim())
        axes.set_yticks(ticks, labels=[f"{tick:,.10g}" for tick in ticks])
    return canvas.plot


def ablation_plot(found: Ablation, title: str, name: str, write: Writer) -> Plot:
    """Draw quality by one setting, with deviations."""
    values = list({repr(value): value for line in found.lines.values() for value, *_ in line}.values())
    known = sorted(n for value in values if (n := number(value)) is not None)
    if len(known) == len(values):
        values = sorted(values, key=lambda value: number(value) or 0.0)
    logarithmic = len(known) == len(values) and known[0] > 0 and known[-1] / known[0] >= _LOG_RATIO
    positions = {repr(value): known[i] if logarithmic else float(i) for i, value in enumerate(values)}
    caption = f"{title} along {found.setting}"
    with drawing(name, caption, xlabel=found.setting, ylabel=title, height=2.6) as canvas:
        axes = canvas.axes
        if logarithmic:
            axes.set_xscale("log", base=2)
        for i, (shared, line) in enumerate(found.lines.items()):
            look = Look(PALETTE[i % len(PALETTE)], DASHES[i // len(PALETTE) % len(DASHES)])
            x, means = [positions[repr(value)] for value, *_ in line], [mean for _, mean, _ in line]
            label = shared if len(found.lines) > 1 else ""
            canvas.draw(Curve(x, means, look, label, bars=[deviation or 0.0 for *_, deviation in line]))
        axes.set_xticks(list(positions.values()), labels=[shorten(formats.text(value)) for value in values])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(lambda value, _: write(value))
        axes.margins(x=0.08)
    return canvas.plot


# positions of a word around its point; the first free one is used
_SIDES: list[tuple[int, int, Literal["left", "right", "center"], Literal["bottom", "top", "center"]]] = [
    (1, 0, "left", "center"),
    (-1, 0, "right", "center"),
    (0, 1, "center", "bottom"),
    (0, -1, "center", "top"),
]
_DISTANCES = (4, 10, 18, 28)  # points
_POINT = 2.0  # pixels around a point that stay free


def draw_embeddings(
    name: str, words: Sequence[str], positions: np.ndarray, *, axes_names: tuple[str, str], title: str
) -> Plot:
    """Draw ``words`` at ``positions``, (words, 2), without overlap; the figure grows with the number of words."""
    from matplotlib.figure import Figure

    side = min(max(5.0, 0.88 * math.sqrt(len(words))), 24.0)
    with style(**{"axes.grid.axis": "both"}):
        figure = Figure(figsize=(side, 0.8 * side), layout="constrained")
        axes = figure.subplots()
        axes.scatter(positions[:, 0], positions[:, 1], s=9, color=PALETTE[0], zorder=3)
        axes.margins(0.12)
        axes.set_xlabel(axes_names[0])
        axes.set_ylabel(axes_names[1])
        axes.set_title(title, loc="left", fontsize=9.5)
        figure.draw_without_rendering()
        _write_words(axes, words, positions)
        caption = f"A map of {len(words)} words: {', '.join(words[:12])}{' ...' if len(words) > 12 else ''}."
        return Plot.of(name, caption, figure)


def _write_words(axes: Axes, words: Sequence[str], positions: np.ndarray) -> None:
    points = axes.transData.transform(positions)
    taken = np.concatenate([points - _POINT, points + _POINT], axis=1)  # (boxes, left bottom right top)
    for word, position in zip(words, positions, strict=True):
        point = (float(position[0]), float(position[1]))
        note = axes.annotate(word, point, xytext=(0, 0), textcoords="offset points", color=INK)
        for distance, (right, up, horizontal, vertical) in product(_DISTANCES, _SIDES):
            note.set_position((right * distance, up * distance))
            note.set_horizontalalignment(horizontal)
            note.set_verticalalignment(vertical)
            box = note.get_window_extent().extents
            if not ((taken[:, :2] <= box[2:]) & (taken[:, 2:] >= box[:2])).all(axis=1).any():
                break
        taken = np.vstack([taken, box])
