"""Figure of an alignment: a row for each target token, a column for each source token, shaded by weight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from homespun.report.plots import CARD, PALETTE, Plot, render, style

_CELL, _LETTER = 0.24, 0.085  # inches: of a token's row or column, of a letter of its label
_MARGIN, _MOST = 0.25, 24  # letters of a token that are written out


def draw_alignment(source: Sequence[str], target: Sequence[str], weights: np.ndarray) -> Plot:
    """Draw ``weights``, (target, source); each row sums to 1."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    label_height, label_width = (
        max(min(len(token), _MOST) for token in tokens) * _LETTER for tokens in (source, target)
    )
    width, height = len(source) * _CELL + label_width + 2 * _MARGIN, len(target) * _CELL + label_height + 2 * _MARGIN
    bare = {"axes.grid": False, "axes.spines.top": True, "axes.spines.right": True}
    with style(**bare):
        figure = Figure(figsize=(width, height), facecolor=CARD)
        left, bottom = (label_width + _MARGIN) / width, _MARGIN / height
        size = len(source) * _CELL / width, len(target) * _CELL / height
        axes = figure.add_axes((left, bottom, *size))
        colours = LinearSegmentedColormap.from_list("weights", ["#ffffff", PALETTE[0]])
        axes.imshow(weights, cmap=colours, vmin=0.0, vmax=1.0, aspect="auto")
        axes.set_xticks(range(len(source)), [_short(token) for token in source], rotation=90)
        axes.set_yticks(range(len(target)), [_short(token) for token in target])
        axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
        return Plot("alignment", _caption(source, target, weights), render(figure, "svg"), render(figure, "png"))


def _short(token: str) -> str:
    return token if len(token) <= _MOST else f"{token[: _MOST - 1]}…"


def _caption(source: Sequence[str], target: Sequence[str], weights: np.ndarray) -> str:
    most = [source[int(position)] for position in weights.argmax(1)]
    looks = ", ".join(f"{token} at {seen}" for token, seen in zip(target[:12], most, strict=False))
    return f"Source token of the largest weight of each target token: {looks}{' ...' if len(target) > 12 else ''}"
