"""Rows of complete sentences of one document, for sequence-to-sequence objectives.

A decoder attends to all that its encoder has read, so a row has one document, and rows of short documents are short.
Batch them by length (`Loader`'s order ``bucketed``).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator

import numpy as np

from homespun.data.corpus import Corpus
from homespun.data.rows import Row, check_corpus_rows, check_index


class SentenceRows:
    """Each document in as few rows as its sentences allow; no token is lost.

    A row holds as many complete sentences as fit; a sentence longer than a row is cut and continues in the next. In a
    corpus without sentence ends, documents are cut into equal parts, and rows have no ``sentence_ends``.

    Args:
        corpus: source of the tokens.
        documents: (n,) document indices: a side of `Corpus.split`.
        length: maximum tokens of a row, special tokens included.
        begin_id: token before the text (BART), or None (T5, PEGASUS, ProphetNet).
        end_id: token after the text.

    Raises:
        UserError: ``length`` is below 8, or there are no documents.
    """

    def __init__(
        self, corpus: Corpus, documents: np.ndarray, *, length: int, begin_id: int | None, end_id: int
    ) -> None:
        check_corpus_rows(length, documents)
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
        self.sentences = table[:, 3]  # (rows,) number in each, a part counts; 0: not known
        self.length = length
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
