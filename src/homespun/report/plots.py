"""Figures of runs as SVG and PNG; matplotlib is imported on first use, without pyplot."""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import JsonValue

from homespun.report import formats
from homespun.report.formats import term_title
from homespun.report.records import RunRecord, Series, average, loss_terms

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

# palette of Okabe and Ito for colour-blind readers, without its yellow, which is too pale for a line
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES, MARKERS = ("-", "--", ":", "-."), ("o", "s", "^", "D", "v", "P", "X")
MAX_POINTS = 800
LINE = 0.165  # inches: the height of a line of text
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


# fonts that systems come with, for letters that matplotlib's own has not
_FONTS = (
    *(f"Noto Sans CJK {country}" for country in ("SC", "JP", "KR", "TC")),
    *("WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback", "IPAexGothic", "NanumGothic"),
    *("PingFang SC", "Hiragino Sans", "Apple SD Gothic Neo", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic"),
    *(f"Noto Sans {script}" for script in ("Arabic", "Hebrew", "Devanagari", "Bengali", "Tamil", "Thai", "Ethiopic")),
    *("Nirmala UI", "Leelawadee UI", "Arial Unicode MS", "Unifont"),
)


@contextmanager
def style(**changes: object) -> Iterator[None]:
    """Draw in `STYLE`, with the installed fonts of other scripts; warn once about letters that no font has."""
    import matplotlib
    from matplotlib import font_manager

    available = set(font_manager.get_font_names())
    fonts = {"font.family": [STYLE["font.family"], *(name for name in _FONTS if name in available)]}
    with matplotlib.rc_context(STYLE | fonts | changes), warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", message=_MISSING_GLYPH)
        yield
    for warning in caught:
        if re.match(_MISSING_GLYPH, str(warning.message)):
            _warn_missing_glyphs()
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


_MISSING_GLYPH = r"Glyph \d+ .* missing from font"


@cache
def _warn_missing_glyphs() -> None:
    logger.warning(
        "no font on this machine has all letters of the figures: .png files show boxes, page and .svg files do not; "
        "install a font with these letters, such as Noto Sans CJK"
    )


@dataclass
class Plot:
    """A figure; ``name`` is its file name in ``plots/``, ``caption`` its text alternative."""

    name: str
    caption: str
    svg: bytes
    png: bytes


@dataclass(frozen=True)
class LineStyle:
    """Colour, dash and marker of one run or variant, the same in all figures."""

    colour: str
    dash: str = "-"
    marker: str = "o"


def assign_styles(names: Sequence[str]) -> dict[str, LineStyle]:
    """A style for each name; dashes and markers change after the seven colours."""
    styles = {}
    for i, name in enumerate(names):
        turn = i // len(PALETTE)
        styles[name] = LineStyle(
            PALETTE[i % len(PALETTE)], DASHES[turn % len(DASHES)], MARKERS[(i + turn) % len(MARKERS)]
        )
    return styles


@dataclass(frozen=True, order=True)
class End:
    """Label at the end of a line, with its colour and dash; of points, with their marker."""

    value: float
    name: str
    colour: str
    dash: str = "-"
    marker: str = ""


@dataclass
class Canvas:
    """Axes of a figure, and the labels at its right side; ``plot`` is set by `drawing`."""

    axes: Axes
    ends: list[End] = field(default_factory=list)
    plot: Plot = field(init=False)


@contextmanager
def drawing(name: str, caption: str, lines: int = 0, height: float = 2.9) -> Iterator[Canvas]:
    """Axes to draw on; on exit the figure is rendered to ``plot``, with ``ends`` as labels.

    Args:
        name: of the file.
        caption: text alternative.
        lines: number of labels, for which the height must suffice.
        height: inches, at least.
    """
    from matplotlib.figure import Figure

    height = max(height, LINE * (lines + 1) + 0.7)
    with style():
        figure = Figure(figsize=(4.7, height), facecolor=CARD, layout="constrained")
        canvas = Canvas(figure.add_subplot(facecolor=CARD))
        yield canvas
        figure.draw_without_rendering()
        label_ends(canvas.axes, canvas.ends, height)
        canvas.plot = Plot(name, caption, render(figure, "svg"), render(figure, "png"))


@dataclass(frozen=True)
class Axis:
    """Quantity of a horizontal axis."""

    name: str
    label: Callable[[float], tuple[float, str]]  # of the largest value: unit to divide by, and title
    of: Callable[[Series], list[float]]


def _time_unit(largest: float) -> tuple[float, str]:
    for size, unit in ((3600.0, "hours"), (60.0, "minutes")):
        if largest >= 2 * size:
            return size, f"time of training, {unit}"
    return 1.0, "time of training, seconds"


def _token_unit(largest: float) -> tuple[float, str]:
    return (1e6, "tokens seen, millions") if largest >= 2e6 else (1.0, "tokens seen")


BY_STEP = Axis("step", lambda largest: (1.0, "step"), lambda series: series.steps)
BY_TIME = Axis("time", _time_unit, lambda series: series.seconds)
BY_TOKENS = Axis("tokens", _token_unit, lambda series: series.tokens)


@dataclass(frozen=True)
class Line:
    """Runs drawn as one line, their mean; several runs have a band from the lowest to the highest validation loss."""

    name: str
    style: LineStyle
    records: Sequence[RunRecord]


@dataclass(frozen=True)
class _Curve:
    name: str
    style: LineStyle
    train: Series
    validation: Series = field(default_factory=Series)
    bounds: Sequence[Sequence[float]] = ((), ())


def loss_plots(lines: Sequence[Line], axes: Sequence[Axis], prefix: str) -> list[Plot]:
    """A figure for each term of the loss and for the total, by each of the axes; all runs have the same terms."""
    plots = []
    means = [average(line.records, line.name) for line in lines]
    terms = loss_terms(lines[0].records[0])
    # a single term is the total loss
    for term in [*terms, "loss"] if len(terms) > 1 else ["loss"]:
        named = terms[0] if len(terms) == 1 else term
        overall = "overall loss" if terms else "loss"
        title = overall if named == "loss" else f"{term_title(named)} loss"
        unit = " (nats)" if named in _NATS else ""
        curves = [_curve(line, mean, term) for line, mean in zip(lines, means, strict=True)]
        for axis in axes:
            if any(curve.train.values or curve.validation.values for curve in curves):
                caption = f"{title[0].upper()}{title[1:]} by {axis.name}"
                plots.append(_draw(f"{prefix}{_file(named)}-by-{axis.name}", caption, f"{title}{unit}", curves, axis))
    return plots


def _curve(line: Line, mean: RunRecord, term: str) -> _Curve:
    several = line.records if len(line.records) > 1 else ()
    ranges = [record.validation[term].values for record in several if term in record.validation]
    bounds = [[pick(column) for column in zip(*ranges, strict=False)] for pick in (min, max)]
    train, validation = mean.train.get(term, Series()), mean.validation.get(term, Series())
    return _Curve(line.name, line.style, smoothed(train), validation, bounds)


def learning_rate_plot(lines: Sequence[Line], name: str) -> Plot | None:
    """The learning rate of the first run of each line by step."""
    curves = [_Curve(line.name, line.style, rate) for line in lines if (rate := line.records[0].learning_rate).values]
    return _draw(name, "Learning rate by step", "learning rate", curves, BY_STEP, height=1.9) if curves else None


def _file(term: str) -> str:
    return "overall" if term == "loss" else "".join(c if c.isascii() and c.isalnum() else "-" for c in term)[:40]


def _draw(name: str, caption: str, ylabel: str, curves: Sequence[_Curve], axis: Axis, height: float = 2.9) -> Plot:
    with drawing(name, caption, len(curves), height) as canvas:
        axes, ends = canvas.axes, canvas.ends
        largest = max((max(xs) for c in curves for s in (c.train, c.validation) if (xs := axis.of(s))), default=0.0)
        unit, xlabel = axis.label(largest)
        for curve in curves:
            colour, dash = curve.style.colour, curve.style.dash
            x, y = _thin(np.array(axis.of(curve.train)) / unit, np.array(curve.train.values))
            if len(x):
                axes.plot(x, y, dash, color=colour, linewidth=1.0, alpha=0.75)
                if len(x) == 1:
                    axes.plot(x, y, "_", color=colour)
            vx, vy = _thin(np.array(axis.of(curve.validation)) / unit, np.array(curve.validation.values))
            if len(vx):
                size = 4.0 if len(vx) < 40 else 2.0
                axes.plot(vx, vy, "o" + dash, color=colour, markersize=size, linewidth=0.6)
            lows, highs = curve.bounds
            if len(lows) and len(lows) == len(curve.validation.values):
                positions = np.array(axis.of(curve.validation)) / unit
                axes.fill_between(positions, lows, highs, color=colour, alpha=0.15, linewidth=0)
            if len(curves) > 1 and (len(vx) or len(x)):
                ends.append(End(float(vy[-1] if len(vy) else y[-1]), curve.name, colour, dash))
            elif len(vx) and len(x):
                ends.append(End(float(y[-1]), "train", colour))
                ends.append(End(float(vy[-1]), "validation", colour, marker="o"))
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        axes.xaxis.set_major_formatter(lambda value, _: formats.tick(value))
        axes.margins(x=0.01)
    return canvas.plot


def length_histogram(rows: Sequence[Mapping[str, JsonValue]], name: str, caption: str) -> Plot | None:
    """Histograms of lengths on a logarithmic axis, one strip for each class, each scaled to its own height."""
    drawn = []
    for row in rows:
        histogram = row.get("histogram")
        if isinstance(histogram, dict) and histogram.keys() >= {"edges", "counts"}:
            edges, counts = (np.asarray(histogram[key], dtype=float) for key in ("edges", "counts"))
            if len(edges) == len(counts) + 1 and counts.sum():
                drawn.append((str(row.get("class") or row.get("split") or "all"), edges, counts))
    if not drawn:
        return None
    with drawing(name, caption, height=0.34 * len(drawn) + 0.9) as canvas:
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
        axes.set_xlabel("tokens")
        axes.set_ylim(-0.05, len(drawn))
    return canvas.plot


def shorten(label: str, most: int = 18) -> str:
    """A label cut to ``most`` characters."""
    return label if len(label) <= most else f"{label[: most - 1]}…"


def label_ends(axes: Axes, ends: Sequence[End], height: float) -> None:
    """Write the names of lines at the right side, at the height of their ends, without overlap; each behind a sample of
    its line, since pale colours cannot be read as letters."""
    if not ends:
        return
    gap = LINE / (height - 0.7)  # the height of a line of text as a share of the axes
    to_axes = axes.transData + axes.transAxes.inverted()
    placed = sorted((float(to_axes.transform((axes.get_xlim()[1], end.value))[1]), end) for end in ends)
    positions = [position for position, _ in placed]
    for i in range(1, len(positions)):
        positions[i] = max(positions[i], positions[i - 1] + gap)
    if (excess := positions[-1] - 1.0) > 0:
        positions[-1] -= excess
        for i in range(len(positions) - 2, -1, -1):
            positions[i] = min(positions[i], positions[i + 1] - gap)
    for position, (_, end) in zip(positions, placed, strict=True):
        sample = [1.02, 1.07] if end.marker == "" else [1.045]
        axes.plot(
            sample,
            [position] * len(sample),
            color=end.colour,
            linestyle=end.dash if end.marker == "" else "",
            marker=end.marker,
            markersize=5,
            linewidth=1.6,
            transform=axes.transAxes,
            clip_on=False,
        )
        axes.text(
            1.09, position, shorten(end.name, 24), color=INK, transform=axes.transAxes, verticalalignment="center"
        )


def smoothed(series: Series) -> Series:
    """The same points with `smooth` values."""
    return replace(series, values=smooth(np.array(series.values)).tolist())


def smooth(values: np.ndarray) -> np.ndarray:
    """Centred moving mean over 4 % of the points, ``(points,)``."""
    half = len(values) // 50
    sums = np.concatenate([[0.0], np.cumsum(values)])
    positions = np.arange(len(values))
    first, last = np.maximum(positions - half, 0), np.minimum(positions + half + 1, len(values))
    smoothed: np.ndarray = (sums[last] - sums[first]) / (last - first)
    return smoothed


def _thin(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most `MAX_POINTS` points, including the first and the last."""
    if len(x) <= MAX_POINTS:
        return x, y
    kept = np.linspace(0, len(x) - 1, MAX_POINTS).round().astype(int)
    return x[kept], y[kept]


def render(figure: Figure, kind: str) -> bytes:
    """A figure as ``svg`` or ``png``; the same figure gives the same bytes."""
    out = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else None
    figure.savefig(out, format=kind, dpi=160, facecolor=CARD, metadata=metadata)
    figure.set_layout_engine("none")  # laid out once for both kinds: it takes longer than drawing
    return out.getvalue()
