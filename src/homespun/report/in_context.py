"""In-context learning as a page: accuracy against the number of examples, as a table and a figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from homespun.report import formats
from homespun.report.document import Chapter, Code, Document, Gallery, Paragraph, TableBlock
from homespun.report.plots import PALETTE, End, Plot, drawing
from homespun.report.table import Table, numbers


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
            *numbers(formats.integer, "examples", "draws"),
            *numbers(formats.percent, "accuracy", "lowest", "highest", "macro F1", "TF-IDF", "majority"),
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
    found = result["shots"]
    caption = "Accuracy by examples in the prompt, with TF-IDF and the majority class"
    with drawing("in-context-accuracy", caption) as canvas:
        axes = canvas.axes
        for (name, key), colour in zip((("prompted", "accuracy"), ("TF-IDF", "tfidf")), PALETTE, strict=False):
            positions = [position for position, one in enumerate(found) if key in one]
            if not positions:
                continue
            draws = [[draw[key] for draw in found[position]["draws"]] for position in positions]
            means = np.array([np.mean(values) for values in draws])
            axes.plot(positions, means, "o-", color=colour, markersize=4.0, linewidth=1.0)
            axes.fill_between(positions, [*map(min, draws)], [*map(max, draws)], color=colour, alpha=0.15, linewidth=0)
            canvas.ends.append(End(float(means[-1]), name, colour))
        axes.axhline(result["majority"], color=PALETTE[2], linewidth=1.0, linestyle="--")
        canvas.ends.append(End(float(result["majority"]), "majority", PALETTE[2], "--"))
        axes.set_xticks(range(len(found)), [str(one["shots"]) for one in found])
        axes.set_xlabel("examples in the prompt")
        axes.set_ylabel("accuracy")
    return canvas.plot
