"""Writing with a run: one prompt, or a file of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from homespun.commands.predict import Prediction, predict, predict_records, task_predictor, write_predictions
from homespun.data.corpus import Progress
from homespun.data.labels import get_text
from homespun.errors import UserError
from homespun.hf.open import open_model
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
    """Write after each text of ``inputs``: into ``out`` (.jsonl) each record with ``generated``, and ``tokens``.

    ``generated`` is a list where there are several texts to a prompt. The file is written as
    `homespun.commands.predict.write_predictions` does.

    Returns:
        ``rows``, ``tokens``, ``out``.

    Raises:
        UserError: the model does not write, a prompt is empty or too long, another suffix than .jsonl.
    """
    path = Path(out)
    if path.suffix != ".jsonl":
        raise UserError(f"--out must end in .jsonl, not {path.name!r}")
    generator = TextGenerator(open_model(run), stop=stop)
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
        for rows, written in enumerate(generator.generate(prompts(), batch_size=batch_size, **arguments), start=1):
            texts, counts = [each.text for each in written], [each.tokens for each in written]
            tokens += sum(counts)
            if progress is not None:
                progress(0, rows)
            yield records.pop(0), {"generated": texts if len(texts) > 1 else texts[0], "tokens": sum(counts)}

    rows = write_predictions(path, pairs())
    if not rows:
        raise UserError(f"{', '.join(inputs)} holds no prompts")
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
    """`homespun.commands.predict.predict`, of a model that was fine-tuned to write texts of texts.

    Raises:
        UserError: it was not; and as there.
    """
    stored = _open_text_writer(run)
    return predict(run, inputs, out, stored=stored, progress=progress, read_progress=read_progress, **options)


def summaries(run: str, inputs: Sequence[str], **options: Unpack[ReadOptions]) -> Iterator[str]:
    """The texts alone, in the order of the records of ``inputs``, as they are written.

    Raises:
        UserError: as `summarize`.
    """
    stored = _open_text_writer(run)
    task = stored_task(stored, source=run, **options)
    empty = True
    for _, prediction in predict_records(task_predictor(stored, task), inputs, options.get("encoding")):
        empty = False
        yield prediction["text"]
    if empty:
        raise UserError(f"{', '.join(inputs)} holds no rows to summarise")


def _open_text_writer(run: str) -> ModelBundle:
    stored = open_model(run)
    if stored.task.get("kind") != "seq2seq":
        raise UserError(
            f"{run} was not fine-tuned to write of texts; take a run of homespun finetune summarize, or homespun "
            f"generate for a model that goes on with them, or homespun predict for a classifier"
        )
    return stored


def generator(run: str, *, stop: Sequence[str] = ()) -> TextGenerator:
    """Text generator of a run, for single prompts."""
    return TextGenerator(open_model(run), stop=stop)
