"""From raw files to a tokenizer and a corpus, and length statistics of both."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from homespun.data.corpus import Corpus, Progress, build_corpus
from homespun.data.labels import get_text
from homespun.data.lengths import length_statistics
from homespun.errors import UserError
from homespun.hf.open import open_model
from homespun.tasks.protocol import Task, TaskRows
from homespun.text.clean import ExactDuplicates, NearDuplicates, normalise
from homespun.text.sources import Document, ReadProgress, digest_files, read_documents, read_records
from homespun.text.tokenizer import Kind, Tokenizer
from homespun.text.vocabulary_extension import Word, extend, with_sentinels

Duplicates = Literal["keep", "exact", "near"]


@dataclass(frozen=True)
class Reading:
    """Inputs and how to read them, as a stream.

    Args:
        inputs: files, globs, folders, archives, URLs, hub names.
        text_fields: columns of the text, in formats that have columns; several are joined with a space.
        label_field: column of a label to keep in the corpus.
        encoding: of text files; detected where not given.
        columns: names of the columns of a csv without a header.
        normalise: Unicode NFC, control characters and surplus white space out.
        duplicates: `exact` drops texts seen before, `near` those that share most of their word sequences too, `keep`
            none.
    """

    inputs: tuple[str, ...]
    text_fields: tuple[str, ...] = ("text",)
    label_field: str | None = None
    encoding: str | None = None
    columns: tuple[str, ...] | None = None
    normalise: bool = True
    duplicates: Duplicates = "exact"

    def documents(self, read_progress: ReadProgress | None = None) -> Iterator[Document]:
        """The documents, cleaned as asked, in the order of the inputs; ``read_progress`` is updated."""
        stream = self._joined(read_progress) if len(self.text_fields) > 1 else self._single(read_progress)
        return clean_documents(stream, normal=self.normalise, duplicates=self.duplicates)

    def texts(self, *, progress: Progress | None, read_progress: ReadProgress | None) -> Iterator[str]:
        """Texts of `documents`; calls ``progress`` with the numbers of characters and documents every 256 documents."""
        done = 0
        for number, document in enumerate(self.documents(read_progress), start=1):
            done += len(document.text)
            if progress is not None and number % 256 == 0:
                progress(done, number)
            yield document.text

    def _single(self, read_progress: ReadProgress | None) -> Iterator[Document]:
        return read_documents(
            self.inputs,
            text_field=self.text_fields[0],
            label_field=self.label_field,
            encoding=self.encoding,
            columns=self.columns,
            read_progress=read_progress,
        )

    def _joined(self, read_progress: ReadProgress | None) -> Iterator[Document]:
        names = ", ".join(self.inputs)
        records = read_records(self.inputs, encoding=self.encoding, columns=self.columns, read_progress=read_progress)
        for number, record in enumerate(records, 1):
            where = f"record {number} of {names}"
            text = get_text(record, self.text_fields, where=where)
            label = None if self.label_field is None else get_text(record, [self.label_field], where=where)
            yield Document(text, label, where)

    def describe(self) -> str:
        """The same for the same reading of the same files: what a half-built corpus is held against.

        Raises:
            UserError: an input that is missing.
        """
        return json.dumps(asdict(self) | {"files": digest_files(self.inputs)}, sort_keys=True)


def clean_documents(documents: Iterable[Document], *, normal: bool, duplicates: Duplicates) -> Iterator[Document]:
    """The documents with their texts normalised, and without repeated ones, as asked."""
    filters: list[ExactDuplicates | NearDuplicates] = []
    if duplicates != "keep":
        filters.append(ExactDuplicates())
    if duplicates == "near":
        filters.append(NearDuplicates())
    for document in documents:
        text = normalise(document.text) if normal else document.text
        if text and all(seen.is_new(text) for seen in filters):
            yield Document(text, document.label, document.source)


def tokenizer_folder(out: str | Path) -> Path:
    """Folder to save a tokenizer in.

    Raises:
        UserError: it is a file, or holds something else.
    """
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; a tokenizer needs a folder of its own")
    if folder.exists() and any(folder.iterdir()) and not (folder / "tokenizer.json").exists():
        raise UserError(f"{folder} exists and is not a tokenizer; give another --out")
    return folder


def train_tokenizer(
    reading: Reading,
    out: str | Path,
    *,
    kind: Kind = "bpe",
    vocab_size: int = 16_000,
    lowercase: bool = False,
    sentinels: int = 0,
    progress: Progress | None = None,
    read_progress: ReadProgress | None = None,
) -> Tokenizer:
    """Train a tokenizer on what is read, and save it in the folder ``out``.

    Args:
        sentinels: how many of its tokens stand for what T5 cuts out of a text (`homespun.text.vocabulary_extension`).

    Raises:
        UserError: nothing to read, a vocabulary larger than the text allows, or ``out`` holds something else.
    """
    folder = tokenizer_folder(out)
    texts = reading.texts(progress=progress, read_progress=read_progress)
    tokenizer = Tokenizer.train(texts, kind=kind, vocab_size=vocab_size - sentinels, lowercase=lowercase)
    if sentinels:
        tokenizer = with_sentinels(tokenizer, sentinels)
    tokenizer.save(folder)
    return tokenizer


def extend_tokenizer(
    source: str | Path,
    reading: Reading | None,
    out: str | Path,
    *,
    add: int = 0,
    sentinels: int = 0,
    progress: Progress | None = None,
    read_progress: ReadProgress | None = None,
) -> tuple[Tokenizer, list[Word]]:
    """Add ``add`` words of the text to the tokenizer of a checkpoint (or a tokenizer folder), and save it in ``out``.

    Args:
        reading: where the words are taken from; None: no words are added.
        sentinels: how many to add behind them (`homespun.text.vocabulary_extension`).

    Raises:
        UserError: nothing to add, no tokenizer there, too few words, or ``out`` holds something else.
    """
    if reading is None and not sentinels:
        raise UserError("nothing to add; give --add COUNT words of --input, or --sentinels COUNT")
    folder = tokenizer_folder(out)
    tokenizer = open_tokenizer(source)
    words: list[Word] = []
    if reading is not None:
        tokenizer, words = extend(tokenizer, reading.texts(progress=progress, read_progress=read_progress), add)
    if sentinels:
        tokenizer = with_sentinels(tokenizer, sentinels)
    tokenizer.save(folder)
    return tokenizer, words


def open_tokenizer(source: str | Path) -> Tokenizer:
    """The tokenizer of a run, of a model in any form, or of a tokenizer's own folder."""
    folder = Path(source).expanduser()
    for candidate in (folder, folder / "model"):
        if (candidate / "tokenizer.json").is_file():
            return Tokenizer.load(candidate)
    return Tokenizer.load(folder) if folder.is_file() else open_model(source).tokenizer


def make_corpus(
    reading: Reading,
    tokenizer: str | Path | Tokenizer,
    out: str | Path,
    *,
    workers: int | None = None,
    sentences: bool = False,
    progress: Progress | None = None,
    read_progress: ReadProgress | None = None,
) -> Corpus:
    """Encode what is read into the corpus folder ``out``; a build that was killed goes on where it was.

    Raises:
        UserError: no tokenizer there, nothing to read, or ``out`` holds something else.
    """
    loaded = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.load(tokenizer)
    return build_corpus(
        reading.documents(read_progress),
        loaded,
        out,
        inputs=reading.describe(),
        workers=workers,
        sentences=sentences,
        progress=progress,
    )


def describe_corpus(corpus: Corpus, path: str | Path) -> dict[str, object]:
    """Sizes of a corpus, for output."""
    return {
        "corpus": str(path),
        "documents": len(corpus),
        "tokens": corpus.num_tokens,
        "bytes": corpus.num_bytes,
        "words": corpus.num_words,
        "bytes_per_token": corpus.num_bytes / max(1, corpus.num_tokens),
        "vocab_size": corpus.tokenizer.vocab_size,
        "tokenizer": corpus.tokenizer.fingerprint,
    }


def reading(
    inputs: Sequence[str],
    *,
    text_fields: Sequence[str] = ("text",),
    label_field: str | None = None,
    encoding: str | None = None,
    columns: Sequence[str] | None = None,
    normalise: bool = True,
    duplicates: Duplicates = "exact",
) -> Reading:
    """A `Reading` from plain lists.

    Raises:
        UserError: nothing to read.
    """
    if not inputs:
        raise UserError("nothing to read: give --input at least once")
    named = None if columns is None else tuple(columns)
    return Reading(tuple(inputs), tuple(text_fields), label_field, encoding, named, normalise, duplicates)


_CHUNK = 1024  # texts encoded at a time


def corpus_lengths(path: str | Path) -> list[dict[str, object]]:
    """Length statistics of a corpus, by class if it has labels; see `homespun.data.lengths.length_statistics`."""
    corpus = Corpus.open(path)
    labels = corpus.labels()
    classes = labels if any(label is not None for label in labels) else None
    return length_statistics(corpus.lengths, classes=classes)


def file_lengths(
    inputs: Sequence[str],
    tokenizer: str | Path,
    *,
    text_fields: Sequence[str] = ("text",),
    label_field: str | None = None,
    encoding: str | None = None,
    columns: Sequence[str] | None = None,
) -> list[dict[str, object]]:
    """Length statistics of files, each one split, such as train.csv and test.csv."""
    loaded = Tokenizer.load(tokenizer)
    lengths: list[int] = []
    classes: list[str | None] = []
    splits: dict[str, np.ndarray] = {}
    for entry in inputs:
        start = len(lengths)
        documents = reading(
            [entry],
            text_fields=text_fields,
            label_field=label_field,
            encoding=encoding,
            columns=columns,
            duplicates="keep",
        ).documents()
        while chunk := list(islice(documents, _CHUNK)):
            lengths += map(len, loaded.encode_batch([document.text for document in chunk]))
            classes += [document.label for document in chunk]
        splits[entry] = np.arange(start, len(lengths))
    return length_statistics(np.array(lengths), splits=splits, classes=classes if label_field is not None else None)


def task_lengths(
    task: Task[object, TaskRows], tokenizer: Tokenizer, parts: Mapping[str, Sequence[object]]
) -> list[dict[str, object]]:
    """Length statistics of the texts of a task, by part, and by class if each example has one."""
    lengths: list[int] = []
    classes: list[str | None] = []
    splits: dict[str, np.ndarray] = {}
    for name, examples in parts.items():
        start, texts, classes_of = len(lengths), task.texts(examples), task.stratify_by(examples)
        for first in range(0, len(texts), _CHUNK):
            lengths += map(len, tokenizer.encode_batch(list(texts[first : first + _CHUNK])))
        splits[name] = np.arange(start, len(lengths))
        if task.labels is not None and not task.labels.multi_label and classes_of.ndim == 1:
            classes += [task.labels.names[number] for number in classes_of.tolist()]
    return length_statistics(np.array(lengths), splits=splits, classes=classes or None)
