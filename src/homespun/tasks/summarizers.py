"""Extractive summarizer as a model of records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, Unpack, cast

from homespun.data.source_target import SourceTargetPair, get_source
from homespun.errors import UserError
from homespun.extractive import SentenceRanker
from homespun.io.atomic import atomic_path
from homespun.metrics.text import Rouge
from homespun.tasks.protocol import Measured, ReadOptions, numbered_chunks, paths, task_metadata
from homespun.tasks.seq2seq_data import TextPairsData
from homespun.tasks.stored_data import StoredData, stored_data
from homespun.tasks.summaries import measure_texts
from homespun.text.formats import Record

_CHUNK = 256  # texts read ahead in prediction


@dataclass(frozen=True)
class ExtractiveSummarizer:
    """Model whose output for a text are its best sentences."""

    model: SentenceRanker
    data: TextPairsData
    kind: Literal["extractive"] = "extractive"
    labels: ClassVar[None] = None

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return self.model.parameters

    def measure(self, pairs: Sequence[SourceTargetPair]) -> Measured:
        """Compute ROUGE of the summaries."""
        return measure_texts(self.data, pairs, self.model.summarize([pair.source for pair in pairs]), Rouge())

    def measure_files(self, files: Sequence[str]) -> Measured:
        """Compute ROUGE of the summaries of pairs in files."""
        return self.measure(cast(Sequence[SourceTargetPair], self.data.read_files(files)))

    def predict(self, records: Iterable[Record], *, source: str, first: int = 1) -> Iterator[dict[str, object]]:
        """Yield ``text``, the summary of each record, in order and in bounded memory.

        Raises:
            UserError: a record lacks the column; the message begins with ``source``.
        """
        columns = paths(self.data.source)
        for chunk in numbered_chunks(records, _CHUNK, source=source, first=first):
            texts = [get_source(record, columns, where=where, between=self.data.between) for where, record in chunk]
            yield from ({"text": text, "truncated": False} for text in self.model.summarize(texts))

    def save(self, folder: Path) -> None:
        """Write the ``model/`` folder atomically, replacing an existing one."""
        with atomic_path(folder) as temporary:
            temporary.mkdir()
            replace(self.model, task=task_metadata("seq2seq", self.data)).save(temporary)


class _StoredPairs(StoredData):
    data: TextPairsData


def open_summarizer(folder: Path, **options: Unpack[ReadOptions]) -> ExtractiveSummarizer:
    """Open the extractive summarizer in a ``model/`` folder; ``options`` are columns that differ from training.

    Raises:
        UserError: a file is damaged, or ``options`` has generation settings.
    """
    if options.get("generation"):
        raise UserError(f"{folder} extracts sentences and does not generate text; leave --generation out")
    model = SentenceRanker.load(folder)
    data = stored_data(_StoredPairs, model.task, source=str(folder), **options)
    return ExtractiveSummarizer(model, cast(TextPairsData, data))
