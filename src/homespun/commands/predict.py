"""Evaluation of a fine-tuned model on labelled examples, and predictions for new records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import tee
from pathlib import Path
from typing import Any

from homespun.commands.predictions import write_predictions
from homespun.data.corpus import Progress
from homespun.errors import UserError
from homespun.hf.open import open_model
from homespun.metrics.classification import Metrics
from homespun.models.bundle import ModelBundle
from homespun.tasks.config import stored_task
from homespun.tasks.protocol import Task, prefix_errors
from homespun.text.sources import ReadProgress, read_records

_BATCH = 32


def evaluate(
    run: str,
    data: Sequence[str],
    *,
    text: Sequence[str] | None = None,
    label: str | None = None,
    encoding: str | None = None,
    columns: Sequence[str] | None = None,
    data_set: str | None = None,
    generation: Mapping[str, Any] | None = None,
) -> Metrics:
    """Evaluate a fine-tuned model on labelled examples; returns metrics and counts.

    Columns are those it was trained with where not given. A model that learned from several data sets, each with its
    prefix, is measured on one of them, ``data_set``. Texts are written as in its training but for ``generation``, such
    as ``{"num_beams": 4}``.

    Raises:
        UserError: a model that was not fine-tuned, no such column or data set, a label unseen in training.
    """
    stored = open_model(run)
    task = stored_task(
        stored,
        source=run,
        text=text,
        label=label,
        encoding=encoding,
        columns=columns,
        data_set=data_set,
        generation=generation,
    )
    examples = task.data.read_files(data)
    with prefix_errors(data):
        task.stratify_by(examples)
    rows = task.rows(examples)
    measured = task.measure(stored.model, rows, batch_size=_BATCH)
    fields = {name: value for name, value in task.result_fields().items() if name != "labels"}
    counts: dict[str, int] = rows.counts
    return measured.metrics | counts | {"length": stored.task.get("max_length")} | fields


def predict(
    run: str,
    inputs: Sequence[str],
    out: str | Path,
    *,
    text: Sequence[str] | None = None,
    encoding: str | None = None,
    columns: Sequence[str] | None = None,
    data_set: str | None = None,
    generation: Mapping[str, Any] | None = None,
    stored: ModelBundle | None = None,
    progress: Progress | None = None,
    read_progress: ReadProgress | None = None,
) -> dict[str, Any]:
    """Write predictions for the records of ``inputs`` into ``out`` (.jsonl or .csv), each with its record.

    Each text is read as in the training, that of ``data_set`` where a model learned from several, and written as there
    but for ``generation``; the file is written as `homespun.commands.predictions.write_predictions` does.
    ``stored`` is the model of ``run``, where it is open already.

    Returns:
        ``rows``, ``truncated``, ``length``, `Task.result_fields`, ``out``, and ``labels`` {name: how often} of a
        classifier.

    Raises:
        UserError: a model that was not fine-tuned, no such column, another suffix than .jsonl or .csv.
    """
    path = Path(out)
    if path.suffix not in (".jsonl", ".csv"):
        raise UserError(f"--out must end in .jsonl or .csv, not {path.name!r}")
    stored = open_model(run) if stored is None else stored
    task = stored_task(
        stored, source=run, text=text, encoding=encoding, columns=columns, data_set=data_set, generation=generation
    )
    counts: dict[str, int] = {} if stored.labels is None else dict.fromkeys(stored.labels.names, 0)
    truncated = 0

    def pairs() -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        nonlocal truncated
        for rows, (record, prediction) in enumerate(
            predict_records(stored, task, inputs, encoding, read_progress), start=1
        ):
            label = prediction.get("label", prediction.get("tags", ()))
            for name in [label] if isinstance(label, str) else label:
                counts[name] += 1
            truncated += bool(prediction.get("truncated"))
            if progress is not None and rows % 256 == 0:
                progress(0, rows)
            yield record, prediction

    rows = write_predictions(path, pairs())
    if not rows:
        raise UserError(f"{', '.join(inputs)} holds no rows to predict")
    result: dict[str, Any] = {"out": str(path), "rows": rows, "truncated": truncated}
    return (
        result
        | {"length": stored.task.get("max_length")}
        | task.result_fields()
        | ({"labels": counts} if counts else {})
    )


def predict_records(
    stored: ModelBundle,
    task: Task[Any, Any],
    inputs: Sequence[str],
    encoding: str | None,
    read_progress: ReadProgress | None = None,
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield each record of ``inputs``, in order, with its prediction."""
    records = read_records(inputs, encoding=encoding, columns=task.data.columns, read_progress=read_progress)
    for_output, for_texts = tee(records)
    return zip(for_output, task.predict(stored.model, for_texts, source=", ".join(inputs)), strict=False)
