"""Rows of a corpus for pretraining, and their padding to a batch."""

from __future__ import annotations

import dataclasses
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from homespun.batch import Batch
from homespun.data.corpus import Corpus, random_keys
from homespun.data.document_set import Documents
from homespun.errors import UserError

SHORTEST_LENGTH = 8


@dataclass(frozen=True)
class Row:
    """Training row before corruption, with special tokens."""

    input_ids: np.ndarray  # (seq,) int64
    documents: np.ndarray | None = None  # (seq,) int64, from 0 in each row; None: one document
    token_type_ids: np.ndarray | None = None  # (seq,) int64
    label: int | float | np.ndarray | None = None  # class, or (classes,) 0/1 if multi-label; NSP: 1 = random next
    sentence_ends: np.ndarray | None = None  # (sentences,) int64: end of each in `input_ids`, exclusive
    target_ids: np.ndarray | None = None  # (target,) int64: target of a decoder, with its end token
    stream_position: tuple[int, int] | None = None  # stream, number of the piece in it
    cut: tuple[bool, bool] = (False, False)  # the first document begins, the last one ends in another row


class Rows(Protocol):
    """Interface of map-style collections of rows. ``rows[i]`` always returns the same row."""

    @property
    def lengths(self) -> np.ndarray:
        """(rows,) int number of tokens of each row, known without reading it; for packed rows, of the first million."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Row: ...


@dataclass
class UnsegmentedRows:
    """Rows without document numbers, for attention that cannot mask documents."""

    rows: Rows

    def __post_init__(self) -> None:
        self.lengths = self.rows.lengths

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return dataclasses.replace(self.rows[index], documents=None)


class SubsetRows:
    """Rows at ``places`` (n,), in this order, possibly repeated."""

    def __init__(self, rows: Rows, places: NDArray[np.int64]) -> None:
        self.rows = rows
        self.places = places
        self.lengths: NDArray[np.int64] = rows.lengths[places]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Row:
        return self.rows[int(self.places[index])]


class NextSentenceRows:
    """Rows for next sentence prediction (Devlin et al. 2019): ``[CLS] A [SEP] B [SEP]``.

    A is consecutive sentences of a document. B is the continuation of A (label 0), or, in half of the rows, a span of
    another document (label 1). Rows fill ``length``, except one in ten, which is shorter. A random B is as long as the
    continuation if its document has enough tokens, so that lengths do not reveal labels. If B is random, the sentences
    after A begin a later row. Documents of one sentence are never an A.

    Raises:
        UserError: ``length`` is below 8, the corpus has no sentence ends, there are fewer than two documents, or none
            has two sentences.
    """

    def __init__(self, corpus: Corpus, documents: Documents, *, length: int, seed: int) -> None:
        check_corpus_rows(length, documents)
        documents = np.asarray(documents)
        require_sentences(corpus, "next sentence prediction")
        if len(documents) < 2:
            raise UserError(f"next sentence prediction needs two documents or more, not {len(documents)}; add text")
        flat = array("I")
        random = np.random.Generator(np.random.PCG64(int(random_keys(seed)[0])))
        for place in range(len(documents)):
            flat.extend(_pairs(corpus, documents, place, length - 3, random))
        if not flat:
            raise UserError(
                f"next sentence prediction needs documents of two sentences or more, and none of {len(documents):,} "
                f"is one; set objective.next_sentence=false, or join the lines of a text into documents"
            )
        self._corpus = corpus
        # (rows, 7): document, start, end of A; document, start, end of B; label
        self._spans = np.frombuffer(flat, np.uint32).reshape(-1, 7)
        a, b = self._spans[:, 2] - self._spans[:, 1], self._spans[:, 5] - self._spans[:, 4]
        self.lengths = (a + b).astype(np.int64) + 3
        self._cls, self._sep = corpus.tokenizer.cls_id, corpus.tokenizer.sep_id

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Row:
        first, a_start, a_end, second, b_start, b_end, label = self._spans[check_index(index, len(self))].tolist()
        a = self._corpus.tokens(first)[a_start:a_end]
        b = self._corpus.tokens(second)[b_start:b_end]
        ids = np.concatenate([[self._cls], a, [self._sep], b, [self._sep]], dtype=np.int64)
        types = np.zeros(len(ids), np.int64)
        types[len(a) + 2 :] = 1
        return Row(ids, token_type_ids=types, label=label)


def _pairs(corpus: Corpus, documents: np.ndarray, place: int, room: int, random: np.random.Generator) -> Iterator[int]:
    """Yield the rows whose A is from the document at ``place``, seven integers each."""
    document = int(documents[place])
    ends: list[int] = corpus.sentence_ends(document).tolist()
    sentence = 0  # the first sentence of the next row
    while sentence + 1 < len(ends):
        start = ends[sentence - 1] if sentence else 0
        target = int(random.integers(2, room + 1)) if random.random() < 0.1 else room
        # A is at most three quarters of the row, and the document has a sentence after it for B
        most = bisect_right(ends, start + target * 3 // 4, sentence) - sentence
        a_sentences = int(random.integers(1, max(1, min(most, len(ends) - 1 - sentence)) + 1))
        middle = sentence + a_sentences
        a_end = ends[middle - 1]
        # a longer first sentence is cut at its front, since B continues its end
        a_start = max(start, a_end - max(target * 3 // 4, 1))
        b_length = min(target - (a_end - a_start), ends[-1] - a_end)
        if random.random() < 0.5:
            other, b_start, b_end = _span(corpus, documents, place, b_length, random)
            yield from (document, a_start, a_end, other, b_start, b_end, 1)
            sentence = middle
        else:
            yield from (document, a_start, a_end, document, a_end, a_end + b_length, 0)
            # a sentence that B truncates begins the next row
            sentence = bisect_right(ends, a_end + b_length)


def _span(
    corpus: Corpus, documents: np.ndarray, place: int, length: int, random: np.random.Generator
) -> tuple[int, int, int]:
    """Draw a document other than the one at ``place``, and a span of ``length`` tokens from a sentence start.

    The span is shorter if the document is.
    """
    other = int(random.integers(len(documents) - 1))
    document = int(documents[other + (other >= place)])
    ends = corpus.sentence_ends(document)
    starts = int(np.searchsorted(ends, max(int(ends[-1]) - length, 0), side="right"))  # candidate sentences
    sentence = int(random.integers(starts + 1))
    start = int(ends[sentence - 1]) if sentence else 0
    return document, start, min(start + length, int(ends[-1]))


class SentenceRows:
    """Rows of complete sentences of one document, for sequence-to-sequence objectives; no token is lost.

    A row has as many complete sentences as fit; a sentence longer than a row is split and continues in the next. In a
    corpus without sentence ends, documents are split into equal parts, and rows have no ``sentence_ends``. A decoder
    attends to all of its encoder's input, so a row has one document; rows of short documents are short, so batch them
    by length (`Loader`'s order ``bucketed``). ``begin_id`` is the token before the text (BART), or None (T5, PEGASUS,
    ProphetNet), ``end_id`` the token after it.

    Raises:
        UserError: ``length`` is below 8, or there are no documents.
    """

    def __init__(self, corpus: Corpus, documents: Documents, *, length: int, begin_id: int | None, end_id: int) -> None:
        check_corpus_rows(length, documents)
        self._begin = np.array([] if begin_id is None else [begin_id], np.int64)
        self._end = np.array([end_id], np.int64)
        special = len(self._begin) + len(self._end)
        flat = array("I")
        for document in np.asarray(documents).tolist():
            for start, end, sentences in _sentence_pieces(corpus, document, length - special):
                flat.extend((document, start, end, sentences))
        self._corpus = corpus
        table = np.frombuffer(flat, np.uint32).reshape(-1, 4)
        self._spans = table[:, :3]  # (rows, 3): document, start, end
        self.sentences = table[:, 3]  # (rows,) sentences, also partial ones; 0: unknown
        self.lengths = (self._spans[:, 2] - self._spans[:, 1]).astype(np.int64) + special

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Row:
        document, start, end = self._spans[check_index(index, len(self))].tolist()
        ids = np.concatenate([self._begin, self._corpus.tokens(document)[start:end], self._end], dtype=np.int64)
        if not self._corpus.has_sentences:
            return Row(ids)
        ends = self._corpus.sentence_ends(document)
        inside = ends[np.searchsorted(ends, start, side="right") : np.searchsorted(ends, end)]
        return Row(ids, sentence_ends=np.append(inside, end).astype(np.int64) - start + len(self._begin))


def _sentence_pieces(corpus: Corpus, document: int, body: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, sentences) of each row of a document, of at most ``body`` tokens."""
    size = int(corpus.lengths[document])
    start = 0
    if not corpus.has_sentences:
        count = -(-size // body)
        for number in range(count):
            yield size * number // count, size * (number + 1) // count, 0
        return
    ends: list[int] = corpus.sentence_ends(document).tolist()
    done = 0  # sentences that end in previous rows
    while start < size:
        ended = bisect_right(ends, start + body)
        if ended > done:
            yield start, ends[ended - 1], ended - done
            start = ends[ended - 1]
        else:
            yield start, start + body, 1
            start += body
        done = ended


def check_corpus_rows(length: int, documents: Sized) -> None:
    """Raise `UserError` if ``length`` is below `SHORTEST_LENGTH` or there are no documents."""
    if length < SHORTEST_LENGTH:
        raise UserError(f"data.max_length={length} is too short; set it to {SHORTEST_LENGTH} or more")
    if not len(documents):
        raise UserError("there are no documents for rows; give more text, or a larger share of it")


def require_sentences(corpus: Corpus, needed_by: str, otherwise: str = "") -> None:
    """Raise `UserError` for a corpus without sentence ends; ``otherwise`` ends the message."""
    if not corpus.has_sentences:
        raise UserError(
            f"{needed_by} needs sentence ends, and corpus {corpus.path} was built without; build it again with: "
            f"homespun corpus build --sentences{otherwise}"
        )


def check_index(index: int, count: int) -> int:
    """Return ``index``; raise `IndexError` unless ``0 <= index < count``, which ends iteration."""
    if not 0 <= index < count:
        raise IndexError(f"row {index} of {count}")
    return index


def pad(rows: Sequence[Row], pad_id: int) -> Batch:
    """Pad rows on the right to the longest: ids, mask, documents, positions, token types.

    In packed rows ``documents`` numbers the documents (padding: -1) and positions restart at each. Inputs that no row
    needs are None.
    """
    import torch

    lengths = np.array([len(row.input_ids) for row in rows])
    shape = (len(rows), int(lengths.max()))
    input_ids = np.full(shape, pad_id, dtype=np.int64)
    for padded, row in zip(input_ids, rows, strict=True):
        padded[: len(row.input_ids)] = row.input_ids
    keep = np.arange(shape[1]) < lengths[:, None]
    documents = positions = segments = None
    if any(row.documents is not None and row.documents[-1] > 0 for row in rows):
        documents = np.full(shape, -1, dtype=np.int64)
        for padded, row in zip(documents, rows, strict=True):
            padded[: len(row.input_ids)] = 0 if row.documents is None else row.documents
        column = np.broadcast_to(np.arange(shape[1]), shape)
        begins = np.concatenate([np.ones((shape[0], 1), bool), documents[:, 1:] != documents[:, :-1]], axis=1)
        positions = column - np.maximum.accumulate(np.where(begins, column, 0), axis=1)
    if any(row.token_type_ids is not None for row in rows):
        segments = np.zeros(shape, dtype=np.int64)
        for padded, row in zip(segments, rows, strict=True):
            if row.token_type_ids is not None:
                padded[: len(row.token_type_ids)] = row.token_type_ids
    return Batch(
        input_ids=torch.from_numpy(input_ids),
        attention_mask=None if keep.all() else torch.from_numpy(keep),
        documents=None if documents is None else torch.from_numpy(documents),
        position_ids=None if positions is None else torch.from_numpy(positions),
        token_type_ids=None if segments is None else torch.from_numpy(segments),
    )
