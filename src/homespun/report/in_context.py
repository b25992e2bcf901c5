"""In-context learning as a page: accuracy against the number of examples, as a table and a figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from homespun.report import formats
from homespun.report.document import Chapter, Code, Document, Gallery, Paragraph, TableBlock
from homespun.report.plots import CARD, PALETTE, End, Plot, label_ends, render, style
from homespun.report.table import Column, Table

_HEIGHT = 2.9  # inches


def in_context_document(result: Mapping[str, Any]) -> Document:
    """The page of what `homespun.commands.in_context` returns."""
    lead = Paragraph(
        f"{result['run']} was asked of {result['rows']:,} texts, with examples in the prompt and none of its weights "
        f"changed. Beside it stand TF-IDF with a linear classifier, learned from the same examples, and the majority "
        f"class."
    )
    figure = Gallery("Accuracy by examples", [in_context_plot(result)], "Bands: lowest to highest over the draws.")
    return Document(
        f"In-context learning: {result['run']}",
        [lead],
        [
            Chapter("Accuracy", [TableBlock(in_context_table(result)), figure]),
            Chapter("A prompt", [Code(result["prompt"])]),
        ],
    )


def in_context_table(result: Mapping[str, Any]) -> Table:
    """A row for each number of examples: means over the draws, with the lowest and the highest."""

    def extreme(found: Mapping[str, Any], choose: Any) -> float:
        return float(choose(draw["accuracy"] for draw in found["draws"]))

    return Table(
        "in-context",
        "Accuracy by examples in the prompt",
        (
            Column("examples", formats.integer),
            Column("draws", formats.integer),
            Column("accuracy", formats.percent),
            Column("lowest", formats.percent),
            Column("highest", formats.percent),
            Column("macro F1", formats.percent),
            Column("TF-IDF", formats.percent),
            Column("majority", formats.percent),
        ),
        tuple(
            (
                found["shots"],
                len(found["draws"]),
                found["accuracy"],
                extreme(found, min),
                extreme(found, max),
                found["macro_f1"],
                found.get("tfidf"),
                result["majority"],
            )
            for found in result["shots"]
        ),
        note="TF-IDF learned from the same examples; the majority class is that of all texts that examples come from.",
    )


def in_context_plot(result: Mapping[str, Any]) -> Plot:
    """Accuracy over the numbers of examples, which stand at equal distances."""
    from matplotlib.figure import Figure

    found = result["shots"]
    with style():
        figure = Figure(figsize=(4.7, _HEIGHT), facecolor=CARD, layout="constrained")
        axes = figure.add_subplot(facecolor=CARD)
        ends = []
        for (name, key), colour in zip((("prompted", "accuracy"), ("TF-IDF", "tfidf")), PALETTE, strict=False):
            positions = [position for position, one in enumerate(found) if key in one]
            if not positions:
                continue
            draws = [[draw[key] for draw in found[position]["draws"]] for position in positions]
            means = np.array([np.mean(values) for values in draws])
            axes.plot(positions, means, "o-", color=colour, markersize=4.0, linewidth=1.0)
            axes.fill_between(positions, [*map(min, draws)], [*map(max, draws)], color=colour, alpha=0.15, linewidth=0)
            ends.append(End(float(means[-1]), name, colour))
        axes.axhline(result["majority"], color=PALETTE[2], linewidth=1.0, linestyle="--")
        ends.append(End(float(result["majority"]), "majority", PALETTE[2], "--"))
        axes.set_xticks(range(len(found)), [str(one["shots"]) for one in found])
        axes.set_xlabel("examples in the prompt")
        axes.set_ylabel("accuracy")
        figure.draw_without_rendering()
        label_ends(axes, ends, _HEIGHT)
        return Plot(
            "in-context-accuracy",
            "Accuracy by examples in the prompt, beside TF-IDF and the majority class",
            render(figure, "svg"),
            render(figure, "png"),
        )
