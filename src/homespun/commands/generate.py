"""Text generation and summarisation of files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack

from homespun.commands.predict import (
    PartPredictor,
    predict,
    predict_files,
    predict_records,
    record_predictor,
    task_predictor,
)
from homespun.commands.prediction_files import Prediction
from homespun.commands.prediction_parts import Predict
from homespun.data.corpus_build import Progress
from homespun.data.labels import get_text
from homespun.errors import UserError
from homespun.extractive import is_extractive
from homespun.hf.open import open_for_inference
from homespun.inference.continuous import ContinuousGenerator
from homespun.inference.generation import TextGenerator
from homespun.models.bundle import ModelBundle
from homespun.tasks.config import stored_task
from homespun.tasks.protocol import ReadOptions
from homespun.tasks.record_models import find_record_model, open_record_model
from homespun.text.formats import Record
from homespun.text.sources import ReadProgress

_PART_BATCHES = 16  # batches of a part, which take seconds to minutes


def generate(
    run: str,
    inputs: Sequence[str],
    out: str | Path,
    *,
    text: Sequence[str] = ("text",),
    stop: Sequence[str] = (),
    arguments: Mapping[str, Any],
    batch_size: int = 8,
    encoding: str | None = None,
    columns: Sequence[str] | None = None,
    processes: int | Literal["auto"] | None = None,
    progress: Progress | None = None,
    read_progress: ReadProgress | None = None,
) -> dict[str, object]:
    """Generate text from each prompt of ``inputs``, and write the records into ``out``.

    A record gets ``generated`` (a list if there are several texts per prompt) and ``tokens``, the number of generated
    tokens.

    Args:
        run: a generative model, see `homespun.hf.open.open_for_inference`.
        inputs: files, globs, folders, archives, URLs or hub names.
        out: a .jsonl file.
        text: columns of the prompt, which are joined.
        stop: strings that end generation.
        arguments: keyword arguments of `homespun.inference.generation.TextGenerator.generate`.
        batch_size: prompts per batch.
        encoding: character encoding of the inputs; detected by default.
        columns: column names of a csv without a header.
        processes: see `homespun.commands.predict.predict`.
        progress: called with 0 and the number of written records.
        read_progress: updated with the bytes that are read.

    Returns:
        ``out``, ``rows``, ``tokens``, the total number of generated tokens, and ``resumed_rows``, if there are any.

    Raises:
        UserError: the model does not generate text, a prompt is empty or too long, there are no prompts, or ``out`` is
            no .jsonl file.
    """
    path = Path(out)
    if path.suffix != ".jsonl":
        raise UserError(f"--out must end in .jsonl, not {path.name!r}")
    if batch_size < 1:
        raise UserError(f"batch_size={batch_size} must be at least 1")
    generation = _Generation(tuple(text), tuple(stop), arguments, batch_size)
    summary, resumed = predict_files(
        run,
        inputs,
        path,
        PartPredictor(generation.open(run), generation.open, asdict(generation), _PART_BATCHES * batch_size),
        encoding=encoding,
        columns=columns,
        processes=processes,
        progress=progress,
        read_progress=read_progress,
    )
    result: dict[str, object] = {"out": str(path), "rows": summary.rows, "tokens": summary.tokens}
    return result | ({"resumed_rows": resumed} if resumed else {})


@dataclass(frozen=True)
class _Generation:
    """Options of `generate`, by which processes open it."""

    text: Sequence[str]
    stop: Sequence[str]
    arguments: Mapping[str, Any]
    batch_size: int

    def open(self, run: str) -> Predict:
        """Open the model; returns a function that generates a text from each record."""
        bundle = open_for_inference(run)
        if max(self.arguments.get(name, 1) for name in ("num_beams", "num_return_sequences")) > 1:
            return partial(self._generate_batches, TextGenerator(bundle, stop=self.stop))
        return partial(self._generate_together, ContinuousGenerator(bundle, max_rows=self.batch_size))

    def _generate_together(
        self, generator: ContinuousGenerator, records: Iterable[Record], *, source: str, first: int = 1
    ) -> Iterator[Prediction]:
        prompts = self._prompts(records, source, first)
        for one in generator.generate(prompts, stop=self.stop, first=first, **self.arguments):
            yield {"generated": one.text, "tokens": one.tokens}

    def _generate_batches(
        self, generator: TextGenerator, records: Iterable[Record], *, source: str, first: int = 1
    ) -> Iterator[Prediction]:
        prompts = self._prompts(records, source, first)
        for found in generator.generate(prompts, batch_size=self.batch_size, first=first, **self.arguments):
            texts = [each.text for each in found]
            yield {"generated": texts if len(texts) > 1 else texts[0], "tokens": sum(each.tokens for each in found)}

    def _prompts(self, records: Iterable[Record], source: str, first: int) -> Iterator[str]:
        for number, record in enumerate(records, first):
            yield get_text(record, list(self.text), where=f"row {number} of {source}")


def summarize(
    run: str,
    inputs: Sequence[str],
    out: str | Path,
    *,
    processes: int | Literal["auto"] | None = None,
    progress: Progress | None = None,
    read_progress: ReadProgress | None = None,
    **options: Unpack[ReadOptions],
) -> dict[str, object]:
    """Write the target texts that a text-to-text model predicts, see `homespun.commands.predict.predict`.

    Raises:
        UserError: the model has another task; see also `homespun.commands.predict.predict`.
    """
    stored = None if _find_extractive(run) else _open_seq2seq(run)
    return predict(
        run, inputs, out, stored=stored, processes=processes, progress=progress, read_progress=read_progress, **options
    )


def summaries(run: str, inputs: Sequence[str], **options: Unpack[ReadOptions]) -> Iterator[str]:
    """Yield the predicted target text of each record of ``inputs``, in their order.

    Raises:
        UserError: the model has another task, or ``inputs`` have no records.
    """
    if folder := _find_extractive(run):
        predictor = record_predictor(open_record_model(folder, **options))
    else:
        stored = _open_seq2seq(run)
        predictor = task_predictor(stored, stored_task(stored, source=run, **options))
    empty = True
    for _, prediction in predict_records(predictor, inputs, options.get("encoding")):
        empty = False
        yield prediction["text"]
    if empty:
        raise UserError(f"{', '.join(inputs)} has no records to summarise; give a file with one text per record")


def _find_extractive(run: str) -> Path | None:
    """Return the folder of an extractive summarizer in a run, or ``None`` if there is none."""
    folder = find_record_model(run)
    return folder if folder is not None and is_extractive(folder) else None


def _open_seq2seq(run: str) -> ModelBundle:
    stored = open_for_inference(run)
    if stored.task.get("kind") != "seq2seq":
        raise UserError(
            f"{run} was not fine-tuned on text to text; give a run of `homespun finetune summarize`, or use `homespun "
            f"generate` for a language model and `homespun predict` for a classifier"
        )
    return stored


def generator(run: str, *, stop: Sequence[str] = ()) -> TextGenerator:
    """Open a model for text generation.

    Args:
        run: a generative model, see `homespun.hf.open.open_for_inference`.
        stop: strings that end generation.

    Example:
        ``for piece in generator("runs/base").stream("The company", max_new_tokens=40): print(piece, end="")``

    Raises:
        UserError: there is no model in ``run``, or it does not generate text.
    """
    return TextGenerator(open_for_inference(run), stop=stop)
