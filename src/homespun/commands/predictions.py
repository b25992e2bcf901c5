"""Files of records with predictions."""

from __future__ import annotations

import csv
import json
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from homespun.io.atomic import atomic_path

Pairs = Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]


def write_predictions(path: Path, pairs: Pairs) -> int:
    """Write pairs of a record and its prediction, one per row, into ``path`` (.jsonl, or else .csv).

    Streams in bounded memory; the file is renamed when complete, and not written without pairs. Columns of predictions
    get the prefix ``predicted_`` if a record has a column of that name.

    Returns:
        Number of rows.
    """
    rows = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryFile("w+", encoding="utf-8", dir=path.parent) as kept:
        fields: dict[str, None] = {}  # of the records
        names: dict[str, None] = {}  # of the predictions
        for record, prediction in pairs:
            given = {str(key): value for key, value in record.items() if _is_plain(value)}
            cells = prediction if path.suffix == ".jsonl" else _csv_cells(prediction)
            fields |= dict.fromkeys(given)
            names |= dict.fromkeys(cells)
            kept.write(json.dumps([given, cells], default=str) + "\n")  # columns are known when all are read
            rows += 1
        if rows:
            kept.seek(0)
            _write(path, map(json.loads, kept), list(fields), {name: _unused(name, fields) for name in names})
    return rows


def _write(path: Path, rows: Iterable[Any], fields: Sequence[str], names: Mapping[str, str]) -> None:
    """Write records with the renamed columns of their predictions, atomically."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        write = _jsonl_writer(stream) if path.suffix == ".jsonl" else _csv_writer(stream, [*fields, *names.values()])
        for given, cells in rows:
            write(given | {names[name]: value for name, value in cells.items()})


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | bool | list)


def _unused(name: str, fields: Container[str]) -> str:
    return name if name not in fields else _unused(f"predicted_{name}", fields)


def _csv_cells(prediction: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of a prediction, one for each probability."""
    cells = {name: value for name, value in prediction.items() if name != "probabilities"}
    return cells | {f"probability_{name}": p for name, p in prediction.get("probabilities", {}).items()}


def _jsonl_writer(stream: Any) -> Any:
    def write(row: dict[str, Any]) -> None:
        stream.write(json.dumps(row, ensure_ascii=False) + "\n")

    return write


def _cell(values: Sequence[Any]) -> str:
    """Names joined with a bar, nested values as JSON."""
    if any(isinstance(value, dict | list) for value in values):
        return json.dumps(values, ensure_ascii=False)
    return "|".join(map(str, values))


def _csv_writer(stream: Any, header: Sequence[str]) -> Any:
    writer = csv.DictWriter(stream, header)
    writer.writeheader()

    def write(row: dict[str, Any]) -> None:
        writer.writerow({name: _cell(value) if isinstance(value, list) else value for name, value in row.items()})

    return write
