"""Page of in-context learning: accuracy by the number of examples in the prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from homespun.report import formats
from homespun.report.document import Chapter, Code, Document, Gallery, Paragraph, TableBlock
from homespun.report.plots import PALETTE, End, Plot, drawing
from homespun.report.table import Table, numbers


def in_context_document(result: Mapping[str, Any]) -> Document:
    """The page of a result of `homespun.commands.few_shot`."""
    lead = Paragraph(
        f"{result['run']} classified {result['rows']:,} texts from examples in the prompt, without training. "
        f"Baselines: TF-IDF with a linear classifier trained on the same examples, and the majority class."
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
    """A row for each number of examples: mean, lowest and highest accuracy over draws."""

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
        note="TF-IDF is trained on the same examples; the majority class is that of all examples to draw from.",
    )


def in_context_plot(result: Mapping[str, Any]) -> Plot:
    """Accuracy by the number of examples, at equal distances."""
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
