"""Result of a fit in sentences, for the console and the report page."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from homespun.config import Tree
from homespun.report import formats, significance


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
    test, metric, cost = result["test"], result["metric"], result["cost"]
    if result["task"] == "language-model":
        baseline = result["candidates"][0]["test"]["loss"]
        return [
            f"Language model: held-out loss {test['loss']:.3f} nats per token, perplexity {test['perplexity']:.1f}; "
            f"the unigram baseline has {baseline:.3f}.",
            f"{formats.count(result['examples']['tokens'])} tokens of text; {cost['parameters']:,} parameters.",
        ]
    part = "validation" if result["test_from"] == "none" else "test"
    count = result["examples"][part]
    held_out = " (held out of the training files)" if result["test_from"] == "split" else ""
    interval = result["interval"]
    shown = f", 95 % interval {_percent(interval[0])} to {_percent(interval[1])}" if interval else ""
    value = metric_text(test[metric], result["task"])
    lines = [
        f"Selected: {result['title']}.",
        f"{formats.capitalized(formats.metric_title(metric))} {value} on {count:,} {part} examples{held_out}{shown}"
        + (f"; macro F1 {_percent(test['macro_f1'])}" if "macro_f1" in test else "")
        + ".",
    ]
    rival = next((one for one in result["candidates"] if one["name"] == result["next_best"]), None)
    if rival is not None:
        lines.append(_difference(result, rival))
    timed = ""
    if "seconds_per_1000" in cost:
        wall, processor = (formats.duration(cost[f"{kind}seconds_per_1000"]) for kind in ("", "processor_"))
        timed = f"; 1,000 predictions take {wall} ({processor} of processor time)"
    calibration = test.get("calibration", {}).get("after", {}).get("ece")
    if calibration is not None:
        lines.append(f"Expected calibration error {_percent(calibration)}.")
    return [*lines, f"{cost['parameters']:,} parameters{timed}."]


def _difference(result: Tree, rival: Tree) -> str:
    low, high = rival["difference_interval"]
    better = "better" if rival["difference"] > 0 else "worse"
    significant = "significant" if rival["p"] < significance.LEVEL else "not significant"
    if result["task"] == "regression":
        amount = f"absolute error {abs(rival['difference']):.3g} {'lower' if rival['difference'] > 0 else 'higher'}"
        return f"Next best on validation: {rival['title']}; {amount} ({significant}, p={rival['p']:.2g})."
    exact = " in texts with all labels right" if result["task"] == "multi-label" else ""
    return (
        f"{abs(100 * rival['difference']):.1f} points {better} than the next best{exact}, {rival['title']} "
        f"({100 * low:+.1f} to {100 * high:+.1f}; {significant}, p={rival['p']:.2g})."
    )


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


def metric_text(value: float | None, task: str) -> str:
    """Return a metric in percent, or with three digits for regression and language models."""
    if value is None:
        return "-"
    return f"{value:.3f}" if task in ("regression", "language-model") else _percent(value)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
