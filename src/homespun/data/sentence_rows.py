"""Rows of one document each, in whole sentences: what sequence-to-sequence objectives make their sources of.

A decoder sees all that its encoder has read, so that documents packed into one row would run together there whatever
the encoder kept apart. A row is therefore of one document, and rows of short documents are short. Such rows are to be
brought together by length (`Loader`'s order ``bucketed``): then little of a batch is padding and no text is lost.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator

import numpy as np

from homespun.data.corpus import Corpus
from homespun.data.rows import SHORTEST_LENGTH, Row
from homespun.errors import UserError


class SentenceRows:
    """Each document in as few rows as its sentences allow, filled from its beginning; no token is lost.

    A row holds whole sentences, as many as fit. A sentence that is longer than a row is cut where the row ends, and
    what is left of it begins the next. Where the corpus was built without sentence ends, a document is cut into equal
    parts, and rows have no ``sentence_ends``.

    Args:
        corpus: where the tokens are.
        documents: (n,) document indices: a side of `Corpus.split`.
        length: tokens in a row at the most, with the special ones.
        begin_id: what stands before the text (BART), or None (T5, PEGASUS, ProphetNet).
        end_id: what stands after it.

    Raises:
        UserError: ``length`` is below 8, or there are no documents.
    """

    def __init__(
        self, corpus: Corpus, documents: np.ndarray, *, length: int, begin_id: int | None, end_id: int
    ) -> None:
        if length < SHORTEST_LENGTH:
            raise UserError(f"rows of {length} tokens are too short; the length must be {SHORTEST_LENGTH} or more")
        if not len(documents):
            raise UserError("there are no documents to make rows of; give more text, or a larger share of it")
        self._begin = np.array([] if begin_id is None else [begin_id], np.int64)
        self._end = np.array([end_id], np.int64)
        special = len(self._begin) + len(self._end)
        flat = array("I")
        for document in documents.tolist():
            for start, end, sentences in _pieces(corpus, document, length - special):
                flat.extend((document, start, end, sentences))
        self._corpus = corpus
        table = np.frombuffer(flat, np.uint32).reshape(-1, 4)
        self._spans = table[:, :3]  # (rows, 3): document, start, end
        self.sentences = table[:, 3]  # (rows,) how many are in each, a part of one included; 0 where nobody knows
        self.length = length
        self.lengths = (self._spans[:, 2] - self._spans[:, 1]).astype(np.int64) + special

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Row:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        document, start, end = self._spans[index].tolist()
        ids = np.concatenate([self._begin, self._corpus.tokens(document)[start:end], self._end], dtype=np.int64)
        if not self._corpus.has_sentences:
            return Row(ids)
        ends = self._corpus.sentence_ends(document)
        inside = ends[np.searchsorted(ends, start, side="right") : np.searchsorted(ends, end)]
        return Row(ids, sentence_ends=np.append(inside, end).astype(np.int64) - start + len(self._begin))


def _pieces(corpus: Corpus, document: int, body: int) -> Iterator[tuple[int, int, int]]:
    """(start, end, sentences) of each row of a document, of at most ``body`` tokens."""
    size = int(corpus.lengths[document])
    start = 0
    if not corpus.has_sentences:
        count = -(-size // body)
        for number in range(count):
            yield size * number // count, size * (number + 1) // count, 0
        return
    ends: list[int] = corpus.sentence_ends(document).tolist()
    done = 0  # sentences that end in the rows before
    while start < size:
        passed = bisect_right(ends, start + body)
        if passed > done:
            yield start, ends[passed - 1], passed - done
            start = ends[passed - 1]
        else:
            yield start, start + body, 1
            start += body
        done = passed
