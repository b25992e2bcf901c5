"""Style of all figures, and line plots with a legend. Matplotlib is imported on first use, without pyplot."""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from homespun.io.atomic import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

# palette of Okabe and Ito for colour-blind readers, without its yellow, which is too pale for a line
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES, MARKERS = ("-", "--", ":", "-."), ("o", "s", "^", "D", "v", "P", "X")
CARD, INK, FAINT = "#fcfcfa", "#333333", "#d9d9d4"
_LINE = 0.165  # inches: the height of a line of text
STYLE: Any = {
    "font.size": 8.5,
    "font.family": "sans-serif",
    "text.usetex": False,  # a matplotlibrc in the working directory could turn it on, and labels are no LaTeX
    "text.parse_math": False,  # a dollar sign in the name of a run does not start a formula
    "svg.fonttype": "none",  # store text as text: small files, and scripts that matplotlib's font lacks
    "svg.hashsalt": "homespun",  # fixed, so that equal figures give equal files
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
    """Context that draws in `STYLE`, with installed fonts for other scripts; warns once about missing glyphs."""
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
    """Figure; ``name`` is its file name in ``plots/``, ``caption`` its text alternative."""

    name: str
    caption: str
    svg: bytes
    png: bytes

    @classmethod
    def of(cls, name: str, caption: str, figure: Figure) -> Plot:
        """Render a figure; the same figure gives the same bytes."""
        return cls(name, caption, render(figure, "svg"), render(figure, "png"))

    def write(self, path: Path) -> None:
        """Write a .svg or .png file."""
        write_bytes(path, self.svg if path.suffix == ".svg" else self.png)


def render(figure: Figure, kind: str) -> bytes:
    """Render a figure as ``svg`` or ``png``."""
    out = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else None
    figure.savefig(out, format=kind, dpi=160, facecolor=CARD, metadata=metadata)
    figure.set_layout_engine("none")  # laid out once for both kinds: it takes longer than drawing
    return out.getvalue()


@dataclass(frozen=True)
class Look:
    """Colour, dash and marker of a run or variant, the same in all figures."""

    colour: str
    dash: str = "-"
    marker: str = "o"


def assign_looks(names: Sequence[str]) -> dict[str, Look]:
    """Assign a look to each name; dashes and markers change after the seven colours."""
    turns = [(i, i // len(PALETTE)) for i in range(len(names))]
    looks = [Look(_pick(PALETTE, i), _pick(DASHES, turn), _pick(MARKERS, i + turn)) for i, turn in turns]
    return dict(zip(names, looks, strict=True))


def _pick(values: Sequence[str], index: int) -> str:
    return values[index % len(values)]


Values = Sequence[float] | np.ndarray


@dataclass(frozen=True)
class Curve:
    """Line or points of a figure."""

    x: Values  # (points,); empty: a horizontal line at the only y
    y: Values  # (points,)
    look: Look  # dash "": no line; marker "": none
    label: str = ""  # text in the legend, which is sorted by the last value, the highest first
    width: float = 1.0  # width of the line in points
    size: float = 4.0  # size of the markers in points
    alpha: float = 1.0
    bars: Sequence[float] | Sequence[Sequence[float]] | None = None  # (points,) error bars, or (2, points) down and up
    band: tuple[Values, Values] | None = None  # lower and upper values of a shaded area


@dataclass
class Canvas:
    """Axes of a figure with their curves; `drawing` sets ``plot``."""

    axes: Axes
    curves: list[Curve] = field(default_factory=list)
    plot: Plot = field(init=False)

    def draw(self, *curves: Curve) -> None:
        """Draw lines, with their error bars and bands."""
        for curve in (curve for curve in curves if len(curve.y)):
            self.curves.append(curve)
            own: dict[str, Any] = {"color": curve.look.colour, "linestyle": curve.look.dash, "linewidth": curve.width}
            if not len(curve.x):
                self.axes.axhline(float(curve.y[0]), alpha=curve.alpha, **own)
                continue
            own |= {"marker": curve.look.marker, "markersize": curve.size, "elinewidth": 0.9, "capsize": 2}
            self.axes.errorbar(curve.x, curve.y, curve.bars, alpha=curve.alpha, **own)
            if curve.band is not None:
                self.axes.fill_between(curve.x, *curve.band, color=curve.look.colour, alpha=0.15, linewidth=0)

    def add_legend(self, figure: Figure, height: float) -> None:
        """Add a legend on the right, and increase the height of the figure if needed."""
        from matplotlib.lines import Line2D

        named = sorted((curve for curve in self.curves if curve.label), key=lambda curve: -float(curve.y[-1]))
        figure.set_figheight(max(height, _LINE * (len(named) + 1) + 0.7))
        handles = []
        for curve in named:
            own: dict[str, Any] = {"linestyle": curve.look.dash, "marker": curve.look.marker}
            own |= {"color": curve.look.colour, "markersize": min(curve.size, 5.0)}
            handles.append(Line2D([], [], label=shorten(curve.label, 24), **own))
        if handles:
            figure.legend(handles=handles, loc="outside right center", frameon=False, handlelength=1.6, borderpad=0.2)


@contextmanager
def drawing(name: str, caption: str, *, xlabel: str = "", ylabel: str = "", height: float = 2.9) -> Iterator[Canvas]:
    """Context that yields axes; at its end the figure is rendered to ``plot``, with a legend of the labelled curves.

    ``height`` is the minimum in inches.
    """
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(4.7, height), facecolor=CARD, layout="constrained")
        canvas = Canvas(figure.add_subplot(facecolor=CARD))
        canvas.axes.set_xlabel(xlabel)
        canvas.axes.set_ylabel(ylabel)
        yield canvas
        canvas.add_legend(figure, height)
        canvas.plot = Plot.of(name, caption, figure)


def shorten(label: str, most: int = 18) -> str:
    """Shorten a label to ``most`` characters."""
    return label if len(label) <= most else f"{label[: most - 1]}…"


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten between two limits."""
    return [m * 10.0**e for e in range(-9, 16) for m in (1, 2, 5) if low <= m * 10.0**e <= high]
