"""Text generation and summarisation of files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from homespun.commands.predict import predict, predict_records, task_predictor
from homespun.commands.prediction_files import Prediction, write_predictions
from homespun.data.corpus import Progress
from homespun.data.labels import get_text
from homespun.errors import UserError
from homespun.hf.open import open_for_inference
from homespun.inference.generation import TextGenerator
from homespun.models.bundle import ModelBundle
from homespun.tasks.config import stored_task
from homespun.tasks.stored_data import ReadOptions
from homespun.text.formats import Record
from homespun.text.sources import ReadProgress, read_records


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
    progress: Progress | None = None,
    read_progress: ReadProgress | None = None,
) -> dict[str, object]:
    """Generate text from each prompt of ``inputs``, and write the records into ``out``.

    A record gets ``generated`` (a list if there are several texts per prompt) and ``tokens``, the number of generated
    tokens.

    Args:
        run: a generative model, see `homespun.hf.open.open_for_inference`.
        inputs: files, globs, folders, archives, URLs or hub names.
        out: a .jsonl file, written by `homespun.commands.prediction_files.write_predictions`.
        text: columns of the prompt, which are joined.
        stop: strings that end generation.
        arguments: keyword arguments of `homespun.inference.generation.TextGenerator.generate`.
        batch_size: prompts per batch.
        encoding: character encoding of the inputs; detected by default.
        columns: column names of a csv without a header.
        progress: called with 0 and the number of written records.
        read_progress: updated with the bytes that are read.

    Returns:
        ``out``, ``rows``, and ``tokens``, the total number of generated tokens.

    Raises:
        UserError: the model does not generate text, a prompt is empty or too long, there are no prompts, or ``out`` is
            no .jsonl file.
    """
    path = Path(out)
    if path.suffix != ".jsonl":
        raise UserError(f"--out must end in .jsonl, not {path.name!r}")
    generator = TextGenerator(open_for_inference(run), stop=stop)
    records: list[Record] = []

    def prompts() -> Iterator[str]:
        for number, record in enumerate(
            read_records(inputs, encoding=encoding, columns=columns, read_progress=read_progress), start=1
        ):
            records.append(record)
            yield get_text(record, list(text), where=f"row {number} of {', '.join(inputs)}")

    tokens = 0

    def pairs() -> Iterator[tuple[Mapping[str, object], Prediction]]:
        nonlocal tokens
        for rows, generated in enumerate(generator.generate(prompts(), batch_size=batch_size, **arguments), start=1):
            texts, counts = [each.text for each in generated], [each.tokens for each in generated]
            tokens += sum(counts)
            if progress is not None:
                progress(0, rows)
            yield records.pop(0), {"generated": texts if len(texts) > 1 else texts[0], "tokens": sum(counts)}

    rows = write_predictions(path, pairs())
    if not rows:
        raise UserError(f"{', '.join(inputs)} has no prompts; give a file with one prompt per record")
    return {"out": str(path), "rows": rows, "tokens": tokens}


def summarize(
    run: str,
    inputs: Sequence[str],
    out: str | Path,
    *,
    progress: Progress | None = None,
    read_progress: ReadProgress | None = None,
    **options: Unpack[ReadOptions],
) -> dict[str, object]:
    """Predict the target texts of a model that was fine-tuned on text to text, see `homespun.commands.predict.predict`.

    Raises:
        UserError: the model has another task; see also `homespun.commands.predict.predict`.
    """
    stored = _open_seq2seq(run)
    return predict(run, inputs, out, stored=stored, progress=progress, read_progress=read_progress, **options)


def summaries(run: str, inputs: Sequence[str], **options: Unpack[ReadOptions]) -> Iterator[str]:
    """Yield the predicted target text of each record of ``inputs``, in their order.

    Raises:
        UserError: the model has another task, or ``inputs`` have no records.
    """
    stored = _open_seq2seq(run)
    task = stored_task(stored, source=run, **options)
    empty = True
    for _, prediction in predict_records(task_predictor(stored, task), inputs, options.get("encoding")):
        empty = False
        yield prediction["text"]
    if empty:
        raise UserError(f"{', '.join(inputs)} has no records to summarise; give a file with one text per record")


def _open_seq2seq(run: str) -> ModelBundle:
    stored = open_for_inference(run)
    if stored.task.get("kind") != "seq2seq":
        raise UserError(
            f"{run} was not fine-tuned on text to text; give a run of `homespun finetune summarize`, or use `homespun "
            f"generate` for a language model and `homespun predict` for a classifier"
        )
    return stored


def generator(run: str, *, stop: Sequence[str] = ()) -> TextGenerator:
    """Open a model for text generation; ``stop``: strings that end generation."""
    return TextGenerator(open_for_inference(run), stop=stop)
