"""Figure of word vectors in two dimensions; labels are moved so that they do not overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Literal

import numpy as np

from homespun.report.plots import INK, PALETTE, Plot, render, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INCHES = 0.55  # to either side, times the root of the number of words
# positions of a label around its point; the first free one is used
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
    """Draw ``words`` at ``positions``, (words, 2); the figure grows with the number of words."""
    from matplotlib.figure import Figure

    side = min(max(5.0, _INCHES * math.sqrt(len(words)) * 1.6), 24.0)
    with style(**{"axes.grid.axis": "both"}):
        figure = Figure(figsize=(side, 0.8 * side), layout="constrained")
        axes = figure.subplots()
        axes.scatter(positions[:, 0], positions[:, 1], s=9, color=PALETTE[0], zorder=3)
        axes.margins(0.12)
        axes.set_xlabel(axes_names[0])
        axes.set_ylabel(axes_names[1])
        axes.set_title(title, loc="left", fontsize=9.5)
        figure.draw_without_rendering()
        _name(axes, words, positions)
        caption = f"A map of {len(words)} words: {', '.join(words[:12])}{' ...' if len(words) > 12 else ''}."
        return Plot(name, caption, render(figure, "svg"), render(figure, "png"))


def _name(axes: Axes, words: Sequence[str], positions: np.ndarray) -> None:
    from matplotlib.transforms import Bbox

    points = axes.transData.transform(positions)
    taken = [Bbox.from_bounds(x - _POINT, y - _POINT, 2 * _POINT, 2 * _POINT) for x, y in points]
    for word, position in zip(words, positions, strict=True):
        point = (float(position[0]), float(position[1]))
        note = axes.annotate(word, point, xytext=(0, 0), textcoords="offset points", color=INK)
        for distance, (right, up, horizontal, vertical) in product(_DISTANCES, _SIDES):
            note.set_position((right * distance, up * distance))
            note.set_horizontalalignment(horizontal)
            note.set_verticalalignment(vertical)
            box = note.get_window_extent()
            if not any(box.overlaps(other) for other in taken):
                break
        taken.append(box)
