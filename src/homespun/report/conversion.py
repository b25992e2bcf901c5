"""What became of the tensors of a model that was converted, as a few tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from homespun.report.table import Column, Table

_NUMBER = r"(?<=\.)\d+(?=\.|$)"


def conversion_tables(report: Mapping[str, Any]) -> list[Table]:
    """The tensors that were mapped, those that were left out, and those that are new, the layers in one row."""
    mapped = by_layers((name, *names) for name, names in report["mapped"].items())
    tables = [
        Table(
            "mapped",
            "Tensors, where they came from and where they went",
            (Column("from", numeric=False), Column("to", numeric=False), Column("tensors")),
            tuple((names[0], " + ".join(names[1:]), count) for names, count in mapped),
        )
    ]
    for key, title in (("dropped", "Left out"), ("new", "New: not in the source")):
        grouped = by_layers((name, reason) for name, reason in report[key].items())
        if grouped:
            columns = (Column("tensor", numeric=False), Column("why", numeric=False), Column("tensors"))
            tables.append(Table(key, title, columns, tuple((*row, count) for row, count in grouped)))
    return tables


def by_layers(rows: Iterable[Sequence[str]]) -> list[tuple[tuple[str, ...], int]]:
    """Rows of names that differ in numbers alone as one, with how many they are: ``layers.{0-11}.bias``."""
    groups: dict[tuple[str, ...], list[list[list[int]]]] = {}
    for row in rows:
        shape = tuple(re.sub(_NUMBER, "\0", name) for name in row)
        groups.setdefault(shape, []).append([[int(n) for n in re.findall(_NUMBER, name)] for name in row])
    return [
        (
            tuple(_filled(name, [found[place] for found in all_found]) for place, name in enumerate(shape)),
            len(all_found),
        )
        for shape, all_found in groups.items()
    ]


def _filled(name: str, numbers: Sequence[Sequence[int]]) -> str:
    for few in zip(*numbers, strict=True):
        span = str(few[0]) if len(set(few)) == 1 else f"{{{min(few)}-{max(few)}}}"
        name = name.replace("\0", span, 1)
    return name
