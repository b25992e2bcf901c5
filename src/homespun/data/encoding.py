"""Multi-threaded encoding of documents to token ids."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from homespun.text.clean import sentence_spans
from homespun.text.decoding import without_surrogates
from homespun.text.sources import Document
from homespun.text.tokenizer import Tokenizer

BATCH_CHARACTERS = 500_000  # if `tokenizers` encodes each text, about 100 bytes a token in each thread
PIECE_CHARACTERS = 50_000  # longer documents are encoded in pieces, on all cores


@dataclass(frozen=True)
class Encoded:
    """Encoded document."""

    pieces: list[np.ndarray]  # token ids, in order; the sentences, with `sentences`
    label: str | None
    num_bytes: int  # UTF-8 bytes of its text
    num_words: int  # separated by white space


_Facts = tuple[str | None, int, int]  # label, bytes and words of a document
_Piece = tuple[str, _Facts | None]  # a text, and the facts of its document if it is the last piece


def encode_documents(
    documents: Iterable[Document], tokenizer: Tokenizer, *, workers: int, sentences: bool
) -> Generator[Encoded]:
    """Encode documents in order, in threads, to uint16 ids, or uint32 for a vocabulary above 65,536.

    Two batches for each worker and one document are in memory.
    """

    def encode(batch: list[_Piece]) -> list[np.ndarray]:
        return tokenizer.encode_batch([text for text, _ in batch])

    pieces: list[np.ndarray] = []
    for batch, encoded in _in_threads(encode, _batches(documents, sentences=sentences), workers):
        for (_, document), ids in zip(batch, encoded, strict=True):
            if len(ids):
                pieces.append(ids)
            if document is not None:
                yield Encoded(pieces, *document)
                pieces = []


def _batches(documents: Iterable[Document], *, sentences: bool) -> Iterator[list[_Piece]]:
    batch: list[_Piece] = []
    characters = 0
    for document in documents:
        text = without_surrogates(document.text)
        label = None if document.label is None else without_surrogates(document.label)
        facts = (label, len(text.encode()), _count_words(text))
        start = 0
        for end in _cuts(text, sentences=sentences):
            batch.append((text[start:end], facts if end == len(text) else None))
            characters += end - start
            start = end
            if characters >= BATCH_CHARACTERS:
                yield batch
                batch, characters = [], 0
    if batch:
        yield batch


def _count_words(text: str) -> int:
    if len(text) <= PIECE_CHARACTERS:
        return len(text.split())
    return sum(1 for _ in _WORD.finditer(text))  # slower, without a list of all words


_SPACE = re.compile(r"(?<=\S)\s")
_WORD = re.compile(r"\S+")


def _cuts(text: str, *, sentences: bool) -> Iterator[int]:
    """Yield the ends of the pieces of a document, ascending; the last is the end of the text."""
    start = 0
    ends = [end for _, end in sentence_spans(text)][:-1] if sentences else []
    for end in [*ends, len(text)]:
        # cut before white space, where all tokenizers begin a word: the tokens stay the same
        while end - start > 2 * PIECE_CHARACTERS:
            space = _SPACE.search(text, start + PIECE_CHARACTERS, start + 2 * PIECE_CHARACTERS)
            start = space.start() if space else start + PIECE_CHARACTERS
            yield start
        yield end
        start = end


def _in_threads(
    encode: Callable[[list[_Piece]], list[np.ndarray]], batches: Iterator[list[_Piece]], workers: int
) -> Iterator[tuple[list[_Piece], list[np.ndarray]]]:
    """Encode batches in threads, mostly outside Python's lock, while this thread reads and cleans the next texts."""
    waiting: deque[tuple[list[_Piece], Future[list[np.ndarray]]]] = deque()
    with _one_core_a_call(), ThreadPoolExecutor(workers, thread_name_prefix="encode") as pool:
        try:
            for batch in batches:
                waiting.append((batch, pool.submit(encode, batch)))
                if len(waiting) == 2 * workers:
                    done, future = waiting.popleft()
                    yield done, future.result()
            while waiting:
                done, future = waiting.popleft()
                yield done, future.result()
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _one_core_a_call() -> Iterator[None]:
    """Disable the threads inside `tokenizers`, which reads the variable at each call."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
