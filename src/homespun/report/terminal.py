"""Output of commands in a terminal: facts, results, metrics, lengths, checks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from homespun.report import formats
from homespun.report.console import Display, print_tables
from homespun.report.table import Column, Row, Table, numbers, texts

if TYPE_CHECKING:
    from homespun.data.corpus import Progress
    from homespun.report.records import Tree
    from homespun.text.sources import ReadProgress


def print_facts(facts: Mapping[str, object]) -> None:
    """Print a line for each name and value."""
    console = Console(soft_wrap=True)
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        shown = formats.text(value) if isinstance(value, str) else _plain(value)
        console.print(Text(f"{name.replace('_', ' '):{width}}  {shown}"))


def _plain(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return "-" if value is None else ("yes" if value else "no")
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    return str(value)


def print_run(path: str | Path) -> None:
    """Print the tables and sentences of one finished run, and the path of its page."""
    from homespun.report.learning_curve import curve_table
    from homespun.report.records import read_runs
    from homespun.report.summary import summary, warnings
    from homespun.report.tables import losses, resources, results

    records = read_runs([path])
    tables = [*results(records), curve_table(records[0], "examples"), *losses(records), resources(records)]
    print_tables(*(table for table in tables if table is not None))
    console = Console(soft_wrap=True)
    for sentence in [*summary(records), *warnings(records)]:
        console.print(Text(sentence))
    console.print(Text(f"\nreport: {Path(path) / 'report' / 'index.html'}"))


def print_metrics(metrics: Tree) -> None:
    """Print the metrics of one evaluation: overall, by class, confusion matrix."""
    from homespun.report.error_analysis import confusion, confusion_table
    from homespun.report.formats import metric_title
    from homespun.report.tables import per_class
    from homespun.results import Metrics

    rows: list[Row] = [(metric_title(k), f"{v:.4f}") for k, v in metrics.items() if isinstance(v, float)]
    rows.append(("examples", formats.integer(metrics.get("rows"))))
    if metrics.get("chunked"):
        rows.append(("in chunks", f"{formats.integer(metrics['chunked'])} of them, of {metrics['length']} tokens each"))
    if metrics.get("truncated"):
        length = metrics.get("length") or metrics.get("source_length")
        size = "" if metrics.get("chunked") or not length else f", to {length} tokens"
        rows.append(("truncated", f"{formats.integer(metrics['truncated'])} of them{size}"))
    overall = Table("metrics", "Metrics", (*texts("metric"), Column("value")), tuple(rows))
    test = Metrics.model_validate(dict(metrics))
    matrix = confusion(test)
    tables = [overall, per_class(test, "per_class"), confusion_table(matrix, "confusion") if matrix else None]
    print_tables(*(table for table in tables if table is not None))


def print_lengths(rows: Sequence[Tree]) -> None:
    """Print lengths in tokens: a row for each split and class, with a histogram on a logarithmic axis."""
    columns = (
        *texts("split", "class"),
        *numbers(formats.integer, "texts"),
        *numbers(formats.rate, "mean", "median"),
        *numbers(formats.integer, "minimum", "maximum"),
        *numbers(formats.percent, *(f"above {limit}" for limit in rows[0]["above"])),
        *texts("histogram"),
    )
    body = tuple(
        (
            row["split"],
            row["class"],
            *(row[key] for key in ("count", "mean", "median", "minimum", "maximum")),
            *row["above"].values(),
            _bars(row["histogram"]["counts"]),
        )
        for row in rows
    )
    edges = rows[0]["histogram"]["edges"]
    note = f"Histogram: {edges[0]:,.0f} to {edges[-1]:,.0f} tokens, evenly spaced in the logarithm."
    print_tables(Table("lengths", "Lengths in tokens", columns, body, note))


def _bars(counts: Sequence[int]) -> str:
    levels = " ▁▂▃▄▅▆▇█"
    top = max(max(counts), 1)
    return "".join(levels[-(-count * (len(levels) - 1) // top)] for count in counts)


def print_checks(checks: Sequence[Any]) -> None:
    """Print a line for each check of `doctor`, with its advice."""
    console = Console(soft_wrap=True)
    styles = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    width = max(len(check.name) for check in checks)
    for check in checks:
        line = Text.assemble((f"{check.status:4}", styles[check.status]), f"  {check.name:{width}}  {check.detail}")
        console.print(line)
        if check.advice:
            console.print(Text(f"{'':6}{'':{width}}  -> {check.advice}", style="dim"))


def counter(display: Display, description: str, read_progress: ReadProgress | None = None) -> Progress:
    """A progress callback ``(done_bytes, done_documents)``; ``read_progress`` gives the time left."""
    known = read_progress is not None and read_progress.share is not None
    task = display.task(description, total=1.0 if known else None, unit="" if known else "texts")
    began = time.monotonic()

    def progress(done_bytes: int, done_documents: int) -> None:
        note = formats.memory(done_bytes) if done_bytes else ""
        if read_progress is None or read_progress.share is None:
            task.update(done_documents, note=note)
            return
        speed = done_documents / max(1e-9, time.monotonic() - began)
        task.update(read_progress.share, rate=f"{formats.rate(speed)} texts/s", note=note)

    return progress
