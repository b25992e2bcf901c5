"""Tokenizers and corpora from raw files, and statistics of text lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from homespun.choices import TokenizerKind
from homespun.commands.cluster_corpus import build_on_cluster
from homespun.commands.cluster_text import sample_texts
from homespun.data.corpus import Corpus
from homespun.data.corpus_build import Progress, build_corpus
from homespun.data.lengths import length_statistics
from homespun.data.reading import Reading, reading
from homespun.errors import UserError
from homespun.hf.open import open_model
from homespun.io.atomic import entries, file_digest
from homespun.report.console import SILENT, Display
from homespun.tasks.protocol import Task, TaskRows
from homespun.text.input_files import check_output
from homespun.text.sources import ReadProgress
from homespun.text.tokenizer import FILES, Tokenizer
from homespun.text.vocabulary_extension import Word, extend, with_sentinels

_BATCH_SIZE = 1024  # texts to encode at once


def tokenizer_folder(out: str | Path) -> Path:
    """Return the folder to save a tokenizer in.

    Raises:
        UserError: ``out`` is a file, or a folder with other files.
    """
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder} is a file; give a new or empty folder")
    written = {entry.name for entry in entries(folder)}
    if not written <= set(FILES) and "tokenizer.json" not in written:
        raise UserError(f"{folder} has files, but no tokenizer; give --out a new or empty folder")
    return folder


def train_tokenizer(
    reading: Reading,
    out: str | Path,
    *,
    kind: TokenizerKind = "bpe",
    vocab_size: int = 16_000,
    lowercase: bool = False,
    sentinels: int = 0,
    ray: bool = False,
    progress: Progress | None = None,
    read_progress: ReadProgress | None = None,
) -> Tokenizer:
    """Train a tokenizer and save it in ``out``.

    Args:
        reading: training text.
        out: a new or empty folder, or a tokenizer, which is replaced.
        kind: kind of the tokenizer.
        vocab_size: number of tokens, special tokens and sentinels included.
        lowercase: convert all text to lower case.
        sentinels: number of sentinel tokens for span corruption (T5, `homespun.text.vocabulary_extension`).
        ray: train on a sample that a Ray cluster draws, see `homespun.commands.cluster_text.sample_texts`.
        progress: called with numbers of characters and documents.
        read_progress: updated with the bytes that are read.

    Returns:
        The tokenizer.

    Raises:
        UserError: there is no text, the vocabulary is too large for the text, or ``out`` has other files or lies
            in an input folder.
    """
    check_output(out, reading.inputs)
    folder = tokenizer_folder(out)
    read: Callable[..., Iterable[str]] = partial(sample_texts, reading) if ray else reading.texts
    texts = read(progress=progress, read_progress=read_progress)
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
    """Add words of a text and sentinels to a tokenizer, and save the result in ``out``.

    Args:
        source: a tokenizer folder, or a checkpoint with a tokenizer.
        reading: text from which words are added; None: add no words.
        out: a new or empty folder, or a tokenizer, which is replaced.
        add: number of words to add.
        sentinels: number of sentinel tokens for span corruption (T5) to add after the words, see
            `homespun.text.vocabulary_extension`.
        progress: called with numbers of characters and documents.
        read_progress: updated with the bytes that are read.

    Returns:
        The tokenizer, and the added words.

    Raises:
        UserError: there is nothing to add, no tokenizer, too few words, or ``out`` has other files.
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
    """Open a tokenizer folder, or the tokenizer of a run or a model in any form."""
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
    ray: bool = False,
    progress: Progress | None = None,
    read_progress: ReadProgress | None = None,
) -> Corpus:
    """Encode documents into the corpus folder ``out``, or continue an interrupted build.

    Args:
        reading: documents.
        tokenizer: tokenizer, or its folder.
        out: corpus folder.
        workers: number of threads; default: one per core.
        sentences: store sentence ends, for next sentence prediction and encoder-decoders.
        ray: build on a Ray cluster, see `homespun.commands.cluster_corpus.build_on_cluster`.
        progress: called with numbers of bytes and documents, see `homespun.data.corpus_build.Progress`.
        read_progress: updated with the bytes that are read.

    Returns:
        The corpus, open for reading.

    Example:
        ``make_corpus(reading(["filings/*.jsonl.gz"], duplicates="near"), "tok", "corpus")``

    Raises:
        UserError: there is no tokenizer or no text, or ``out`` has other files or lies in an input folder.
    """
    check_output(out, reading.inputs)
    loaded = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.load(tokenizer)
    if ray:
        return build_on_cluster(
            reading, loaded, out, sentences=sentences, progress=progress, read_progress=read_progress
        )
    return build_corpus(
        reading.documents(read_progress),
        loaded,
        out,
        inputs=reading.describe(),
        workers=workers,
        sentences=sentences,
        progress=progress,
    )


def verify_corpus(path: str | Path, *, display: Display = SILENT) -> dict[str, object]:
    """Read all files of a corpus and compare their checksums with the recorded ones, such as after copying it.

    Args:
        path: corpus folder.
        display: shows the progress in tokens.

    Returns:
        The sizes of the corpus, see `describe_corpus`.

    Raises:
        UserError: there is no complete corpus in ``path``, or files have other content than recorded.
    """
    corpus = Corpus.open(path)
    task = display.task("verifying the corpus", total=corpus.num_tokens, unit="tokens")
    altered, done = [], 0
    for record in corpus.records:
        if file_digest(corpus.path / record.name) != record.checksum:
            altered.append(record.name)
        done += record.tokens
        task.update(done)
    if altered:
        names = ", ".join(altered[:5]) + (f" and {len(altered) - 5:,} more" if len(altered) > 5 else "")
        raise UserError(f"files of {path} have other content than when they were built: {names}; copy them again")
    return describe_corpus(corpus, path)


def describe_corpus(corpus: Corpus, path: str | Path) -> dict[str, object]:
    """Return the sizes of a corpus as plain values, for output."""
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


def corpus_lengths(path: str | Path) -> list[dict[str, object]]:
    """Compute length statistics of a corpus, by class if it has labels.

    Args:
        path: corpus folder.

    Returns:
        Rows with ``split``, ``class`` (None: all classes), ``count``, ``mean``, ``median``, ``minimum``, ``maximum``,
        ``tokens`` (the sum), ``above`` (share of longer documents, by limit) and ``histogram`` (``edges``, ``counts``).

    Raises:
        UserError: there is no complete corpus in ``path``.
    """
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
    """Compute length statistics of files, with one split per input, such as train.csv and test.csv.

    Args:
        inputs: files, globs, folders, archives, URLs or hub names.
        tokenizer: tokenizer folder, or ``tokenizer.json``.
        text_fields: text columns, which are joined with a space.
        label_field: label column, for statistics by class.
        encoding: character encoding; detected by default.
        columns: column names of a csv without a header.

    Returns:
        Rows as of `corpus_lengths`.

    Raises:
        UserError: a file, a column or the tokenizer is missing.
    """
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
        while chunk := list(islice(documents, _BATCH_SIZE)):
            lengths += map(len, loaded.encode_batch([document.text for document in chunk]))
            classes += [document.label for document in chunk]
        splits[entry] = np.arange(start, len(lengths))
    return length_statistics(np.array(lengths), splits=splits, classes=classes if label_field is not None else None)


def task_lengths(
    task: Task[object, TaskRows], tokenizer: Tokenizer, parts: Mapping[str, Sequence[object]]
) -> list[dict[str, object]]:
    """Compute length statistics of the texts of a task, by part, and by class if each example has one class."""
    lengths: list[int] = []
    classes: list[str | None] = []
    splits: dict[str, np.ndarray] = {}
    for name, examples in parts.items():
        start, texts, classes_of = len(lengths), task.texts(examples), task.stratify_by(examples)
        for first in range(0, len(texts), _BATCH_SIZE):
            lengths += map(len, tokenizer.encode_batch(list(texts[first : first + _BATCH_SIZE])))
        splits[name] = np.arange(start, len(lengths))
        if task.labels is not None and not task.labels.multi_label and classes_of.ndim == 1:
            classes += [task.labels.names[number] for number in classes_of.tolist()]
    return length_statistics(np.array(lengths), splits=splits, classes=classes or None)
