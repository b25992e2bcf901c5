"""Using a fine-tuned model: measuring it on examples with their truth, and letting it say something of new ones."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import tee
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from homespun.data.corpus import Progress
from homespun.errors import UserError
from homespun.hf.open import open_model
from homespun.jobs.tasks.config import stored_task
from homespun.text.sources import Meter, read_records
from homespun.training.evaluate import Metrics

_BATCH = 32


def evaluate(
    run: str,
    data: Sequence[str],
    *,
    text: Sequence[str] | None = None,
    label: str | None = None,
    encoding: str | None = None,
    columns: Sequence[str] | None = None,
) -> Metrics:
    """The metrics of a fine-tuned model on examples read as in its training, with what its rows count.

    Columns are those it was trained with where not given.

    Raises:
        UserError: a model that was not fine-tuned, no such column, a label unseen in training.
    """
    stored = open_model(run)
    task = stored_task(stored, source=run, text=text, label=label, encoding=encoding, columns=columns)
    examples = task.data.read_files(data)
    task.strata(examples)
    rows = task.rows(examples)
    measured = task.measure(stored.model, rows, batch_size=_BATCH)
    facts = {name: value for name, value in task.facts().items() if name != "labels"}
    counts: dict[str, int] = rows.counts
    return measured.metrics | counts | {"length": stored.task.get("length")} | facts


def predict(
    run: str,
    inputs: Sequence[str],
    out: str | Path,
    *,
    text: Sequence[str] | None = None,
    encoding: str | None = None,
    columns: Sequence[str] | None = None,
    progress: Progress | None = None,
    meter: Meter | None = None,
) -> dict[str, Any]:
    """What a fine-tuned model says of the records of ``inputs``, into ``out`` (.jsonl or .csv), each with its record.

    A stream in bounded memory, each text read as in the training. The file appears when it is whole. What is said has
    the same name in every row, with ``predicted_`` before it where any of the records has a column of that name.

    Returns:
        ``rows``, ``truncated``, ``length``, what `Task.facts` tells, ``out``, and ``labels`` {name: how often} of a
        classifier.

    Raises:
        UserError: a model that was not fine-tuned, no such column, another suffix than .jsonl or .csv.
    """
    path = Path(out)
    if path.suffix not in (".jsonl", ".csv"):
        raise UserError(f"--out must end in .jsonl or .csv, not {path.name!r}")
    stored = open_model(run)
    task = stored_task(stored, source=run, text=text, encoding=encoding, columns=columns)
    for_output, for_texts = tee(read_records(inputs, encoding=encoding, columns=task.data.columns, meter=meter))
    counts: dict[str, int] = {} if stored.labels is None else dict.fromkeys(stored.labels.names, 0)
    rows = truncated = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    said = task.predict(stored.model, for_texts, source=", ".join(inputs))
    with TemporaryFile("w+", encoding="utf-8", dir=path.parent) as kept:
        fields: dict[str, None] = {}  # of the records
        names: dict[str, None] = {}  # of what is said
        for record, prediction in zip(for_output, said, strict=False):
            given = {str(key): value for key, value in record.items() if _is_plain(value)}
            cells = _in_cells(prediction) if path.suffix == ".csv" else prediction
            fields |= dict.fromkeys(given)
            names |= dict.fromkeys(cells)
            kept.write(json.dumps([given, cells], default=str) + "\n")  # whose columns are known when all are read
            label = prediction.get("label", prediction.get("tags", ()))
            for name in [label] if isinstance(label, str) else label:
                counts[name] += 1
            rows += 1
            truncated += bool(prediction.get("truncated"))
            if progress is not None and rows % 256 == 0:
                progress(0, rows)
        if not rows:
            raise UserError(f"{', '.join(inputs)} holds no rows to predict")
        kept.seek(0)
        _write(path, map(json.loads, kept), list(fields), {name: _unused(name, fields) for name in names})
    told: dict[str, Any] = {"out": str(path), "rows": rows, "truncated": truncated}
    return told | {"length": stored.task.get("length")} | task.facts() | ({"labels": counts} if counts else {})


def _write(path: Path, rows: Iterable[Any], fields: Sequence[str], names: Mapping[str, str]) -> None:
    """Records, each with what is said of it under its names, as a whole or not at all."""
    beside = path.with_name(f".tmp-{path.name}")
    with beside.open("w", encoding="utf-8", newline="") as stream:
        write = _csv_writer(stream, [*fields, *names.values()]) if path.suffix == ".csv" else _jsonl_writer(stream)
        for given, said in rows:
            write(given | {names[name]: value for name, value in said.items()})
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(beside, path)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | bool | list)


def _unused(name: str, fields: Container[str]) -> str:
    return name if name not in fields else _unused(f"predicted_{name}", fields)


def _in_cells(prediction: Mapping[str, Any]) -> dict[str, Any]:
    """What is said, with a column for every probability."""
    cells = {name: value for name, value in prediction.items() if name != "probabilities"}
    return cells | {f"probability_{name}": p for name, p in prediction.get("probabilities", {}).items()}


def _jsonl_writer(stream: Any) -> Any:
    def write(row: dict[str, Any]) -> None:
        stream.write(json.dumps(row, ensure_ascii=False) + "\n")

    return write


def _cell(values: Sequence[Any]) -> str:
    """Names with a bar between them; what is more than a name as JSON."""
    if any(isinstance(value, dict | list) for value in values):
        return json.dumps(values, ensure_ascii=False)
    return "|".join(map(str, values))


def _csv_writer(stream: Any, header: Sequence[str]) -> Any:
    writer = csv.DictWriter(stream, header)
    writer.writeheader()

    def write(row: dict[str, Any]) -> None:
        writer.writerow({name: _cell(value) if isinstance(value, list) else value for name, value in row.items()})

    return write
