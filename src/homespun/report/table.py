"""Tables of raw values, with a writer for each column."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from homespun.report import formats

Writer = Callable[[object], str]
Row = tuple[object, ...]


@dataclass(frozen=True)
class Column:
    """One column.

    Args:
        title: heading.
        write: formats a value.
        numeric: aligned to the right.
        parts: names of the members of tuple values, which are one cell on a page and a column each in a CSV file.
    """

    title: str
    write: Writer = formats.text
    numeric: bool = True
    parts: tuple[str, ...] = ()


def texts(*titles: str) -> tuple[Column, ...]:
    """Columns of text."""
    return tuple(Column(title, numeric=False) for title in titles)


def numbers(write: Writer, *titles: str) -> tuple[Column, ...]:
    """Columns of numbers with the same format."""
    return tuple(Column(title, write) for title in titles)


def spreads(write: Writer, *titles: str) -> tuple[Column, ...]:
    """Columns of pairs of mean and standard deviation."""
    return tuple(Column(title, write, parts=("mean", "deviation")) for title in titles)


@dataclass
class Table:
    """A table.

    Args:
        name: of its file in ``tables/``.
        title: caption.
        columns: headings and formats.
        rows: raw values; None if missing.
        note: explanation below the table.
        marked: indices of highlighted rows.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str = ""
    marked: frozenset[int] = frozenset()

    def cells(self) -> list[list[str]]:
        """The rows as formatted text."""
        return [[column.write(value) for column, value in zip(self.columns, row, strict=True)] for row in self.rows]

    def without_empty_columns(self) -> Table:
        """The same table without the columns in which every value is missing."""
        kept = [i for i in range(len(self.columns)) if any(row[i] is not None for row in self.rows)]
        columns = tuple(self.columns[i] for i in kept)
        return replace(self, columns=columns, rows=tuple(tuple(row[i] for i in kept) for row in self.rows))


def slug(name: str) -> str:
    """A file name for ``name``; different names have different ones."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "_.+=-") else "-" for c in name)[:48] or "all"
    return plain if plain == name else f"{plain}-{hashlib.blake2b(name.encode(), digest_size=3).hexdigest()}"
