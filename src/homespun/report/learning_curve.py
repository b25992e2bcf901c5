"""Metrics by the number of examples: learning curves of fine-tuning, and classification from examples in a prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from homespun.report import formats
from homespun.report.document import Chapter, Code, Document, Gallery, Paragraph, TableBlock
from homespun.report.formats import baseline_title, metric_title
from homespun.report.plots import PALETTE, End, Plot, drawing
from homespun.report.records import RunRecord, Tree
from homespun.report.table import Table, numbers, spreads
from homespun.results import CurvePoint, Spread, mean_over_trainings


def curve_table(record: RunRecord, name: str) -> Table | None:
    """Metric of the model and of the baselines by the number of training examples."""
    points, measure = _points(record), record.measures[0]
    if not points:
        return None
    lines = _baselines(points)
    columns = (
        *numbers(formats.integer, "training examples"),
        *spreads(formats.share_spread, f"{metric_title(measure)} of {record.name}"),
        *numbers(formats.share, *map(baseline_title, lines)),
    )
    rows = tuple(
        (point.examples, _measured(point, measure), *(_of_baseline(point, line, measure) for line in lines))
        for point in points
    )
    return Table(name, "By the number of training examples", columns, rows)


def curve_plot(record: RunRecord, name: str) -> Plot | None:
    """The same as a figure with a logarithmic axis; None for fewer than two numbers of examples."""
    points, measure = _points(record), record.measures[0]
    if len(points) < 2:
        return None
    title = metric_title(measure)
    sizes = [float(point.examples) for point in points]
    with drawing(name, f"{title} by the number of training examples") as canvas:
        axes = canvas.axes
        measured = [_measured(point, measure) or (float("nan"), None) for point in points]
        deviations = [deviation or 0.0 for _, deviation in measured]
        axes.errorbar(sizes, [m for m, _ in measured], yerr=deviations, fmt="o-", color=PALETTE[0], markersize=4)
        canvas.ends.append(End(measured[-1][0], record.name, PALETTE[0]))
        for index, line in enumerate(_baselines(points), start=1):
            values = [_of_baseline(point, line, measure) for point in points]
            known = [(size, value) for size, value in zip(sizes, values, strict=True) if value is not None]
            if not known:
                continue
            colour = PALETTE[index % len(PALETTE)]
            axes.plot([s for s, _ in known], [v for _, v in known], "--", color=colour, linewidth=1.0)
            canvas.ends.append(End(known[-1][1], baseline_title(line), colour, "--"))
        axes.set_xscale("log")
        axes.set_xticks(sizes, _tick_labels(sizes))
        axes.minorticks_off()
        axes.set_xlabel("training examples")
        axes.set_ylabel(title)
    return canvas.plot


def _tick_labels(sizes: Sequence[float]) -> list[str]:
    """Labels of increasing sizes on a logarithmic axis; empty where the next label would overlap."""
    room = 0.13 * np.log(max(sizes) / min(sizes))
    labels, beyond = [], np.inf
    for size in reversed(sizes):
        fits = beyond - np.log(size) > room
        labels.append(f"{size:,.0f}" if fits else "")
        beyond = np.log(size) if fits else beyond
    return labels[::-1]


def _points(record: RunRecord) -> list[CurvePoint]:
    return [point for point in record.result.curve if _measured(point, record.measures[0])]


def _baselines(points: Sequence[CurvePoint]) -> list[str]:
    return list(dict.fromkeys(key for point in points for key in point.baselines))


def _measured(point: CurvePoint, measure: str) -> Spread | None:
    return mean_over_trainings(point.seeds or [point.test], measure)


def _of_baseline(point: CurvePoint, line: str, measure: str) -> float | None:
    return point.baselines[line].number(measure) if line in point.baselines else None


def in_context_document(result: Tree) -> Document:
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


def in_context_table(result: Tree) -> Table:
    """A row for each number of examples: mean, lowest and highest accuracy over draws."""

    def extreme(found: Tree, choose: Callable[[Iterable[float]], float]) -> float:
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


def in_context_plot(result: Tree) -> Plot:
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
