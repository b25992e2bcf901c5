"""Result of a fit in sentences, commands and a table, for the console, the report page and the model card."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from homespun.config import Tree
from homespun.report import formats, significance
from homespun.report.document import Table, fill, text, value
from homespun.report.formats import metric_text

_LOW, _NAMED = 0.5, 10  # recall below which a class is named; maximum number of names


def headline(result: Tree) -> list[str]:
    """Return selected model, metric with interval, and difference to the next best, one sentence each."""
    if result["task"] == "language-model":
        return [fill("fit", macro, result=result) for macro in ("language_model", "language_model_size")]
    sentences = [fill("fit", macro, result=result) for macro in ("selected", "score")]
    rival = next((one for one in result["candidates"] if one["name"] == result["next_best"]), None)
    if rival is not None:
        significant = rival["p"] < significance.LEVEL
        sentences.append(fill("fit", "difference", result=result, rival=rival, significant=significant))
    sentences += [fill("fit", macro, result=result) for macro in ("calibration_error", "cost")]
    return [sentence for sentence in sentences if sentence]


def candidates_table(result: Tree) -> Table:
    """Return the candidates with their metrics, the selected one marked."""
    metric, task = result["metric"], result["task"]

    def shown(number: object) -> str:
        return metric_text(None if number is None else float(str(number)), task)

    found: list[Tree] = result["candidates"]
    table = Table.of(
        "candidates",
        "",
        found,
        text("candidate", lambda one: one["title"]),
        value("validation", lambda one: one["validation"].get(metric), shown),
        value("test", lambda one: one["test"].get(metric), shown),
        value("macro F1", lambda one: one["test"].get("macro_f1"), shown),
        value("absolute error", lambda one: one["test"].get("absolute_error"), formats.rate),
        value("p", lambda one: one.get("p"), formats.probability),
        value("time", lambda one: one["seconds"] or None, formats.duration),
        value("processor time", lambda one: one["processor_seconds"] or None, formats.duration),
        value("ms/text", lambda one: one.get("latency") or None, formats.text),
        note="p: paired permutation test of the difference to the selected model, on the test examples."
        if any("p" in one for one in found)
        else "",
        sparse=True,
    )
    table.marked = frozenset(index for index, one in enumerate(found) if one["name"] == result["selected"])
    return table


def problems(result: Tree) -> list[str]:
    """Return warnings, skipped candidates and classes with few or no correct predictions."""
    lines = []
    if names := result["never_predicted"]:
        these = "this class" if len(names) == 1 else "these classes"
        lines.append(f"Recall 0: {capped(names)}; no test example of {these} was classified correctly.")
    classes = result["test"].get("per_class", {})
    recalls = sorted((values["recall"], name) for name, values in classes.items() if 0 < values["recall"] < _LOW)
    if recalls:
        shown = [f"{name} ({metric_text(recall)})" for recall, name in recalls]
        lines.append(f"Recall below {100 * _LOW:.0f} %: {capped(shown)}.")
    lines += [f"Warning: {text}." for text in result["warnings"]]
    lines += [f"Skipped: {text}." for text in result["skipped"]]
    return lines


def capped(names: Sequence[str]) -> str:
    """Join at most ten names, with the number of the others: ``a, b and 290 more``."""
    return formats.listed([*names[:_NAMED], *([f"{len(names) - _NAMED:,} more"] if len(names) > _NAMED else [])])


def commands(result: Tree, folder: Path) -> list[str]:
    """Return the commands that use the model."""
    name = shlex.quote(str(folder))
    if result["task"] == "language-model":
        code = (
            f'import homespun; print(homespun.open({json.dumps(str(folder), ensure_ascii=False)}).embed(["A text."]))'
        )
        embed = f"python -c {shlex.quote(code)}"
        return [embed] if result["masked"] else [f'homespun generate {name} --prompt "The"', embed]
    example = '"A text." "Its second text."' if result.get("pairs") else '"A text."'
    return [f"homespun predict {name} {example}", f"homespun predict {name} --input FILE --out predictions.csv"]
