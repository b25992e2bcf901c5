"""Figures of attention patterns and alignments, drawn from numbers without access to models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from homespun.report.figure import CARD, FAINT, INK, PALETTE, Plot, style
from homespun.report.formats import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# part -> its colour (Okabe and Ito's, for colour-blind readers) and its label; painted in this order
PARTS = {
    "full": ("#56B4E9", "every token"),
    "compressed": ("#56B4E9", "every token, compressed"),
    "near": ("#0072B2", "window or blocks"),
    "random": ("#E69F00", "random blocks"),
    "content": ("#CC79A7", "chosen by content, in one random text"),
    "global": ("#009E73", "global tokens"),
}
_COLUMNS, _SIDE, _GAP, _LEFT, _RIGHT = 4, 1.66, 0.3, 0.6, 0.25  # panels in a row; inches: each, between, the margins
_HEAD, _TITLE, _FOOT = 0.78, 0.32, 0.5  # above all rows; above and below each row
_SHALLOW, _DEEP = "#08306b", "#c6dbef"  # reached after one layer, and after the last
_FAINTEST = 0.4  # opacity of a cell with few visible pairs, so that a line of one token stays visible
_GREY = "#5a5a57"
_FRAME = {"axes.grid": False, "axes.spines.top": True, "axes.spines.right": True}


@dataclass(frozen=True)
class AttentionPanel:
    """Attention pattern of one head, or of several equal heads; rows are queries, columns keys."""

    title: str  # names of the layers and heads
    share: float  # visible pairs of tokens / all pairs
    parts: Mapping[str, np.ndarray]  # for names of `PARTS`: (cells, cells) share of the pairs visible by that part
    annotation: str = ""  # text across the panel
    order: str = ""  # order of the tokens on both axes, if not that in the text


@dataclass(frozen=True)
class AttentionPlot:
    """Attention patterns of one model."""

    title: str
    about: str  # a line below the title
    length: int  # tokens of the text
    cell: int  # width of a cell in tokens
    groups: Sequence[Sequence[AttentionPanel]]  # panels of each layer
    depth: np.ndarray  # (cells, cells) int: layers after which a key influences a query of the cell; 0: never
    reached: Sequence[float]  # share of all possible pairs after each layer


def draw_attention(picture: AttentionPlot) -> Plot:
    """Draw the panels in rows with a legend, followed by the receptive field by depth."""
    from matplotlib.figure import Figure

    positions = _flow([*map(len, picture.groups), 3])  # the reach is a panel and bars as wide as two
    *panels, depth_at, bars_at, _ = positions
    height = _HEAD + (depth_at[0] + 1) * (_TITLE + _SIDE + _FOOT)
    width = _LEFT + _COLUMNS * _SIDE + (_COLUMNS - 1) * _GAP + _RIGHT
    with style(**_FRAME):
        page = _Page(Figure(figsize=(width, height), facecolor=CARD), width, height)
        page.write(0.28, picture.title, fontsize=11, fontweight="bold")
        page.write(0.47, picture.about, fontsize=8, color=_GREY)
        drawn = {name for group in picture.groups for panel in group for name in panel.parts}
        page.legend(0.65, [name for name in PARTS if name in drawn])
        for panel, position in zip((p for group in picture.groups for p in group), panels, strict=True):
            _draw_panel(page.axes(*position), panel, picture, first=position[1] == 0)
        _draw_depth(page.axes(*depth_at), picture, first=depth_at[1] == 0)
        _draw_reached(page.axes(*bars_at, columns=2), picture)
        return Plot.of("attention", _caption(picture), page.figure)


def _flow(groups: Sequence[int]) -> list[tuple[int, int]]:
    """Compute row and column of each panel; a group that fits into one row is not divided."""
    positions: list[tuple[int, int]] = []
    row = column = 0
    for size in groups:
        if column and column + size > _COLUMNS:
            row, column = row + 1, 0
        for _ in range(size):
            if column == _COLUMNS:
                row, column = row + 1, 0
            positions.append((row, column))
            column += 1
    return positions


@dataclass(frozen=True)
class _Page:
    """Figure with axes at positions in inches from its upper left corner."""

    figure: Figure
    width: float
    height: float

    def write(self, top: float, text: str, **style: Any) -> None:
        self.figure.text(_LEFT / self.width, 1 - top / self.height, text, **style)

    def axes(self, row: int, column: int, columns: int = 1) -> Axes:
        top = _HEAD + row * (_TITLE + _SIDE + _FOOT) + _TITLE
        left = _LEFT + column * (_SIDE + _GAP)
        wide = columns * _SIDE + (columns - 1) * _GAP
        if columns > 1:  # the numbers on its own axis
            left, wide = left + _GAP, wide - _GAP
        box = (left / self.width, 1 - (top + _SIDE) / self.height, wide / self.width, _SIDE / self.height)
        return self.figure.add_axes(box, facecolor=CARD)

    def legend(self, top: float, names: Sequence[str]) -> None:
        from matplotlib.patches import Patch

        self.figure.legend(
            handles=[Patch(facecolor=PARTS[name][0], label=PARTS[name][1]) for name in names],
            loc="center left",
            bbox_to_anchor=(_LEFT / self.width, 1 - top / self.height),
            ncols=len(names),
            frameon=False,
            fontsize=8,
            borderaxespad=0,
            borderpad=0,
            handlelength=0.9,
            handleheight=0.9,
            handletextpad=0.5,
            columnspacing=1.4,
        )


def _draw_panel(axes: Axes, panel: AttentionPanel, picture: AttentionPlot, *, first: bool) -> None:
    cells = len(picture.depth)
    image = np.tile(_rgb(CARD), (cells, cells, 1))
    for name, (colour, _) in PARTS.items():
        if name in panel.parts:
            share = panel.parts[name][..., None]
            # global tokens are few and important: they are opaque
            alpha = np.where(share > 0, 1.0 if name == "global" else np.maximum(share, _FAINTEST), 0)
            image = image * (1 - alpha) + _rgb(colour) * alpha
    _show(axes, image, picture)
    axes.set_title(panel.title, fontsize=8.5, loc="left", pad=4)
    _name_axes(axes, f"{_percent(panel.share)} of pairs", first=first, order=panel.order)
    if panel.annotation:
        box = {"facecolor": CARD, "edgecolor": "none", "alpha": 0.85, "boxstyle": "round,pad=0.4"}
        axes.text(0.5, 0.5, panel.annotation, transform=axes.transAxes, ha="center", va="center", fontsize=8, bbox=box)


def _draw_depth(axes: Axes, picture: AttentionPlot, *, first: bool) -> None:
    palette = np.vstack([_rgb(CARD), _shades(picture)])
    _show(axes, palette[picture.depth], picture)
    axes.set_title("reached through depth", fontsize=8.5, loc="left", pad=4)
    _name_axes(axes, "" if picture.reached[-1] == 1 else "blank: never", first=first)


def _draw_reached(axes: Axes, picture: AttentionPlot) -> None:
    """Draw bars of the share reached after each layer, in the colours of the panel to the left."""
    layers = range(1, len(picture.reached) + 1)
    axes.bar(layers, picture.reached, width=0.62, color=_shades(picture))
    for layer, share, before in zip(layers, picture.reached, [0.0, *picture.reached], strict=False):
        if share > before:
            text = _percent(share) if len(layers) <= 8 else f"{100 * share:.0f}"
            axes.text(layer, share + 0.025, text, ha="center", fontsize=7, color=INK)
    axes.set_title("pairs reached after each layer", fontsize=8.5, loc="left", pad=4)
    axes.set_xlabel("layer", fontsize=7.5, color=_GREY, labelpad=2)
    axes.set_xticks(layers, [str(layer) for layer in layers], fontsize=7)
    axes.set_xlim(0.4, len(layers) + 0.6)
    axes.set_ylim(0, 1.1)
    axes.set_yticks([0, 0.5, 1], ["0", "50\u00a0%", "100\u00a0%"], fontsize=7)
    axes.tick_params(length=2.5, pad=2)
    axes.spines[["top", "right"]].set_visible(False)


def _name_axes(axes: Axes, note: str, *, first: bool, order: str = "") -> None:
    axes.set_xlabel(f"key, {order}" if order else "key", loc="left", fontsize=7.5, color=_GREY, labelpad=2)
    axes.annotate(note, (1, 0), (0, -14.2), "axes fraction", "offset points", ha="right", va="top", fontsize=7.5)
    if first:
        axes.set_ylabel("query", loc="top", fontsize=7.5, color=_GREY, labelpad=2)
    else:
        axes.set_yticklabels([])


def _show(axes: Axes, image: np.ndarray, picture: AttentionPlot) -> None:
    end = picture.length
    image = np.clip(image, 0, 1)
    edges = np.arange(len(image) + 1) * picture.cell  # the last cell may hang over the end
    if end <= 48:  # single tokens are visible
        axes.pcolormesh(edges, edges, image, edgecolors=FAINT, linewidth=0.4)
    else:
        axes.imshow(image, extent=(0, edges[-1], edges[-1], 0), interpolation="none", aspect="auto")
    axes.set_xlim(0, end)
    axes.set_ylim(end, 0)
    step = _step(end)
    ticks = [*range(0, end - step // 2, step), end]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=7)
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=7)
    axes.tick_params(length=2.5, pad=2)


def _step(length: int) -> int:
    """Return a quarter of the length if it is an integer, else a round number near it."""
    if length % 4 == 0:
        return length // 4
    size = 10 ** max(len(str(length // 4)) - 1, 0)
    return int(max(1, length // 4 // size * size))


def _shades(picture: AttentionPlot) -> np.ndarray:
    """Return (layers, 3) colours of the pairs that each layer reaches first."""
    last = max(int(picture.depth.max()), 1)
    steps = np.minimum(np.arange(len(picture.reached)) / max(last - 1, 1), 1)[:, None]
    return _rgb(_SHALLOW) * (1 - steps) + _rgb(_DEEP) * steps


def _percent(share: float) -> str:
    return percent(share).replace(".0", "")


def _rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255


def _caption(picture: AttentionPlot) -> str:
    shares = ", ".join(f"{panel.title}: {percent(panel.share)}" for group in picture.groups for panel in group)
    deep = ", ".join(percent(share) for share in picture.reached)
    return f"{picture.title}. Pairs of tokens seen: {shares}. Reached after each layer: {deep}"


_CELL, _LETTER = 0.24, 0.085  # inches: of a token's row or column, of a letter of its label
_MARGIN, _MOST = 0.25, 24  # letters of a token that are written out


def draw_alignment(source: Sequence[str], target: Sequence[str], weights: np.ndarray) -> Plot:
    """Draw ``weights``, (target, source), whose rows sum to 1."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    label_height, label_width = (
        max(min(len(token), _MOST) for token in tokens) * _LETTER for tokens in (source, target)
    )
    width, height = len(source) * _CELL + label_width + 2 * _MARGIN, len(target) * _CELL + label_height + 2 * _MARGIN
    with style(**_FRAME):
        figure = Figure(figsize=(width, height), facecolor=CARD)
        left, bottom = (label_width + _MARGIN) / width, _MARGIN / height
        size = len(source) * _CELL / width, len(target) * _CELL / height
        axes = figure.add_axes((left, bottom, *size))
        colours = LinearSegmentedColormap.from_list("weights", ["#ffffff", PALETTE[0]])
        axes.imshow(weights, cmap=colours, vmin=0.0, vmax=1.0, aspect="auto")
        axes.set_xticks(range(len(source)), [_short(token) for token in source], rotation=90)
        axes.set_yticks(range(len(target)), [_short(token) for token in target])
        axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
        return Plot.of("alignment", _alignment_caption(source, target, weights), figure)


def _short(token: str) -> str:
    return token if len(token) <= _MOST else f"{token[: _MOST - 1]}…"


def _alignment_caption(source: Sequence[str], target: Sequence[str], weights: np.ndarray) -> str:
    most = [source[int(position)] for position in weights.argmax(1)]
    looks = ", ".join(f"{token} at {seen}" for token, seen in zip(target[:12], most, strict=False))
    return f"Source token of the largest weight of each target token: {looks}{' ...' if len(target) > 12 else ''}"
