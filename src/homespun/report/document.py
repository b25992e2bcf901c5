"""Reports of tables, figures and text in chapters, written as HTML, Markdown and CSV."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from homespun.errors import UserError
from homespun.io.atomic import write_bytes, write_text
from homespun.report import formats
from homespun.report.formats import Writer

if TYPE_CHECKING:
    from jinja2 import Environment

    from homespun.report.figure import Plot
    from homespun.results import ConfusionMatrix

Row = tuple[object, ...]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Column:
    """Column of a table."""

    title: str
    write: Writer = formats.text
    numeric: bool = True  # whether cells are aligned to the right

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the members of pairs, which are one cell on a page and separate columns in a CSV file."""
        if self.write in (formats.spread, formats.share_spread, formats.loss_spread):
            return ("mean", "deviation")
        return ("low", "high") if self.write in (formats.interval, formats.points_interval) else ()


def texts(*titles: str) -> tuple[Column, ...]:
    """Build text columns."""
    return tuple(Column(title, numeric=False) for title in titles)


def numbers(write: Writer, *titles: str) -> tuple[Column, ...]:
    """Build columns of numbers, or of pairs if the format is for pairs."""
    return tuple(Column(title, write) for title in titles)


@dataclass(frozen=True)
class Getter(Generic[Item]):
    """Column with a function that returns its value for an item."""

    column: Column
    get: Callable[[Item], object]


def text(title: str, get: Callable[[Item], object], write: Writer = formats.text) -> Getter[Item]:
    """Build a text column."""
    return Getter(Column(title, write, numeric=False), get)


def value(title: str, get: Callable[[Item], object], write: Writer) -> Getter[Item]:
    """Build a column of numbers, or of pairs if the format is for pairs."""
    return Getter(Column(title, write), get)


@dataclass
class Table:
    """Table of raw values."""

    name: str  # name of its file in ``tables/``
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]  # raw values; None is a missing value
    note: str = ""  # text below the table
    marked: frozenset[int] = frozenset()  # indices of highlighted rows

    @classmethod
    def of(
        cls, name: str, title: str, items: Iterable[Item], *columns: Getter[Item], note: str = "", sparse: bool = False
    ) -> Table:
        """Build a table with a row for each item; ``sparse`` removes empty columns."""
        rows = tuple(tuple(column.get(item) for column in columns) for item in items)
        table = cls(name, title, tuple(column.column for column in columns), rows, note)
        return table.without_empty_columns() if sparse else table

    def cells(self) -> list[list[str]]:
        """Return the rows as formatted text."""
        return [[column.write(value) for column, value in zip(self.columns, row, strict=True)] for row in self.rows]

    def without_empty_columns(self) -> Table:
        """Return the table without columns in which every value is missing."""
        return self.keep(i for i in range(len(self.columns)) if any(row[i] is not None for row in self.rows))

    def without(self, *titles: str) -> Table:
        """Return the table without the columns of these titles."""
        return self.keep(i for i, column in enumerate(self.columns) if column.title not in titles)

    def keep(self, kept: Iterable[int]) -> Table:
        """Return the table with only the columns of these indices."""
        kept = list(kept)
        columns = tuple(self.columns[i] for i in kept)
        return replace(self, columns=columns, rows=tuple(tuple(row[i] for i in kept) for row in self.rows))


def slug(name: str) -> str:
    """Convert ``name`` to a file name; different names have different file names."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "_.+=-") else "-" for c in name)[:48] or "all"
    return plain if plain == name else f"{plain}-{hashlib.blake2b(name.encode(), digest_size=3).hexdigest()}"


@dataclass(frozen=True)
class Block:
    """Part of a chapter. The functions below return lists of blocks, which are empty without content."""

    kind: Literal["paragraph", "notice", "code", "table", "heatmap", "gallery", "details"]  # macro of report.html.j2
    title: str = ""
    text: str = ""  # content of a paragraph, a notice or code; text above figures and tables
    table: Table | None = None
    confusion: ConfusionMatrix | None = None  # matrix whose cells are coloured
    plots: Sequence[Plot] = ()  # figures side by side
    blocks: Sequence[Block] = ()  # folded content

    def all(self) -> Iterator[Block]:
        """Yield this block and its folded blocks."""
        yield self
        for block in self.blocks:
            yield from block.all()


def paragraphs(*found: str | None) -> list[Block]:
    """Build a paragraph for each text."""
    return [Block("paragraph", text=text) for text in found if text]


def notices(*found: str | None) -> list[Block]:
    """Build a highlighted paragraph for each text."""
    return [Block("notice", text=text) for text in found if text]


def code(text: str) -> list[Block]:
    """Build a block of verbatim text, such as commands or a config."""
    return [Block("code", text=text)] if text else []


def tabular(*found: Table | None) -> list[Block]:
    """Build blocks of tables that have rows."""
    return [Block("table", table.title, table=table) for table in found if table is not None and table.rows]


def gallery(title: str, plots: Iterable[Plot | None], note: str) -> list[Block]:
    """Build figures with a common title and note."""
    drawn = [plot for plot in plots if plot is not None]
    return [Block("gallery", title, note, plots=drawn)] if drawn else []


def details(title: str, blocks: Sequence[Block]) -> list[Block]:
    """Fold blocks."""
    return [Block("details", title, blocks=blocks)] if blocks else []


def first_open(named: Mapping[str, Sequence[Block]]) -> list[Block]:
    """Return the blocks of the first name that has any, and fold the blocks of the others."""
    present = [(name, blocks) for name, blocks in named.items() if blocks]
    folded = (details(name, blocks) for name, blocks in present[1:])
    return [*(present[0][1] if present else ()), *itertools.chain.from_iterable(folded)]


@dataclass(frozen=True)
class Document:
    """Report; chapters without content are left out.

    Tables and figures are files with their names; a duplicate name gets a number.
    """

    title: str
    lead: Sequence[Block]
    chapters: Mapping[str, Sequence[Block]]

    def __post_init__(self) -> None:
        for items in (self.tables(), self.plots()):
            taken: set[str] = set()
            for item in items:
                names = itertools.chain([item.name], (f"{item.name}-{number}" for number in itertools.count(2)))
                item.name = next(name for name in names if name not in taken)
                taken.add(item.name)

    def _blocks(self) -> Iterator[Block]:
        for block in itertools.chain(self.lead, *self.chapters.values()):
            yield from block.all()

    def tables(self) -> list[Table]:
        """Return all tables, including folded ones."""
        return [block.table for block in self._blocks() if block.table is not None]

    def plots(self) -> list[Plot]:
        """Return all figures."""
        return [plot for block in self._blocks() for plot in block.plots]


def write_document(document: Document, out: Path) -> Path:
    """Write a report into the folder ``out``, and return its ``index.html``, which is written last.

    Tables, figures and ``report.md`` are written too.

    Raises:
        UserError: ``out`` is a file, or under one.
    """
    try:
        for folder in (out, out / "tables", out / "plots"):
            folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(f"cannot write a report to {out}: a file is in the way; name a folder") from error
    for table in document.tables():
        write_text(out / "tables" / f"{table.name}.csv", csv_text(table))
    for plot in document.plots():
        write_bytes(out / "plots" / f"{plot.name}.svg", plot.svg)
        write_bytes(out / "plots" / f"{plot.name}.png", plot.png)
    write_text(out / "report.md", markdown(document))
    page = out / "index.html"
    write_text(page, templates().get_template("report.html.j2").render(document=document, data_uri=_data_uri))
    return page


@cache
def templates() -> Environment:
    """Return the templates of this package, which escape HTML in ``.html.j2`` files and have `formats` as filters."""
    import jinja2

    found = jinja2.Environment(
        loader=jinja2.PackageLoader("homespun.report"),
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {name: value for name, value in vars(formats).items() if isinstance(value, FunctionType)}
    return found


def fill(template: str, macro: str, **values: object) -> str:
    """Render a macro of a template as one line."""
    module = templates().get_template(f"{template}.j2").module
    return re.sub(r"[ \n]+", " ", str(getattr(module, macro)(**values))).strip()


def _data_uri(plot: Plot) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(plot.svg).decode()}"


def markdown(document: Document) -> str:
    """Render the report as GitHub Markdown, with the figures in ``plots/``."""
    parts = [f"# {escape(document.title)}", *_markdown(document.lead)]
    for title, blocks in document.chapters.items():
        parts += [f"## {escape(title)}", *_markdown(blocks)] if blocks else []
    return "\n\n".join(parts) + "\n"


def _markdown(blocks: Iterable[Block]) -> Iterator[str]:
    for block in blocks:
        if block.title:
            yield f"### {escape(block.title)}"
        if block.kind == "code":
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
            yield f"{fence}\n{block.text.rstrip()}\n{fence}"
        elif block.text:
            yield f"> **{escape(block.text)}**" if block.kind == "notice" else escape(block.text)
        if block.table is not None:
            yield markdown_table(_in_percent(block.table, block.confusion) if block.confusion else block.table)
            yield from [escape(block.table.note)] if block.table.note and not block.confusion else []
        yield from (f"![{escape(plot.caption)}](plots/{plot.name}.svg)" for plot in block.plots)
        yield from _markdown(block.blocks)


def markdown_table(table: Table) -> str:
    """Render a table as Markdown."""
    head = [escape(column.title) for column in table.columns]
    rule = ["---:" if column.numeric else "---" for column in table.columns]
    body = [[escape(cell) for cell in row] for row in table.cells()]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *body])


def _in_percent(counts: Table, confusion: ConfusionMatrix) -> Table:
    rows = tuple((label, *row) for label, row in zip(confusion.labels, confusion.percent(), strict=True))
    return replace(counts, rows=rows)


def csv_text(table: Table) -> str:
    """Render a table as CSV with raw values; text that a spreadsheet would run as a formula gets an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heads = [[f"{c.title}, {part}" for part in c.parts] if c.parts else [c.title] for c in table.columns]
    writer.writerow([_no_formula(title) for titles in heads for title in titles])
    for row in table.rows:
        cells: list[object] = []
        for column, value in zip(table.columns, row, strict=True):
            pair = value if isinstance(value, (tuple, list)) else [None] * len(column.parts)
            cells += pair if column.parts else [value]
        writer.writerow([_no_formula(cell) for cell in cells])
    return out.getvalue()


def escape(text: str) -> str:
    """Return text in one line, with the markup of Markdown and HTML escaped."""
    return re.sub(r"([\\`*_\[\]<>|#~$&!])", r"\\\1", " ".join(text.split()))


def _no_formula(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value[:1] in {"=", "+", "-", "@", "\t", "\r"} else value
