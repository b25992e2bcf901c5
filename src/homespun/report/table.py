"""A table before anyone has decided how to show it: raw values, and for each column how they are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from homespun.report import formats


@dataclass(frozen=True)
class Column:
    """One column: its heading, and how its values are written. Numbers stand to the right.

    Where values are tuples ``parts`` names their members: people read one cell, a CSV file has a column for each.
    """

    title: str
    write: Callable[[Any], str] = formats.text
    numeric: bool = True
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """``rows`` hold raw values, ``None`` where there is none; `cells` are what people read.

    ``name`` is the file name in ``tables/``; ``note`` says what the reader must know to read the numbers; ``marked``
    are the numbers of the rows to point at, all alike.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    note: str = ""
    marked: frozenset[int] = frozenset()

    def cells(self) -> list[list[str]]:
        """The rows as written."""
        return [[column.write(value) for column, value in zip(self.columns, row, strict=True)] for row in self.rows]

    def without_empty_columns(self) -> Table:
        """The same table less the columns in which no row has a value."""
        kept = [i for i in range(len(self.columns)) if any(row[i] is not None for row in self.rows)]
        columns = tuple(self.columns[i] for i in kept)
        return replace(self, columns=columns, rows=tuple(tuple(row[i] for i in kept) for row in self.rows))
