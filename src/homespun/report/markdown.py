"""Reports as Markdown, tables as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

from homespun.report.confusion import Confusion
from homespun.report.document import Code, Content, Details, Document, Gallery, Heatmap, Notice, Paragraph, TableBlock
from homespun.report.table import Table


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
            return [f"### {escape(title)}", *_inner(contents)]


def _inner(contents: Sequence[Content]) -> list[str]:
    return [block for item in contents for block in _blocks(item)]


def _in_percent(counts: Table, confusion: Confusion) -> Table:
    rows = tuple((label, *row) for label, row in zip(confusion.labels, confusion.percent(), strict=True))
    return Table(counts.name, counts.title, counts.columns, rows)
