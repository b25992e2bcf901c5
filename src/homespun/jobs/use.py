"""Using a fine-tuned model: measuring it on labelled texts, and labelling new ones."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from itertools import tee
from pathlib import Path
from typing import Any

from homespun.data.corpus import Progress
from homespun.data.labelled import LabelledRows, Labels, read_labelled, text_of
from homespun.data.long_inputs import saved_long_inputs
from homespun.errors import UserError
from homespun.hf.open import open_model
from homespun.inference.predict import Predictor, predict_logits, probabilities
from homespun.models.store import Stored
from homespun.text.sources import Meter, read_records
from homespun.training.evaluate import Metrics, classification_metrics, classify


def evaluate(
    run: str,
    data: Sequence[str],
    *,
    text: Sequence[str] | None = None,
    label: str | None = None,
    encoding: str | None = None,
    columns: Sequence[str] | None = None,
) -> Metrics:
    """The metrics of a fine-tuned model on labelled texts, read as in its training, and `LabelledRows.counts`.

    Columns are those it was trained with where not given.

    Raises:
        UserError: not a classifier, no such column, a label unseen in training.
    """
    stored, labels = _classifier(run)
    task = stored.task
    texts, names = read_labelled(
        data,
        text=list(text) if text else task["text"],
        label=label or task["label"],
        columns=columns or task.get("columns"),
        encoding=encoding,
        multi_label=labels.multi_label,
        separator=task.get("separator"),
    )
    long_inputs = saved_long_inputs(task, source=run)
    rows = LabelledRows(texts, names, stored.tokenizer, length=task["length"], long_inputs=long_inputs, names=labels)
    assert rows.targets is not None
    table = probabilities(predict_logits(stored.model, rows, pad_id=stored.tokenizer.pad_id), labels)
    metrics = classification_metrics(labels, rows.targets, classify(table, labels), probabilities=table)
    return metrics | rows.counts | {"length": task["length"], "long_inputs": long_inputs.kind}


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
    """Label the texts of ``inputs`` into ``out`` (.jsonl or .csv): each record with its label and probabilities.

    A stream in bounded memory, each text read as in the training. The file appears when it is whole.

    Returns:
        ``rows``, ``truncated``, ``length``, ``long_inputs``, ``labels`` {name: how often}, ``out``.

    Raises:
        UserError: not a classifier, no such column, another suffix than .jsonl or .csv.
    """
    path = Path(out)
    if path.suffix not in (".jsonl", ".csv"):
        raise UserError(f"--out must end in .jsonl or .csv, not {path.name!r}")
    stored, labels = _classifier(run)
    wanted = list(text) if text else stored.task["text"]
    wanted = [wanted] if isinstance(wanted, str) else wanted
    named = columns or stored.task.get("columns")
    for_output, for_texts = tee(read_records(inputs, encoding=encoding, columns=named, meter=meter))
    texts = (
        text_of(record, wanted, where=f"row {number} of {', '.join(inputs)}")
        for number, record in enumerate(for_texts, start=1)
    )
    long_inputs = saved_long_inputs(stored.task, source=run)
    predictor = Predictor(stored.model, stored.tokenizer, labels, length=stored.task["length"], long_inputs=long_inputs)
    counts: dict[str, int] = dict.fromkeys(labels.names, 0)
    rows = truncated = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".tmp-{path.name}")
    with beside.open("w", encoding="utf-8", newline="") as stream:
        write = _csv_writer(stream) if path.suffix == ".csv" else _jsonl_writer(stream)
        for record, prediction in zip(for_output, predictor.predict(texts), strict=False):
            given = {str(key): value for key, value in record.items() if _is_plain(value)}
            write(given | {f"predicted_{k}" if k in given else k: v for k, v in asdict(prediction).items()})
            for name in [prediction.label] if isinstance(prediction.label, str) else prediction.label:
                counts[name] += 1
            rows += 1
            truncated += prediction.truncated
            if progress is not None and rows % 256 == 0:
                progress(0, rows)
        stream.flush()
        os.fsync(stream.fileno())
    if not rows:
        beside.unlink()
        raise UserError(f"{', '.join(inputs)} holds no rows to predict")
    os.replace(beside, path)
    return {
        "out": str(path),
        "rows": rows,
        "truncated": truncated,
        "length": stored.task["length"],
        "long_inputs": long_inputs.kind,
        "labels": counts,
    }


def _classifier(run: str) -> tuple[Stored, Labels]:
    stored = open_model(run)
    if stored.labels is None or "length" not in stored.task:
        raise UserError(f"{run} is not a classifier; fine-tune it first: homespun finetune classify ... --from {run}")
    if stored.config.head is not None and stored.config.head.kind == "token_classification":
        raise UserError(
            f"{run} labels tokens, and texts are labelled here; homespun.load gives the logits of its tokens"
        )
    return stored, stored.labels


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | bool | list)


def _jsonl_writer(stream: Any) -> Any:
    def write(row: dict[str, Any]) -> None:
        stream.write(json.dumps(row, ensure_ascii=False) + "\n")

    return write


def _csv_writer(stream: Any) -> Any:
    writer: Any = None

    def write(row: dict[str, Any]) -> None:
        nonlocal writer
        flat = {k: v for k, v in row.items() if k != "probabilities"}
        flat |= {f"probability_{name}": p for name, p in row["probabilities"].items()}
        if writer is None:
            writer = csv.DictWriter(stream, list(flat), extrasaction="ignore", restval="")
            writer.writeheader()
        writer.writerow({k: "|".join(map(str, v)) if isinstance(v, tuple | list) else v for k, v in flat.items()})

    return write
