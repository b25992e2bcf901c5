"""Reports: paragraphs, tables and figures in chapters, written as an HTML page, Markdown and CSV."""

from __future__ import annotations

import base64
import csv
import io
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from homespun.errors import UserError
from homespun.io.atomic import write_bytes, write_text
from homespun.report.plots import Plot
from homespun.report.summary import environment
from homespun.report.table import Table
from homespun.results import ConfusionMatrix


@dataclass(frozen=True)
class Paragraph:
    """A paragraph with an optional heading."""

    kind: ClassVar = "paragraph"
    text: str
    title: str = ""


@dataclass(frozen=True)
class Notice:
    """A highlighted paragraph."""

    kind: ClassVar = "notice"
    text: str


@dataclass(frozen=True)
class TableBlock:
    """A table."""

    kind: ClassVar = "table"
    table: Table


@dataclass(frozen=True)
class Heatmap:
    """A confusion matrix as coloured cells."""

    kind: ClassVar = "heatmap"
    title: str
    table: Table
    confusion: ConfusionMatrix


@dataclass(frozen=True)
class Gallery:
    """Figures with a common title and note."""

    kind: ClassVar = "gallery"
    title: str
    plots: Sequence[Plot]
    note: str


@dataclass(frozen=True)
class Code:
    """Verbatim text: commands, a config."""

    kind: ClassVar = "code"
    text: str


@dataclass(frozen=True)
class Details:
    """Folded content."""

    kind: ClassVar = "details"
    title: str
    contents: Sequence[Content]


Content = Paragraph | Notice | TableBlock | Heatmap | Gallery | Code | Details


@dataclass(frozen=True)
class Chapter:
    """A heading and its content."""

    title: str
    contents: Sequence[Content]


@dataclass(frozen=True)
class Document:
    """A report.

    Tables and figures are files by their names; a name that is taken gets a number at its end.
    """

    title: str
    lead: Sequence[Content]
    chapters: Sequence[Chapter]

    def __post_init__(self) -> None:
        taken: set[tuple[type, str]] = set()
        items: list[Table | Plot] = [*self.tables(), *self.plots()]
        for item in items:
            names = itertools.chain([item.name], (f"{item.name}-{number}" for number in itertools.count(2)))
            item.name = next(name for name in names if (type(item), name) not in taken)
            taken.add((type(item), item.name))

    def tables(self) -> list[Table]:
        """All tables, folded ones included."""
        return [item.table for item in self._all() if isinstance(item, TableBlock | Heatmap)]

    def plots(self) -> list[Plot]:
        """All figures."""
        return [plot for item in self._all() if isinstance(item, Gallery) for plot in item.plots]

    def _all(self) -> list[Content]:
        found: list[Content] = []
        waiting = [*self.lead, *(item for chapter in self.chapters for item in chapter.contents)]
        while waiting:
            found.append(item := waiting.pop(0))
            if isinstance(item, Details):
                waiting = [*item.contents, *waiting]
        return found


def write_document(document: Document, out: Path) -> Path:
    """Write a report into the folder ``out``: tables and figures, ``report.md``, and last ``index.html``, which is
    returned.

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
    write_text(page, html(document))
    return page


def html(document: Document) -> str:
    """The document as one HTML page without other files, network or scripts."""
    return environment().get_template("report.html.j2").render(document=document, data_uri=_data_uri)


def _data_uri(plot: Plot) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(plot.svg).decode()}"


def markdown(document: Document) -> str:
    """The report as GitHub Markdown, with the figures in ``plots/``."""
    blocks = [f"# {escape(document.title)}", *(block for item in document.lead for block in _blocks(item))]
    for chapter in document.chapters:
        blocks.append(f"## {escape(chapter.title)}")
        blocks += [block for item in chapter.contents for block in _blocks(item)]
    return "\n\n".join(blocks) + "\n"


def markdown_table(table: Table) -> str:
    """A table as Markdown."""
    head = [escape(column.title) for column in table.columns]
    rule = ["---:" if column.numeric else "---" for column in table.columns]
    body = [[escape(cell) for cell in row] for row in table.cells()]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *body])


def csv_text(table: Table) -> str:
    """A table as CSV with raw values; text that a spreadsheet would run as a formula gets an apostrophe."""
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
    """Text in one line, with the markup of Markdown and HTML escaped."""
    return re.sub(r"([\\`*_\[\]<>|#~$&!])", r"\\\1", " ".join(text.split()))


def _no_formula(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value[:1] in {"=", "+", "-", "@", "\t", "\r"} else value


def _blocks(item: Content) -> list[str]:
    match item:
        case Paragraph(text, title):
            return [*([f"### {escape(title)}"] if title else []), *([escape(text)] if text else [])]
        case Notice(text):
            return [f"> **{escape(text)}**"]
        case TableBlock(table):
            note = [escape(table.note)] if table.note else []
            return [f"### {escape(table.title)}", markdown_table(table), *note]
        case Heatmap(title, counts, confusion):
            return [f"### {escape(title)}", "Percent of each row.", markdown_table(_in_percent(counts, confusion))]
        case Gallery(title, plots, note):
            images = [f"![{escape(plot.caption)}](plots/{plot.name}.svg)" for plot in plots]
            return [f"### {escape(title)}", escape(note), *images]
        case Code(text):
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
            return [f"{fence}\n{text.rstrip()}\n{fence}"]
        case Details(title, contents):
            return [f"### {escape(title)}", *(block for item in contents for block in _blocks(item))]


def _in_percent(counts: Table, confusion: ConfusionMatrix) -> Table:
    rows = tuple((label, *row) for label, row in zip(confusion.labels, confusion.percent(), strict=True))
    return Table(counts.name, counts.title, counts.columns, rows)
