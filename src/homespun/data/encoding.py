"""Encode a stream of documents: in pieces and batches, on all cores, in order."""

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
from homespun.text.formats import without_surrogates
from homespun.text.sources import Document
from homespun.text.tokenizer import Tokenizer

BATCH_CHARACTERS = 250_000  # a batch in the encoder takes about 100 bytes a token, and there is one a core
PIECE_CHARACTERS = 50_000  # longer documents are encoded in pieces, on all cores


@dataclass(frozen=True)
class Encoded:
    """An encoded document."""

    pieces: list[np.ndarray]  # token ids, in order; one piece a sentence with `sentences`
    label: str | None
    num_bytes: int  # UTF-8 bytes of its text
    num_words: int  # separated by white space


_Facts = tuple[str | None, int, int]  # label, bytes and words of a document
_Piece = tuple[str, _Facts | None]  # a text, with the facts of the document that it is the last of


def encode_documents(
    documents: Iterable[Document], tokenizer: Tokenizer, *, workers: int, sentences: bool
) -> Generator[Encoded]:
    """Token ids of the documents (uint16, or uint32 for a vocabulary above 65,536), in order.

    Two batches a worker and one document are in memory.
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
        facts = (label, len(text.encode()), sum(1 for _ in _WORD.finditer(text)))
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


_SPACE = re.compile(r"(?<=\S)\s")
_WORD = re.compile(r"\S+")


def _cuts(text: str, *, sentences: bool) -> Iterator[int]:
    """Ends of the pieces of a document, ascending; the last is the end of the text."""
    start = 0
    ends = [end for _, end in sentence_spans(text)][:-1] if sentences else []
    for end in [*ends, len(text)]:
        # cut before white space, where every kind of tokenizer begins a word: the tokens do not change
        while end - start > 2 * PIECE_CHARACTERS:
            space = _SPACE.search(text, start + PIECE_CHARACTERS, start + 2 * PIECE_CHARACTERS)
            start = space.start() if space else start + PIECE_CHARACTERS
            yield start
        yield end
        start = end


def _in_threads(
    encode: Callable[[list[_Piece]], list[np.ndarray]], batches: Iterator[list[_Piece]], workers: int
) -> Iterator[tuple[list[_Piece], list[np.ndarray]]]:
    """Encode a batch a thread, outside Python's lock, while this thread reads and cleans the next texts.

    A third faster on two cores than one batch at a time on all cores: turning ids into arrays needs Python's lock.
    """
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
    """Keep `tokenizers` from starting threads inside each of ours; it reads the variable at every call."""
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
