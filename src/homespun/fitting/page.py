"""Report page of a fit: result, candidates, classes, errors, learning curve, decisions."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import fill

from homespun.config import Tree
from homespun.fitting.verdict import candidates_table, commands, headline, problems
from homespun.report import formats, tables
from homespun.report.document import (
    Block,
    Document,
    Table,
    code,
    details,
    gallery,
    notices,
    paragraphs,
    tabular,
    text,
    value,
    write_document,
)
from homespun.report.error_analysis import confusion, reliability_plot
from homespun.report.figure import PALETTE, Curve, Look, Plot, drawing
from homespun.report.formats import metric_text
from homespun.report.page import confusion_blocks
from homespun.results import Metrics

_CALIBRATION = "Larger points: more test examples. As trained: before temperature scaling."
_GREY = "#b8bcc0"


def write_page(result: Tree, folder: Path) -> Path:
    """Write ``report/index.html`` of a fit and return its path."""
    metric, task = result["metric"], result["task"]
    test = Metrics.model_validate(result["test"])
    lead = paragraphs(" ".join(headline(result))) + notices(*problems(result))
    chapters = {
        "Candidates": tabular(candidates_table(result)) + gallery("", [_candidates_plot(result)], _note(result)),
        "What to do next": [block for step in result["next"] for block in _step(step)],
        "Use": code("\n".join(commands(result, folder))),
        "Classes": _classes(test),
        "Calibration": gallery("", [reliability_plot(test.calibration, "reliability")], _CALIBRATION),
        "Largest errors" if task == "regression" else "Confident errors": tabular(_errors(result)),
        "Would more labels help?": gallery(
            "", [_curve(result)], f"Linear model on words, {formats.metric_title(metric)} on the validation examples."
        ),
        "Decisions": [block for line in result["decisions"] for block in paragraphs(line)],
        "Settings": details("Settings of this fit", code(json.dumps(result["settings"], indent=1, ensure_ascii=False))),
    }
    title = f"Fit: {formats.metric_title(metric)} {metric_text(result['test'][metric], task)}"
    return write_document(Document(title, lead, chapters), folder / "report")


def _step(step: str) -> list[Block]:
    """Paragraph with the next step, and its command."""
    what, _, command = formats.capitalized(step).partition(": homespun ")
    return paragraphs(f"{what}:" if command else f"{what}.") + code(f"homespun {command}" if command else "")


def _note(result: Tree) -> str:
    if result["task"] == "language-model":
        return "On held-out documents; lower is better."
    kind = "validation examples" if result["test_from"] == "none" else "test examples, not used for selection"
    bars = "; lines: 95 % intervals of the difference to the selected model" if result["metric"] == "accuracy" else ""
    return f"On the {kind}{bars}."


def _candidates_plot(result: Tree) -> Plot | None:
    """Test metric of the candidates, the selected one in colour."""
    metric = result["metric"]
    found = [one for one in result["candidates"] if one["test"].get(metric) is not None]
    if len(found) < 2:
        return None
    title = formats.metric_title(metric)
    height = 0.9 + 0.38 * len(found)
    with drawing("candidates", f"{title} of the candidates", xlabel=title, height=height) as canvas:
        for row, one in enumerate(reversed(found)):
            selected = one["name"] == result["selected"]
            x = float(one["test"][metric])
            canvas.axes.barh(row, x, color=PALETTE[0] if selected else _GREY, height=0.6)
            end, interval = x, one.get("difference_interval")
            if interval and metric == "accuracy":  # differences of other metrics have another scale
                best = float(result["test"][metric])
                end = max(x, best - interval[0])
                canvas.axes.plot([best - interval[1], end], [row, row], color="black", linewidth=0.9)
            shown = metric_text(x, result["task"])
            canvas.axes.annotate(shown, (end, row), (4, 0), textcoords="offset points", va="center")
        names = ["average" if one["name"] == "average" else fill(one["title"], 26) for one in reversed(found)]
        canvas.axes.set_yticks(range(len(found)), names)
        canvas.axes.margins(x=0.18)
        canvas.axes.grid(visible=False)
    return canvas.plot


def _classes(test: Metrics) -> list[Block]:
    matrix = confusion(test)
    found = confusion_blocks(matrix, "", "Confusion matrix", "Most frequent mistakes") if matrix else []
    return found + (tabular(tables.per_class(test, "per-class", None)) if test.per_class else [])


def _errors(result: Tree) -> Table:
    numbers, errors = result["task"] == "regression", result["errors"]
    greatest = "error" if numbers else "loss"
    probability = "" if numbers or result["task"] == "multi-label" else "; probability: of the predicted class"
    return Table.of(
        "confident-errors",
        "",
        errors,
        value("row", lambda one: one["row"], formats.integer),
        text("text", lambda one: one["text"]),
        text("truth", lambda one: one["truth"]),
        text("predicted", lambda one: one["predicted"]),
        value("probability", lambda one: one["probability"], formats.percent),
        note=f"Predictions of the selected model with the greatest {greatest}{probability}; row: as in predictions/.",
        sparse=True,
    )


def _curve(result: Tree) -> Plot | None:
    metric = result["metric"]
    points = [one for one in result["learning_curve"] if one[metric] is not None]
    if len(points) < 2:
        return None
    title = formats.metric_title(metric)
    with drawing("learning-curve", f"{title} by examples", xlabel="training examples", ylabel=title) as canvas:
        sizes, values = [float(one["examples"]) for one in points], [float(one[metric]) for one in points]
        canvas.draw(Curve(sizes, values, Look(PALETTE[0]), "", 1.5))
        canvas.axes.set_xscale("log")
        canvas.axes.set_xticks(sizes, [f"{size:,.0f}" for size in sizes])
        canvas.axes.minorticks_off()
    return canvas.plot
