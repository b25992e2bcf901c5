"""Files of predictions, .jsonl or .csv: each record with its prediction."""

from __future__ import annotations

import csv
import json
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from homespun.config import Tree
from homespun.io.atomic import atomic_path
from homespun.io.json import to_json

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters of cells that spreadsheets calculate

Prediction = Mapping[str, Any]


class Summary(BaseModel):
    """Counts and columns of records and their predictions.

    The columns of a file are known when all its rows are; until then, rows are kept as lines of `add`.
    """

    rows: int = 0
    truncated: int = 0
    tokens: int = 0  # generated tokens
    labels: dict[str, int] = {}
    fields: dict[str, None] = {}  # columns of the records
    names: dict[str, None] = {}  # columns of the predictions

    def add(self, record: Mapping[str, object], prediction: Prediction, suffix: str) -> str:
        """Count a record and its prediction, and return them as a line for `write_lines`, in a file of ``suffix``.

        Dates and decimals of the record become text; bytes, such as those of images, are left out.
        """
        given = {str(key): value for key, value in record.items() if not isinstance(value, bytes)}
        cells = prediction if suffix == ".jsonl" else _csv_cells(prediction)
        label = prediction.get("label", prediction.get("tags", ()))
        for name in [label] if isinstance(label, str) else label:
            self.labels[name] = self.labels.get(name, 0) + 1
        self.rows += 1
        self.truncated += bool(prediction.get("truncated"))
        self.tokens += prediction.get("tokens", 0)
        self.fields |= dict.fromkeys(given)
        self.names |= dict.fromkeys(cells)
        return json.dumps([given, cells], default=str) + "\n"

    def merge(self, other: Summary) -> None:
        """Add the counts and columns of later rows."""
        self.rows += other.rows
        self.truncated += other.truncated
        self.tokens += other.tokens
        self.labels |= {name: self.labels.get(name, 0) + count for name, count in other.labels.items()}
        self.fields |= other.fields
        self.names |= other.names


def write_lines(path: Path, lines: Iterable[str], summary: Summary, *, raw: bool = False) -> None:
    """Write the ``lines`` of `Summary.add` into ``path`` (.jsonl, or else .csv), which is renamed when complete.

    Columns of predictions get the prefix ``predicted_`` if a record has a column of that name. In JSON, numbers that
    are not finite become null. Cells and column names of a csv that begin as a formula does (``= + - @``, a tab or a
    carriage return) and are no numbers get an apostrophe before them unless ``raw`` is set, as OWASP advises against
    CSV injection.
    """
    names = {name: _unused(name, summary.fields) for name in summary.names}
    pairs: Iterable[Sequence[Tree]] = map(json.loads, lines)
    rows = (given | {names[name]: value for name, value in cells.items()} for given, cells in pairs)
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        if path.suffix == ".jsonl":
            stream.writelines(to_json(row) + "\n" for row in rows)
            return
        columns = [*summary.fields, *names.values()]
        writer = csv.writer(stream)
        writer.writerow([_cell(column, raw) for column in columns])
        for row in rows:
            writer.writerow([_cell(row.get(column), raw) for column in columns])


def _unused(name: str, fields: Container[str]) -> str:
    return name if name not in fields else _unused(f"predicted_{name}", fields)


def _csv_cells(prediction: Prediction) -> dict[str, object]:
    """Columns of a prediction, one for each probability."""
    cells = {name: value for name, value in prediction.items() if name != "probabilities"}
    return cells | {f"probability_{name}": p for name, p in prediction.get("probabilities", {}).items()}


def _cell(value: object, raw: bool) -> object:
    cell = _joined(value) if isinstance(value, list) else value
    cell = to_json(value) if isinstance(value, dict) else cell
    if raw or not isinstance(cell, str) or not cell.startswith(_FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def _joined(values: Sequence[object]) -> str:
    """Names joined with a bar, nested values as JSON."""
    if any(isinstance(value, dict | list) for value in values):
        return to_json(values)
    return "|".join(map(str, values))
