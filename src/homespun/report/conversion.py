"""Tables of the tensors of a converted model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from homespun.report.table import Column, Table, texts

_NUMBER = r"(?<=\.)\d+(?=\.|$)"


def conversion_tables(report: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """Tables of mapped, dropped and new tensors; layers share a row."""
    mapped = weights_and_biases(by_layers((name, *names) for name, names in report["mapped"].items()))
    tables = [
        Table(
            "mapped",
            "Tensors, where they came from and where they went",
            (*texts("from", "to"), Column("tensors")),
            tuple((names[0], " + ".join(names[1:]), count) for names, count in mapped),
        )
    ]
    for key, title in (("dropped", "Left out"), ("new", "New: not in the source")):
        grouped = by_layers((name, reason) for name, reason in report[key].items())
        if grouped:
            columns = (*texts("tensor", "why"), Column("tensors"))
            tables.append(Table(key, title, columns, tuple((*row, count) for row, count in grouped)))
    return tables


def by_layers(rows: Iterable[Sequence[str]]) -> list[tuple[tuple[str, ...], int]]:
    """Merge rows of names that differ only in numbers, and count them: ``layers.{0-11}.bias``."""
    groups: dict[tuple[str, ...], list[list[list[int]]]] = {}
    for row in rows:
        shape = tuple(re.sub(_NUMBER, "\0", name) for name in row)
        groups.setdefault(shape, []).append([[int(n) for n in re.findall(_NUMBER, name)] for name in row])
    return [
        (
            tuple(_filled(name, [found[index] for found in all_found]) for index, name in enumerate(shape)),
            len(all_found),
        )
        for shape, all_found in groups.items()
    ]


def weights_and_biases(rows: Iterable[tuple[tuple[str, ...], int]]) -> list[tuple[tuple[str, ...], int]]:
    """Merge rows of `by_layers` for a weight and its bias: ``query.{weight,bias}``."""
    groups: dict[tuple[str, ...], list[tuple[str, int]]] = {}
    for names, count in rows:
        ends = {name.rpartition(".")[2] for name in names}
        end = ends.pop() if len(ends) == 1 else ""
        key = tuple(name.removesuffix(end) for name in names)
        groups.setdefault(key if end in ("weight", "bias") else names, []).append((end, count))
    merged = []
    for names, parts in groups.items():
        ends_of = [end for end, _ in parts]
        if len(parts) == 1:
            ending = ends_of[0] if names[0].endswith(".") else ""
        else:
            ending = f"{{{','.join(sorted(ends_of, reverse=True))}}}"
        merged.append((tuple(name + ending for name in names), sum(count for _, count in parts)))
    return merged


def _filled(name: str, numbers: Sequence[Sequence[int]]) -> str:
    for few in zip(*numbers, strict=True):
        span = str(few[0]) if len(set(few)) == 1 else f"{{{min(few)}-{max(few)}}}"
        name = name.replace("\0", span, 1)
    return name
