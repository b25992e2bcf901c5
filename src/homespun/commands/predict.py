"""Records with predictions: evaluation on labelled examples, and prediction files for new records."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import tee
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Unpack

from homespun.config import Tree
from homespun.data.corpus import Progress
from homespun.data.labels import Labels
from homespun.errors import UserError
from homespun.io.atomic import atomic_path
from homespun.metrics.classification import Metrics
from homespun.tasks.protocol import AnyTask, TaskData, prefix_errors
from homespun.tasks.stored_data import ReadOptions
from homespun.tasks.taggers import LinearTagger, find_tagger, open_tagger
from homespun.tasks.text_models import find_text_model, measure, open_text_model
from homespun.tasks.text_models import predict as predict_with
from homespun.text.sources import ReadProgress, read_records

if TYPE_CHECKING:
    from homespun.inference.quantization import Precision
    from homespun.models.bundle import ModelBundle

logger = logging.getLogger(__name__)
_BATCH = 32
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters of cells that spreadsheets calculate


def evaluate(
    run: str,
    data: Sequence[str],
    **options: Unpack[ReadOptions],
) -> Metrics:
    """Evaluate a fine-tuned model on labelled examples; returns metrics and counts.

    Args:
        run: the model.
        data: files, globs or folders.
        options: ``text``, ``label``, ``encoding``, ``columns``, ``data_set`` and ``generation``, such as
            ``{"num_beams": 4}``: see `homespun.tasks.stored_data.ReadOptions`.

    Raises:
        UserError: a model that was not fine-tuned, no such column or data set, a label unseen in training.
    """
    if (folder := find_tagger(run)) is not None:
        tagger = open_tagger(folder, **options)
        return tagger.measure(tagger.data.read_files(data)).metrics
    if find_text_model(run) is not None:
        model = open_text_model(run, **options)
        found = model.data.read_files(data)
        with prefix_errors(data):
            return measure(model, found).metrics
    from homespun.hf.open import open_model  # imports torch, as networks need it
    from homespun.tasks.config import stored_task

    stored = open_model(run)
    task = stored_task(stored, source=run, **options)
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
    stored: ModelBundle | None = None,
    quantize: Precision | None = None,
    raw: bool = False,
    progress: Progress | None = None,
    read_progress: ReadProgress | None = None,
    **options: Unpack[ReadOptions],
) -> dict[str, object]:
    """Write predictions for the records of ``inputs`` into ``out`` (.jsonl or .csv), each with its record.

    Args:
        run: the model.
        inputs: files, globs or folders.
        out: see `write_predictions`.
        stored: model of ``run``, if it is open already.
        quantize: precision of linear layers, see `homespun.inference.quantization.quantize`; default: float32.
        raw: write cells of a csv that a spreadsheet reads as formulas unchanged, see `write_predictions`.
        progress: called with 0 and the number of rows.
        read_progress: of the inputs.
        options: columns, encoding, data set and generation settings, see `homespun.tasks.stored_data.ReadOptions`.

    Returns:
        ``rows``, ``truncated``, ``length``, `Task.result_fields`, ``out``, and ``labels`` {name: how often} of a
        classifier.

    Raises:
        UserError: a model that was not fine-tuned or cannot be quantized, no such column, another suffix than .jsonl
            or .csv.
    """
    path = Path(out)
    if path.suffix not in (".jsonl", ".csv"):
        raise UserError(f"--out must end in .jsonl or .csv, not {path.name!r}")
    predictor = _open_predictor(run, stored, quantize, **options)
    counts: dict[str, int] = {} if predictor.labels is None else dict.fromkeys(predictor.labels.names, 0)
    truncated = 0

    def report(rows: int) -> None:
        if progress is not None:
            progress(0, rows)

    _warn_of_lines(inputs)

    def pairs() -> Iterator[tuple[Mapping[str, object], Prediction]]:
        nonlocal truncated
        rows = 0
        report(rows)  # the model is open: the rate counts from here
        for record, prediction in predict_records(predictor, inputs, options.get("encoding"), read_progress):
            rows += 1
            label = prediction.get("label", prediction.get("tags", ()))
            for name in [label] if isinstance(label, str) else label:
                counts[name] += 1
            truncated += bool(prediction.get("truncated"))
            if rows % 256 == 0 and (read_progress is None or read_progress.share != 1):  # reading runs ahead
                report(rows)
            yield record, prediction
        report(rows)

    rows = write_predictions(path, pairs(), raw=raw)
    if not rows:
        raise UserError(f"{', '.join(inputs)} holds no rows to predict")
    result = {"out": str(path), "rows": rows, "truncated": truncated}
    return result | predictor.fields | ({"labels": counts} if counts else {})


def _warn_of_lines(inputs: Sequence[str]) -> None:
    for name in inputs:
        if Path(name).suffix in (".txt", ".text") and Path(name).is_file():
            with open(name, "rb") as stream:
                lines = sum(not line.isspace() for line in stream)
            if lines > 1:
                logger.warning(
                    "%s is read as one text of %s lines; to predict each line, name it .tsv and give --columns text "
                    "--text-field text",
                    name,
                    f"{lines:,}",
                )


def predict_texts(
    run: str, texts: Sequence[str], *, quantize: Precision | None = None, **options: Unpack[ReadOptions]
) -> Iterator[dict[str, object]]:
    """Yield a prediction for each text; see `predict`.

    Raises:
        UserError: a model that reads several columns, such as pairs, or that was not fine-tuned.
    """
    predictor = _open_predictor(run, None, quantize, **options)
    yield from predictor.predict(map(predictor.data.record_of, texts), source="the texts given")


@dataclass(frozen=True)
class RecordPredictor:
    """Any fine-tuned model of records: its data and classes, its function, and fields of the result."""

    data: TaskData
    labels: Labels | None
    predict: Callable[..., Iterator[dict[str, object]]]
    fields: dict[str, object]

    def predict_inputs(self, inputs: Iterable[str | Sequence[str]]) -> list[dict[str, object]]:
        """Predict inputs without columns: a text, or a list of words, of sentences, or of a question and its text."""
        data = self.data
        records = (data.record_of(one) if isinstance(one, str) else data.record_of_texts(one) for one in inputs)
        return list(self.predict(records, source="the texts"))


def task_predictor(stored: ModelBundle, task: AnyTask) -> RecordPredictor:
    """Return the predictor of a network."""
    fields = {"length": stored.task.get("max_length")} | task.result_fields()
    return RecordPredictor(task.data, stored.labels, partial(task.predict, stored.model), fields)


def tagger_predictor(tagger: LinearTagger) -> RecordPredictor:
    """Return the predictor of a linear tagger."""
    return RecordPredictor(tagger.data, tagger.labels, tagger.predict, {"model": tagger.kind})


def _open_predictor(
    run: str, stored: ModelBundle | None, quantize: Precision | None, **options: Unpack[ReadOptions]
) -> RecordPredictor:
    if stored is None and (folder := find_tagger(run)) is not None:
        quantize_networks([], quantize, run)
        return tagger_predictor(open_tagger(folder, **options))
    if stored is None and find_text_model(run) is not None:
        model = open_text_model(run, **options)
        quantize_networks(model.networks, quantize, run)
        return RecordPredictor(model.data, model.labels, partial(predict_with, model), {"model": model.kind})
    from homespun.hf.open import open_model
    from homespun.tasks.config import stored_task

    stored = open_model(run) if stored is None else stored
    quantize_networks([stored], quantize, run)
    return task_predictor(stored, stored_task(stored, source=run, **options))


def quantize_networks(networks: Sequence[ModelBundle], precision: Precision | None, source: str) -> None:
    """Quantize open networks, unless ``precision`` is None; imports torch only then."""
    if precision is not None:
        from homespun.inference.quantization import quantize

        quantize(networks, precision, source=source)


def predict_records(
    predictor: RecordPredictor, inputs: Sequence[str], encoding: str | None, read_progress: ReadProgress | None = None
) -> Iterator[tuple[Mapping[str, object], Prediction]]:
    """Yield each record of ``inputs``, in order, with its prediction."""
    columns = predictor.data.columns
    for_output, for_texts = tee(read_records(inputs, encoding=encoding, columns=columns, read_progress=read_progress))
    return zip(for_output, predictor.predict(for_texts, source=", ".join(inputs)), strict=False)


Prediction = Mapping[str, Any]
Pairs = Iterable[tuple[Mapping[str, object], Prediction]]


def write_predictions(path: Path, pairs: Pairs, *, raw: bool = False) -> int:
    """Write pairs of a record and its prediction, one per row, into ``path`` (.jsonl, or else .csv).

    Streams in bounded memory; the file is renamed when complete, and not written without pairs. Columns of predictions
    get the prefix ``predicted_`` if a record has a column of that name. Cells and column names of a csv that begin as a
    formula does (``= + - @``, a tab or a carriage return) and are no numbers get an apostrophe before them unless
    ``raw`` is set, as OWASP advises against CSV injection.

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
            renamed = {name: _unused(name, fields) for name in names}
            _write(path, map(json.loads, kept), list(fields), renamed, raw=raw)
    return rows


def _write(
    path: Path, rows: Iterable[Sequence[Tree]], fields: Sequence[str], names: Mapping[str, str], *, raw: bool
) -> None:
    """Write records with the renamed columns of their predictions, atomically."""
    lines = (given | {names[name]: value for name, value in cells.items()} for given, cells in rows)
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        if path.suffix == ".jsonl":
            stream.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            return
        columns = [*fields, *names.values()]
        writer = csv.writer(stream)
        writer.writerow([_cell(column, raw) for column in columns])
        for line in lines:
            writer.writerow([_cell(line.get(column), raw) for column in columns])


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | bool | list)


def _unused(name: str, fields: Container[str]) -> str:
    return name if name not in fields else _unused(f"predicted_{name}", fields)


def _csv_cells(prediction: Prediction) -> dict[str, object]:
    """Columns of a prediction, one for each probability."""
    cells = {name: value for name, value in prediction.items() if name != "probabilities"}
    return cells | {f"probability_{name}": p for name, p in prediction.get("probabilities", {}).items()}


def _cell(value: object, raw: bool) -> object:
    cell = _joined(value) if isinstance(value, list) else value
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
        return json.dumps(values, ensure_ascii=False)
    return "|".join(map(str, values))
