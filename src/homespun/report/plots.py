"""Curves of runs -> figures as SVG and PNG. matplotlib is imported when something is drawn, and without pyplot."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from homespun.report.read import RunRecord, Series, loss_terms
from homespun.report.tables import words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, told apart by colour-blind eyes; without its yellow, which is too pale for a line
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MAX_POINTS = 800
CARD, INK, FAINT = "#fcfcfa", "#333333", "#d9d9d4"
_NATS = {"generator", "discriminator", "mlm", "causal", "next_sentence"}
STYLE: Any = {
    "font.size": 8.5,
    "font.family": "sans-serif",
    "text.parse_math": False,  # names of runs are data: a dollar sign in one is a dollar sign
    "svg.fonttype": "none",  # text stays text: small files, and scripts that matplotlib's font lacks
    "svg.hashsalt": "homespun",  # the same figure gives the same file
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a8a86",
    "axes.labelcolor": INK,
    "xtick.color": "#5a5a57",
    "ytick.color": "#5a5a57",
    "text.color": INK,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
}


@dataclass(frozen=True)
class Plot:
    """A drawn figure: ``name`` is its file name in ``plots/``, ``caption`` what a reader who cannot see it is told."""

    name: str
    caption: str
    svg: bytes
    png: bytes


@dataclass(frozen=True)
class Curve:
    """What one run adds to a figure; ``train`` as it is to be drawn."""

    name: str
    colour: str
    train: Series
    validation: Series


@dataclass(frozen=True)
class _Axis:
    """What a horizontal axis counts."""

    name: str
    label: Callable[[float], tuple[float, str]]  # from the largest value: what to divide by, and what to write
    of: Callable[[Series], list[float]]


def _time_unit(largest: float) -> tuple[float, str]:
    for size, unit in ((3600.0, "hours"), (60.0, "minutes")):
        if largest >= 2 * size:
            return size, f"time of training, {unit}"
    return 1.0, "time of training, seconds"


_AXES = (
    _Axis("step", lambda largest: (1.0, "step"), lambda series: series.steps),
    _Axis("time", _time_unit, lambda series: series.seconds),
)


def colours(records: Sequence[RunRecord]) -> dict[str, str]:
    """The colour of each run, the same in every figure."""
    return {record.name: PALETTE[i % len(PALETTE)] for i, record in enumerate(records)}


def loss_plots(records: Sequence[RunRecord], colour: dict[str, str], prefix: str) -> list[Plot]:
    """A figure for each term of the loss and the whole, by step and by time. ``records`` have the same terms."""
    terms = loss_terms(records[0])
    plots = []
    # the one term of a plain objective is its whole loss: one figure says it
    for term in [*terms, "loss"] if len(terms) > 1 else ["loss"]:
        named = terms[0] if len(terms) == 1 else term
        overall = "overall loss" if terms else "loss"
        title = overall if named == "loss" else f"{words(named)} loss"
        unit = " (nats)" if named in _NATS else ""
        empty = Series()
        curves = [
            Curve(r.name, colour[r.name], _smoothed(r.train.get(term, empty)), r.validation.get(term, empty))
            for r in records
        ]
        for axis in _AXES:
            if any(curve.train.values or curve.validation.values for curve in curves):
                caption = f"{title[0].upper()}{title[1:]} by {axis.name}"
                plots.append(_draw(f"{prefix}{_file(named)}-by-{axis.name}", caption, f"{title}{unit}", curves, axis))
    return plots


def learning_rate_plot(records: Sequence[RunRecord], colour: dict[str, str], name: str) -> Plot | None:
    """The learning rate by step, small."""
    empty = Series()
    curves = [Curve(r.name, colour[r.name], r.learning_rate, empty) for r in records if r.learning_rate.values]
    return _draw(name, "Learning rate by step", "learning rate", curves, _AXES[0], height=1.9) if curves else None


def _file(term: str) -> str:
    return "overall" if term == "loss" else "".join(c if c.isascii() and c.isalnum() else "-" for c in term)[:40]


def _draw(name: str, caption: str, ylabel: str, curves: Sequence[Curve], axis: _Axis, height: float = 2.9) -> Plot:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.7, height), facecolor=CARD, layout="constrained")
        axes = figure.add_subplot(facecolor=CARD)
        largest = max((max(xs) for c in curves for s in (c.train, c.validation) if (xs := axis.of(s))), default=0.0)
        unit, xlabel = axis.label(largest)
        ends: list[tuple[float, str, str]] = []
        for curve in curves:
            x, y = _thin(np.array(axis.of(curve.train)) / unit, np.array(curve.train.values))
            if len(x):
                axes.plot(x, y, color=curve.colour, linewidth=1.0, alpha=0.75)
                if len(x) == 1:
                    axes.plot(x, y, "_", color=curve.colour)
            vx, vy = _thin(np.array(axis.of(curve.validation)) / unit, np.array(curve.validation.values))
            if len(vx):
                size = 4.0 if len(vx) < 40 else 2.0
                axes.plot(vx, vy, "o-", color=curve.colour, markersize=size, linewidth=0.6)
            if len(curves) > 1 and (len(vx) or len(x)):
                ends.append((float(vy[-1] if len(vy) else y[-1]), curve.name, curve.colour))
            elif len(vx) and len(x):
                ends += [(float(y[-1]), "train", curve.colour), (float(vy[-1]), "validation", curve.colour)]
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}" if abs(value) < 1e5 else f"{value / 1e3:,.6g}k")
        axes.margins(x=0.01)
        figure.draw_without_rendering()
        _label_ends(axes, ends, height)
        return Plot(name, caption, render(figure, "svg"), render(figure, "png"))


def _label_ends(axes: Axes, ends: list[tuple[float, str, str]], height: float) -> None:
    """The names of the lines at their right ends, moved apart where they would overlap."""
    if not ends:
        return
    bottom, top = axes.get_ylim()
    gap = 0.165 / (height - 0.7)  # the height of a line of text as a share of the axes
    ends = sorted(ends)
    places = [(value - bottom) / (top - bottom) for value, _, _ in ends]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + gap)
    if (excess := places[-1] - 1.0) > 0:
        places[-1] -= excess
        for i in range(len(places) - 2, -1, -1):
            places[i] = min(places[i], places[i + 1] - gap)
    for place, (_, name, colour) in zip(places, ends, strict=True):
        shown = name if len(name) <= 24 else f"{name[:23]}…"
        axes.text(1.015, place, shown, color=colour, transform=axes.transAxes, verticalalignment="center")


def _smoothed(series: Series) -> Series:
    return Series(series.steps, series.seconds, smooth(np.array(series.values)).tolist())


def smooth(values: np.ndarray) -> np.ndarray:
    """The centred mean over 4 % of the points, ``(points,)`` to ``(points,)``; at the ends over those there are."""
    half = len(values) // 50
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    first, last = np.maximum(places - half, 0), np.minimum(places + half + 1, len(values))
    smoothed: np.ndarray = (sums[last] - sums[first]) / (last - first)
    return smoothed


def _thin(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most `MAX_POINTS` points, the first and the last among them."""
    if len(x) <= MAX_POINTS:
        return x, y
    kept = np.linspace(0, len(x) - 1, MAX_POINTS).round().astype(int)
    return x[kept], y[kept]


def render(figure: Figure, kind: str) -> bytes:
    """A figure as ``svg`` or ``png``; the same figure gives the same bytes."""
    out = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else None
    figure.savefig(out, format=kind, dpi=160, facecolor=CARD, metadata=metadata)
    return out.getvalue()
