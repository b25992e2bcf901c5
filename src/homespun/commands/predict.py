"""Records with predictions: evaluation on labelled examples, and prediction files for new records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, tee
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

from homespun.commands.prediction_files import Prediction, Summary
from homespun.commands.prediction_parts import (
    PartRenderer,
    Predict,
    choose_processes,
    divide,
    identify,
    in_processes,
    in_this_process,
    join_parts,
    limit_threads,
    max_part_records,
    part_folder,
    predict_parts,
)
from homespun.data.corpus_build import Progress
from homespun.data.labels import Labels
from homespun.errors import UserError
from homespun.metrics.classification import Metrics
from homespun.tasks.input_columns import check_input_columns
from homespun.tasks.protocol import AnyTask, Examples, ReadOptions, TaskData, paths, prefix_errors
from homespun.tasks.record_models import RecordModel, find_record_model, open_record_model
from homespun.tasks.text_models import find_text_model, measure, open_text_model
from homespun.tasks.text_models import predict as predict_with
from homespun.text.formats import Record
from homespun.text.input_files import is_local, local_files
from homespun.text.sources import ReadProgress, read_records

if TYPE_CHECKING:
    from homespun.inference.quantization import Precision
    from homespun.models.bundle import ModelBundle

logger = logging.getLogger(__name__)
_BATCH = 32


def evaluate(run: str | Path, data: str | Path | Sequence[str | Path], **options: Unpack[ReadOptions]) -> Metrics:
    """Evaluate a fine-tuned model on labelled examples.

    Args:
        run: the model.
        data: a labelled file, glob or folder, or several.
            Rows without a label are left out and counted in a warning, as by `homespun fit --test`.
        options: ``text``, ``label``, ``encoding``, ``columns``, ``data_set`` and ``generation``, such as
            ``{"num_beams": 4}``: see `homespun.tasks.stored_data.ReadOptions`.

    Returns:
        Metrics and counts.

    Raises:
        UserError: the model was not fine-tuned, a column or data set is missing, or a label does not occur in training.
    """
    run, data = str(run), paths(data)
    check_input_columns(run, data, labelled=True, **options)
    if (folder := find_record_model(run)) is not None:
        return open_record_model(folder, **options).measure_files(data).metrics
    if find_text_model(run) is not None:
        model = open_text_model(run, **options)
        found = _read_labelled(model.data, data)
        with prefix_errors(data):
            return measure(model, found).metrics
    from homespun.hf.open import open_for_inference  # imports torch, as networks need it
    from homespun.tasks.config import stored_task

    stored = open_for_inference(run)
    task = stored_task(stored, source=run, **options)
    examples = _read_labelled(task.data, data)
    with prefix_errors(data):
        task.stratify_by(examples)
    rows = task.rows(examples)
    measured = task.measure(stored.model, rows, batch_size=_BATCH)
    fields = {name: value for name, value in task.result_fields().items() if name != "labels"}
    counts: dict[str, int] = rows.counts
    return measured.metrics | counts | {"length": stored.task.get("max_length")} | fields


def _read_labelled(data: TaskData, files: Sequence[str]) -> Examples:
    examples, lines = data.read_labelled(files)
    for line in lines:
        logger.warning(line)
    return examples


def predict(
    run: str | Path,
    inputs: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    stored: ModelBundle | None = None,
    quantize: Precision | None = None,
    raw: bool = False,
    processes: int | Literal["auto"] | None = None,
    progress: Progress | None = None,
    read_progress: ReadProgress | None = None,
    **options: Unpack[ReadOptions],
) -> dict[str, object]:
    """Write predictions for the records of ``inputs`` into ``out`` (.jsonl or .csv), each with its record.

    Args:
        run: the model.
        inputs: a file, glob or folder, or several.
        out: output file, written when all records are predicted.
        stored: model of ``run`` if it is open already; used only for prediction in this process.
        quantize: precision of linear layers, see `homespun.inference.quantization.quantize`; default: float32.
        raw: do not quote cells of a csv that a spreadsheet reads as formulas.
        processes: number of processes of one thread each; ``"auto"``: as many as cores and memory allow. Finished parts
            are kept in ``OUT.parts`` until the end, and the same call continues from them after an interruption. None:
            predict in this process with its threads, without parts. The output does not depend on the number.
        progress: called with 0 and the number of rows.
        read_progress: updated with the bytes that are read.
        options: columns, encoding, data set and generation settings, see `homespun.tasks.stored_data.ReadOptions`.

    Returns:
        ``out``, ``rows``, ``truncated``, ``resumed_rows`` (rows predicted before an interruption), ``length``,
        `Task.result_fields`, and for a classifier ``labels``, the number of predictions of each label.

    Raises:
        UserError: the model was not fine-tuned or cannot be quantized, a column is missing, or ``out`` is no .jsonl or
            .csv file.
    """
    run, inputs, path = str(run), paths(inputs), Path(out)
    if path.suffix not in (".jsonl", ".csv"):
        raise UserError(f"--out must end in .jsonl or .csv, not {path.name!r}")
    if stored is None:
        check_input_columns(run, inputs, **options)
    predictor = _open_predictor(run, stored, quantize, **options)
    _warn_of_lines(inputs)
    empty = 0

    def count_empty(record: Record) -> None:
        nonlocal empty
        empty += predictor.data.is_empty(record)

    parts = PartPredictor(
        predictor.predict,
        partial(_open_predict, quantize=quantize, options=options),
        {"quantize": quantize, **options},
        max_part_records(0 if predictor.labels is None else len(predictor.labels)),
    )
    summary, resumed = predict_files(
        run,
        inputs,
        path,
        parts,
        encoding=options.get("encoding"),
        columns=predictor.data.columns,
        raw=raw,
        processes=processes,
        progress=progress,
        read_progress=read_progress,
        visit=count_empty,
    )
    _warn_of_empty(empty, f"{summary.rows:,} rows of {', '.join(inputs)}")
    counts = {} if predictor.labels is None else dict.fromkeys(predictor.labels.names, 0) | summary.labels
    result: dict[str, object] = {"out": str(path), "rows": summary.rows, "truncated": summary.truncated}
    result |= {"resumed_rows": resumed} if resumed else {}
    return result | predictor.fields | ({"labels": counts} if counts else {})


@dataclass(frozen=True)
class PartPredictor:
    """Prediction of the parts of files, in this process and in others."""

    predict: Predict  # in this process
    open: Callable[[str], Predict]  # opens the model in another process; picklable
    identity: Mapping[str, object]  # options that change predictions
    part_records: int  # maximum records of a part, see `homespun.commands.prediction_parts.divide`


def predict_files(
    run: str,
    inputs: Sequence[str],
    path: Path,
    predictor: PartPredictor,
    *,
    encoding: str | None,
    columns: Sequence[str] | None,
    raw: bool = False,
    processes: int | Literal["auto"] | None = None,
    progress: Progress | None = None,
    read_progress: ReadProgress | None = None,
    visit: Callable[[Record], None] | None = None,
) -> tuple[Summary, int]:
    """Write a prediction for each record of ``inputs`` in parts, to the .jsonl or .csv file ``path``; see `predict`.

    ``visit`` is called with each record.

    Returns:
        Counts of the rows, and the number of those that were predicted before a kill.

    Raises:
        UserError: ``inputs`` have no records or include ``path``, or the prediction raised it.
    """
    _check_not_read(path, inputs)
    digest, model = "", Path(run)
    if processes is not None:
        model = _local_folder(run)
        digest = identify(model, {**predictor.identity, "suffix": path.suffix})
        processes = choose_processes(model) if processes == "auto" else processes
    reading = ReadProgress(inputs)  # runs ahead of `read_progress`
    records = read_records(inputs, encoding=encoding, columns=columns, read_progress=reading)
    if visit is not None:
        records = _visited(records, visit)
    parts = divide(records, digest, lambda: reading.done, max_records=predictor.part_records)

    def report(rows: int, bytes_read: int) -> None:
        if read_progress is not None:
            read_progress.done = bytes_read
        if progress is not None:
            progress(0, rows)

    source = ", ".join(inputs)
    with part_folder(path, temporary=processes is None) as folder:
        with ExitStack() as stack:
            first = list(islice(parts, max(2, processes or 1)))
            count = min(len(first), processes or 1)
            submit = in_this_process(PartRenderer(predictor.predict, source, path.suffix))
            if count > 1:
                opened = partial(_open_renderer, predictor.open, str(model), source, path.suffix)
                submit = stack.enter_context(in_processes(count, opened))
            elif processes is not None and len(first) > 1:
                stack.callback(limit_threads, limit_threads())
            ahead = 2 * count if count > 1 else 0
            files, resumed = predict_parts(chain(first, parts), folder, submit, ahead=ahead, report=report)
        if not files:
            raise UserError(f"{source} holds no rows to predict")
        return join_parts(files, path, raw=raw), resumed


def _check_not_read(path: Path, inputs: Iterable[str]) -> None:
    """Raise `UserError` if ``path`` exists and is a file of ``inputs``, which it would replace."""
    for entry in filter(is_local, inputs):
        if path.exists() and any(path.samefile(file.name) for file in local_files(entry)):
            raise UserError(f"--out {path} is a file of the input {entry}; give another file")


def _visited(records: Iterable[Record], visit: Callable[[Record], None]) -> Iterator[Record]:
    for record in records:
        visit(record)
        yield record


def _open_predict(run: str, quantize: Precision | None, options: ReadOptions) -> Predict:
    return _open_predictor(run, None, quantize, **options).predict


def _open_renderer(open_predict: Callable[[str], Predict], run: str, source: str, suffix: str) -> PartRenderer:
    """Open a model in a process of `in_processes`."""
    return PartRenderer(open_predict(run), source, suffix)


def _local_folder(run: str) -> Path:
    """Folder of a model that could be opened, also of one on the hub."""
    folder = Path(run).expanduser()
    if folder.exists():
        return folder
    from homespun.hf.open import download

    return download(run)


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


def _warn_of_empty(empty: int, inputs: str) -> None:
    if empty:
        logger.warning("%s of %s have an empty text: predicted too", f"{empty:,}", inputs)


def predict_texts(
    run: str, texts: Sequence[str], *, quantize: Precision | None = None, **options: Unpack[ReadOptions]
) -> Iterator[dict[str, object]]:
    """Yield a prediction for each text, or for each two texts of a model of pairs or of questions; see `predict`.

    Raises:
        UserError: an odd number of texts for pairs, a model that reads other columns, or that was not fine-tuned.
    """
    predictor = _open_predictor(run, None, quantize, **options)
    kind = predictor.data.input_kind
    if kind not in ("pair", "question"):
        records = [predictor.data.record_of(text) for text in texts]
    elif len(texts) % 2 == 0:
        records = [predictor.data.record_of_texts(two) for two in zip(texts[::2], texts[1::2], strict=True)]
    else:
        what = "pairs of texts" if kind == "pair" else "a question and its text"
        raise UserError(f"{run} reads {what}; give two texts for each prediction, not {len(texts)} in all")
    _warn_of_empty(sum(map(predictor.data.is_empty, records)), f"{len(records):,} inputs")
    yield from predictor.predict(records, source="the texts given")


@dataclass(frozen=True)
class RecordPredictor:
    """Fine-tuned model of records: data, classes, prediction function, and fields of the result."""

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


def record_predictor(model: RecordModel) -> RecordPredictor:
    """Return the predictor of a linear tagger or an extractive summarizer."""
    return RecordPredictor(model.data, model.labels, model.predict, {"model": model.kind})


def _open_predictor(
    run: str, stored: ModelBundle | None, quantize: Precision | None, **options: Unpack[ReadOptions]
) -> RecordPredictor:
    if stored is None and (folder := find_record_model(run)) is not None:
        prepare_networks([], quantize, run)
        return record_predictor(open_record_model(folder, **options))
    if stored is None and find_text_model(run) is not None:
        model = open_text_model(run, **options)
        prepare_networks(model.networks, quantize, run)
        return RecordPredictor(model.data, model.labels, partial(predict_with, model), {"model": model.kind})
    from homespun.hf.open import open_for_inference
    from homespun.tasks.config import stored_task

    stored = open_for_inference(run) if stored is None else stored
    prepare_networks([stored], quantize, run)
    return task_predictor(stored, stored_task(stored, source=run, **options))


def prepare_networks(networks: Sequence[ModelBundle], precision: Precision | None, source: str) -> None:
    """Quantize open networks, or pack their weights in float32; imports torch only if there is a network."""
    if precision is not None:
        from homespun.inference.quantization import quantize

        quantize(networks, precision, source=source)
    elif networks:
        from homespun.inference.quantization import pack_networks

        pack_networks(networks)


def predict_records(
    predictor: RecordPredictor, inputs: Sequence[str], encoding: str | None
) -> Iterator[tuple[Mapping[str, object], Prediction]]:
    """Yield each record of ``inputs``, in order, with its prediction."""
    columns = predictor.data.columns
    for_output, for_texts = tee(read_records(inputs, encoding=encoding, columns=columns))
    return zip(for_output, predictor.predict(for_texts, source=", ".join(inputs)), strict=False)
