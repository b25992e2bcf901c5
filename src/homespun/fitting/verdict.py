"""Result of a fit in sentences, for the console and the report page."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from homespun.config import Tree
from homespun.report import formats, significance
from homespun.report.document import fill
from homespun.report.formats import metric_text


def verdict(result: Tree, folder: Path) -> list[str]:
    """Return the result, a table of the candidates, warnings and next steps, as lines."""
    return [
        *headline(result),
        "",
        *table(result),
        "",
        *problems(result),
        *(["", "next:", *(f"  {step}" for step in result["next"])] if result["next"] else []),
        "",
        *(f"use: {command}" for command in commands(result, folder)),
        f"page: {folder / 'report' / 'index.html'}",
    ]


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


def table(result: Tree) -> list[str]:
    """Return the candidates with their metrics, as lines of an aligned table."""
    metric = result["metric"]
    rows = [("", "validation", "test", "time", "parameters", "ms per text")]
    for one in result["candidates"]:
        mark = "> " if one["name"] == result["selected"] else "  "
        rows.append(
            (
                mark + one["title"],
                metric_text(one["validation"].get(metric), result["task"]),
                metric_text(one["test"].get(metric), result["task"]),
                formats.duration(one["seconds"]),
                formats.count(one["parameters"]),
                f"{one['latency']:.1f}" if one.get("latency") else "-",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]


def problems(result: Tree) -> list[str]:
    """Return warnings, skipped candidates and classes without a correct prediction."""
    lines = []
    if names := result["never_predicted"]:
        these = "this class" if len(names) == 1 else "these classes"
        lines.append(f"Recall 0: {formats.listed(names)}; no test example of {these} was classified correctly.")
    lines += [f"Warning: {text}." for text in result["warnings"]]
    lines += [f"Skipped: {text}." for text in result["skipped"]]
    return lines


def commands(result: Tree, folder: Path) -> list[str]:
    """Return the commands that use the model."""
    name = shlex.quote(str(folder))
    if result["task"] == "language-model":
        code = (
            f'import homespun; print(homespun.open({json.dumps(str(folder), ensure_ascii=False)}).embed(["A text."]))'
        )
        embed = f"python -c {shlex.quote(code)}"
        return [embed] if result["masked"] else [f'homespun generate {name} --prompt "The"', embed]
    return [f'homespun predict {name} "A text."', f"homespun predict {name} --input FILE --out predictions.csv"]
