"""Terminal output of commands: tables, checks, progress. Imports only rich, so that commands start fast."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable
from rich.text import Text

from homespun.errors import escape
from homespun.report import formats
from homespun.report.document import Column, Getter, Row, Table, text, texts, value

if TYPE_CHECKING:
    from homespun.data.corpus_build import Progress as Callback
    from homespun.report.records import Tree
    from homespun.text.sources import ReadProgress

_EVERY = 10.0
"""Seconds between two lines where the output is not a terminal."""


def rich_table(table: Table) -> RichTable:
    """Convert a table without its note for `rich.console.Console.print`; text is never parsed as markup."""
    shown = RichTable(title=Text(_plain(table.title)), title_justify="left", box=None)
    cells = [[_plain(cell) for cell in row] for row in table.cells()]
    marks = [[Text(">" if number in table.marked else "")] if table.marked else [] for number in range(len(cells))]
    if table.marked:
        shown.add_column(width=1)
    for column, width in zip(table.columns, _widths(table, cells), strict=True):
        # numbers are never broken: their headings give way, and the columns of texts
        title = "\n".join(textwrap.wrap(_plain(column.title), width)) if column.numeric else _plain(column.title)
        justify: Literal["left", "right"] = "right" if column.numeric else "left"
        shown.add_column(
            Text(title), justify=justify, no_wrap=column.numeric, overflow="fold", min_width=width, vertical="top"
        )
    for mark, row in zip(marks, cells, strict=True):
        shown.add_row(*mark, *map(Text, row))
    return shown


def _widths(table: Table, cells: list[list[str]]) -> list[int]:
    """Compute the minimum width of each column: widest number or 14 letters, and longest word of the heading."""
    widths = []
    for i, column in enumerate(table.columns):
        widest = max((len(row[i]) for row in cells), default=1)
        heading = max(map(len, column.title.split()), default=1)
        widths.append(max(widest if column.numeric else min(widest, 14), heading))
    return widths


def print_tables(*tables: Table) -> None:
    """Print tables with rows to standard output; a table too wide for the terminal is transposed and divided."""
    console = Console()
    for table in (table for table in tables if table.rows):
        least = sum(_widths(table, table.cells())) + 2 * len(table.columns) + 3 * bool(table.marked)
        parts = [table] if least <= console.width else _divided(_transposed(table), console.width)
        for number, part in enumerate(parts):
            if number:
                console.print()
            console.print(rich_table(part))
        if table.note:
            console.print(Text(_plain(table.note), style="dim"))
        console.print()


def _transposed(table: Table) -> Table:
    """Swap rows and columns."""
    cells = table.cells()
    marks = ("> " if number in table.marked else "" for number in range(len(cells)))
    heads = texts(table.columns[0].title, *(mark + row[0] for mark, row in zip(marks, cells, strict=True)))
    rows = tuple((column.title, *(row[i + 1] for row in cells)) for i, column in enumerate(table.columns[1:]))
    return Table(table.name, table.title, heads, rows, table.note)


def _divided(table: Table, width: int) -> list[Table]:
    """Divide a table into tables of the first column and as many others as ``width`` holds, at least one."""
    cells = table.cells()
    widest = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
    first, *widths = (max(least, min(most, 20)) + 2 for least, most in zip(_widths(table, cells), widest, strict=True))
    groups, used = list[list[int]](), width
    for index, needed in enumerate(widths, start=1):
        if used + needed > width:
            groups.append([])
            used = first
        groups[-1].append(index)
        used += needed
    return [table.keep((0, *group)) for group in groups]


class Display:
    """Progress display on standard error: bars in a terminal, else a line every ten seconds; nothing with ``json``.

    ::

        with Display(json=json) as display:
            task = display.task("pretrain electra-tiny", total=1.0)
            for step in trainer:
                task.update(step.share, rate="12.3k tokens/s", note=f"loss {step.loss:.2f}")
    """

    def __init__(self, *, json: bool = False, stream: TextIO | None = None) -> None:
        self.json = json
        self._stream = sys.stderr if stream is None else stream
        self._bars = None if json or not self._stream.isatty() else _make_bars(self._stream)

    def __enter__(self) -> Display:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop, so that another process can use the terminal."""
        if self._bars is not None:
            self._bars.stop()

    def line(self, text: str) -> None:
        """Show a line above the bars; nothing with ``json``."""
        if self._bars is not None:
            self._bars.console.print(_plain(text), markup=False, highlight=False, soft_wrap=True)
        elif not self.json:
            print(_plain(text), file=self._stream, flush=True)

    def task(self, description: str, *, total: float | None, unit: str = "") -> ProgressTask:
        """Start a task of ``total`` ``unit``; None: unknown. A total without a unit is shown in percent."""
        return ProgressTask(_plain(description), total, unit, self._bars, None if self.json else self._stream)


SILENT = Display(json=True)
"""Display that shows nothing."""


class ProgressTask:
    """Task with progress, shown as a bar or as lines, or not at all.

    Rate and time left are computed since the first report, as resumed work does not start at zero.
    """

    def __init__(
        self, description: str, total: float | None, unit: str, bars: Progress | None, lines: TextIO | None
    ) -> None:
        self._description, self._total, self._unit = description, total, unit
        self._bars, self._lines = bars, lines
        self._started = self._printed = time.monotonic()
        self._first: tuple[float, float] | None = None  # time and done work
        self._finished = False
        self._bar = (
            None if bars is None else bars.add_task(description, total=total, share="", rate="", left="", note="")
        )

    def update(self, done: float, *, note: str = "", rate: str | None = None, left: float | None = None) -> None:
        """Report ``done`` of the total; ``rate`` and ``left`` (seconds) replace the computed values."""
        now = time.monotonic()
        speed = self._speed(done, now)
        if rate is None:
            rate = f"{formats.rate(speed)} {self._unit}/s" if speed and self._unit else ""
        if left is None and speed and self._total is not None:
            left = max(0.0, self._total - done) / speed
        share = f"{formats.count(done)} {self._unit}".strip()
        if self._total:
            share = f"{min(100.0, 100 * done / self._total):.0f} %"
        remaining, rate, note = "" if left is None else f"{formats.duration(left)} left", _plain(rate), _plain(note)
        if self._bars is not None and self._bar is not None:
            self._bars.update(self._bar, completed=done, share=share, rate=rate, left=remaining, note=note)
        elif self._lines is not None:
            complete = self._total is not None and done >= self._total
            if (now - self._printed >= _EVERY or complete) and not self._finished:
                self._printed, self._finished = now, complete
                # a task can start with its only report, which has no duration
                elapsed = formats.duration(now - self._started) if now - self._started >= 0.01 else ""
                parts = [share, rate, elapsed, "" if complete else remaining, note]
                print(f"{self._description}: {', '.join(filter(None, parts))}", file=self._lines, flush=True)

    def _speed(self, done: float, now: float) -> float:
        """Return the work in a second since the first report."""
        if self._first is None:
            # an immediate first report is of work before a resume; a later one is work of this task
            self._first = (now, done) if now - self._started < 0.5 else (self._started, 0.0)
        then, before = self._first
        return (done - before) / (now - then) if now > then and done > before else 0.0


def _make_bars(stream: TextIO) -> Progress:
    rate, left, note = (TextColumn(f"{{task.fields[{key}]}}", markup=False) for key in ("rate", "left", "note"))
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[share]}", markup=False, justify="right"),
        *(rate, TimeElapsedColumn(), left, note),
        console=Console(file=stream),
        # printed lines go above the bars, unless they go into a file or a pipe
        redirect_stdout=sys.stdout.isatty(),
    )


def _plain(text: str) -> str:
    """Remove control characters: names from files must not control the terminal."""
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))


def print_facts(facts: Mapping[str, object]) -> None:
    """Print a line for each name and value."""
    console = Console(soft_wrap=True)
    width = max(map(len, facts), default=0)
    for name, fact in facts.items():
        shown = formats.text(fact) if isinstance(fact, str) else _written(fact)
        console.print(Text(f"{name.replace('_', ' '):{width}}  {escape(shown)}"))


def _written(fact: object) -> str:
    if isinstance(fact, bool) or fact is None:
        return "-" if fact is None else ("yes" if fact else "no")
    if isinstance(fact, int | float):
        return f"{fact:,}" if isinstance(fact, int) else f"{fact:,.4g}"
    if isinstance(fact, Mapping):
        return ", ".join(f"{key} {_written(item)}" for key, item in fact.items())
    return str(fact)


def print_run(path: str | Path) -> None:
    """Print the tables and summary of a finished run, and the path of its page."""
    from homespun.report.records import read_runs
    from homespun.report.summary import summary, warnings
    from homespun.report.tables import learning_curve, losses, resources, results

    records = read_runs([path])
    tables = [*results(records), learning_curve(records[0], "examples"), *losses(records), resources(records)]
    print_tables(*tables)
    console = Console(soft_wrap=True)
    for sentence in [*summary(records), *warnings(records)]:
        console.print(Text(escape(sentence)))
    console.print(Text(f"\nreport: {escape(str(Path(path) / 'report' / 'index.html'))}"))


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
    tables = [overall, per_class(test, "per_class"), *([confusion_table(matrix, "confusion")] if matrix else [])]
    print_tables(*tables)


def print_lengths(rows: Sequence[Tree]) -> None:
    """Print lengths in tokens: a row for each split and class, with a histogram on a logarithmic axis."""

    def above(limit: str) -> Getter[Tree]:
        return value(f"above {limit}", lambda row: row["above"][limit], formats.percent)

    edges = rows[0]["histogram"]["edges"]
    table = Table.of(
        "lengths",
        "Lengths in tokens",
        rows,
        text("split", lambda row: row["split"]),
        text("class", lambda row: row["class"]),
        value("texts", lambda row: row["count"], formats.integer),
        value("mean", lambda row: row["mean"], formats.rate),
        value("median", lambda row: row["median"], formats.rate),
        value("minimum", lambda row: row["minimum"], formats.integer),
        value("maximum", lambda row: row["maximum"], formats.integer),
        *map(above, rows[0]["above"]),
        text("histogram", lambda row: _bars(row["histogram"]["counts"])),
        note=f"Histogram: {edges[0]:,.0f} to {edges[-1]:,.0f} tokens, evenly spaced in the logarithm.",
    )
    print_tables(table)


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


def counter(display: Display, description: str, read_progress: ReadProgress | None = None) -> Callback:
    """Build a progress callback ``(done_bytes, done_documents)``; ``read_progress`` gives the time left."""
    known = read_progress is not None and read_progress.share is not None
    task: ProgressTask | None = None
    first = (0.0, 0)  # time and documents of the first report, before which a model is opened

    def progress(done_bytes: int, done_documents: int) -> None:
        nonlocal task, first
        now = time.monotonic()
        if task is None:
            task = display.task(description, total=1.0 if known else None, unit="" if known else "texts")
            first = (now, done_documents)
        elapsed, documents = now - first[0], done_documents - first[1]
        rate = f"{formats.rate(documents / elapsed)} texts/s" if documents and elapsed > 0 else ""
        share = None if read_progress is None else read_progress.share
        note = formats.memory(done_bytes) if done_bytes else ""
        task.update(done_documents if share is None else share, rate=rate, note=note)

    return progress
