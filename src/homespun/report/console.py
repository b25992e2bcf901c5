"""Tables and progress for a terminal; imports nothing heavier than rich, so that commands start fast."""

from __future__ import annotations

import sys
import textwrap
import time
from types import TracebackType
from typing import Literal, Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable
from rich.text import Text

from homespun.report import formats
from homespun.report.table import Table, texts

_EVERY = 10.0
"""Seconds between two lines where the output is not a terminal."""


def rich_table(table: Table) -> RichTable:
    """A table without its note for `rich.console.Console.print`; text is never read as markup."""
    shown = RichTable(title=Text(_plain(table.title)), title_justify="left", box=None)
    cells = [[_plain(cell) for cell in row] for row in table.cells()]
    for column, width in zip(table.columns, _widths(table, cells), strict=True):
        # numbers are never broken: their headings give way, and the columns of texts
        title = "\n".join(textwrap.wrap(_plain(column.title), width)) if column.numeric else _plain(column.title)
        justify: Literal["left", "right"] = "right" if column.numeric else "left"
        shown.add_column(
            Text(title), justify=justify, no_wrap=column.numeric, overflow="fold", min_width=width, vertical="top"
        )
    for row in cells:
        shown.add_row(*map(Text, row))
    return shown


def _widths(table: Table, cells: list[list[str]]) -> list[int]:
    """Minimum width of each column: widest number or 14 letters of text, and longest word of the heading."""
    widths = []
    for i, column in enumerate(table.columns):
        widest = max((len(row[i]) for row in cells), default=1)
        heading = max(map(len, column.title.split()), default=1)
        widths.append(max(widest if column.numeric else min(widest, 14), heading))
    return widths


def print_tables(*tables: Table) -> None:
    """Print tables to standard output; one too wide for the terminal is transposed."""
    console = Console()
    for table in tables:
        least = sum(_widths(table, table.cells())) + 2 * len(table.columns)
        console.print(rich_table(table if least <= console.width else _transposed(table)))
        if table.note:
            console.print(Text(_plain(table.note), style="dim"))
        console.print()


def _transposed(table: Table) -> Table:
    """Swap rows and columns."""
    cells = table.cells()
    heads = texts(table.columns[0].title, *(row[0] for row in cells))
    rows = tuple((column.title, *(row[i + 1] for row in cells)) for i, column in enumerate(table.columns[1:]))
    return Table(table.name, table.title, heads, rows, table.note)


class ProgressTask(Protocol):
    """Long work with progress."""

    def update(self, done: float, *, note: str = "", rate: str | None = None, left: float | None = None) -> None:
        """Report ``done`` of the total; ``rate`` and ``left`` (seconds) replace the computed values."""


class Display:
    """Show long work on standard error: bars in a terminal, else a line every ten seconds, with ``json`` nothing.

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
        """Start work of ``total`` ``unit``; None: unknown. A total without a unit is shown in percent."""
        clock = _Clock(total, unit)
        if self.json:
            return _Silence()
        if self._bars is not None:
            return _Bar(self._bars, _plain(description), clock)
        return _Line(self._stream, _plain(description), clock)


class _Clock:
    """Rate and time left of a task since its first report, as a resumed one does not start at zero."""

    def __init__(self, total: float | None, unit: str) -> None:
        self.total, self.unit = total, unit
        self.started = time.monotonic()
        self.first: tuple[float, float] | None = None

    def words(self, done: float, rate: str | None, left: float | None) -> tuple[str, str]:
        """Rate and time left; empty if unknown."""
        now = time.monotonic()
        if self.first is None:
            # an immediate first report is of work before a resume; a later one is work of this task
            self.first = (now, done) if now - self.started < 0.5 else (self.started, 0.0)
        then, before = self.first
        speed = (done - before) / (now - then) if now > then and done > before else 0.0
        if rate is None:
            rate = f"{formats.rate(speed)} {self.unit}/s" if speed and self.unit else ""
        if left is None and speed and self.total is not None:
            left = max(0.0, self.total - done) / speed
        return rate, "" if left is None else f"{formats.duration(left)} left"

    def share(self, done: float) -> str:
        """Percent, or the amount if the total is unknown."""
        return (
            f"{formats.count(done)} {self.unit}" if not self.total else f"{min(100.0, 100 * done / self.total):.0f} %"
        )


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


class _Silence:
    def update(self, done: float, *, note: str = "", rate: str | None = None, left: float | None = None) -> None:
        pass


class _Bar:
    def __init__(self, progress: Progress, description: str, clock: _Clock) -> None:
        self.progress, self.clock = progress, clock
        self.number = progress.add_task(description, total=clock.total, share="", rate="", left="", note="")

    def update(self, done: float, *, note: str = "", rate: str | None = None, left: float | None = None) -> None:
        rate, remaining = self.clock.words(done, rate, left)
        share, rate, note = self.clock.share(done), _plain(rate), _plain(note)
        self.progress.update(self.number, completed=done, share=share, rate=rate, left=remaining, note=note)


class _Line:
    def __init__(self, stream: TextIO, description: str, clock: _Clock) -> None:
        self.stream, self.description, self.clock = stream, description, clock
        self.printed = time.monotonic()
        self.finished = False

    def update(self, done: float, *, note: str = "", rate: str | None = None, left: float | None = None) -> None:
        rate, remaining = self.clock.words(done, rate, left)
        now = time.monotonic()
        complete = self.clock.total is not None and done >= self.clock.total
        if (now - self.printed < _EVERY and not complete) or self.finished:
            return
        self.printed, self.finished = now, complete
        elapsed = formats.duration(now - self.clock.started)
        parts = [self.clock.share(done), rate, elapsed, "" if complete else remaining, note]
        print(f"{self.description}: {', '.join(_plain(part) for part in parts if part)}", file=self.stream, flush=True)


def _plain(text: str) -> str:
    """Remove control characters: names from files must not control the terminal."""
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))
