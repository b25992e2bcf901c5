"""Documents of raw files, cleaned and without duplicates."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, asdict, dataclass

from homespun.choices import Duplicates
from homespun.data.corpus_build import Progress
from homespun.errors import UserError
from homespun.text.clean import normalise
from homespun.text.duplicates import ExactDuplicates, NearDuplicates
from homespun.text.formats import MAX_CHARACTERS
from homespun.text.input_files import digest_files
from homespun.text.sources import Document, ReadProgress, read_documents

_BATCH = 1 << 14  # characters of documents that are hashed together, which is faster for short ones


@dataclass(frozen=True)
class Reading:
    """Text files of a tokenizer or a corpus, for `train_tokenizer`, `extend_tokenizer` and `make_corpus`.

    Args:
        inputs: files, globs, folders, archives, URLs or hub names; read later.
        text_fields: text columns, which are joined with a space.
        label_field: label column to keep.
        encoding: character encoding; detected by default.
        columns: column names of a csv without a header.
        normalise: apply Unicode NFC, and remove control characters and repeated spaces.
        duplicates: ``exact`` removes repeated texts, ``near`` also near-duplicates, ``keep`` none.
        max_characters: maximum length of a document; longer ones are skipped and counted.

    Raises:
        UserError: ``inputs`` is empty.
    """

    inputs: Sequence[str]
    _: KW_ONLY
    text_fields: Sequence[str] = ("text",)
    label_field: str | None = None
    encoding: str | None = None
    columns: Sequence[str] | None = None
    normalise: bool = True
    duplicates: Duplicates = "exact"
    max_characters: int = MAX_CHARACTERS

    def __post_init__(self) -> None:
        if not self.inputs:
            raise UserError("--input is missing; give a file, glob, folder, archive, URL or hub name")

    def documents(self, read_progress: ReadProgress | None = None) -> Iterator[Document]:
        """Yield the cleaned documents in the order of the inputs; updates ``read_progress``."""
        stream = read_documents(
            self.inputs,
            text_field=self.text_fields,
            label_field=self.label_field,
            encoding=self.encoding,
            columns=self.columns,
            max_characters=self.max_characters,
            read_progress=read_progress,
        )
        return clean_documents(stream, normal=self.normalise, duplicates=self.duplicates)

    def texts(self, *, progress: Progress | None, read_progress: ReadProgress | None) -> Iterator[str]:
        """Yield the texts of `documents`; every 256, ``progress`` gets the numbers of characters and documents."""
        done = 0
        for number, document in enumerate(self.documents(read_progress), start=1):
            done += len(document.text)
            if progress is not None and number % 256 == 0:
                progress(done, number)
            yield document.text

    def describe(self) -> str:
        """Describe settings and content of the files in JSON, to decide whether a stopped build can be resumed.

        Raises:
            UserError: an input is missing.
        """
        return json.dumps(asdict(self) | {"files": digest_files(self.inputs)}, sort_keys=True)


reading = Reading  # the name in `homespun`, a function as the others there


def clean_documents(documents: Iterable[Document], *, normal: bool, duplicates: Duplicates) -> Iterator[Document]:
    """Yield documents with normalised texts if ``normal``, and without ``duplicates``; see `Reading`."""
    if normal:
        documents = (Document(normalise(one.text), one.label, one.source) for one in documents)
    kept = (one for one in documents if one.text)
    if duplicates != "keep":
        exact = ExactDuplicates()
        kept = (one for one in kept if exact.is_new(one.text))
    return _without_near_duplicates(kept) if duplicates == "near" else kept


def _without_near_duplicates(documents: Iterable[Document]) -> Iterator[Document]:
    near = NearDuplicates()
    for batch in _batches(documents):
        yield from itertools.compress(batch, near.are_new([document.text for document in batch]))


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Group documents, so that each batch but the last has at least `_BATCH` characters."""
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if characters >= _BATCH:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
