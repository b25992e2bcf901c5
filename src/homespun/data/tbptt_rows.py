"""Rows for truncated backpropagation through time: a corpus as parallel streams, cut into pieces."""

from __future__ import annotations

import numpy as np

from homespun.data.corpus import Corpus
from homespun.data.rows import Row, check_corpus_rows, check_index
from homespun.errors import UserError


class TbpttRows:
    """A corpus laid end to end, cut into ``streams`` of equal length, each cut into pieces of ``length`` tokens.

    Row ``piece * streams + stream``: ``streams`` consecutive rows are the same piece of all streams, and the next as
    many continue them. Documents are ``[CLS] text [SEP]``, in the order given. A row has one token more than its
    length, which is only a label; ``documents`` numbers the documents in it. At the end of the corpus fewer than
    ``streams`` tokens are left out; the last pieces are shorter.

    Args:
        corpus: source of the tokens.
        documents: (n,) document indices: a side of `Corpus.split`.
        length: tokens in a piece.
        streams: number of streams.

    Raises:
        UserError: ``length`` is below 8, or there are fewer than two tokens for each stream.
    """

    def __init__(self, corpus: Corpus, documents: np.ndarray, *, length: int, streams: int) -> None:
        check_corpus_rows(length, documents)
        sizes = corpus.lengths[documents].astype(np.int64) + 2
        total = int(sizes.sum()) - 1  # the very last is only a label
        if total < 2 * streams:
            raise UserError(
                f"{total + 1:,} tokens are too few for {streams} streams; give more text, hold out a "
                f"larger share of it (data.validation), or lower train.batch_size and objective.streams"
            )
        self._corpus, self._documents = corpus, documents
        self._ends = np.cumsum(sizes)  # (documents,) where each ends in the corpus
        self._each = total // streams
        self._cls, self._sep = corpus.tokenizer.cls_id, corpus.tokenizer.sep_id
        self.length, self.streams = length, streams
        pieces = -(-self._each // length)
        last = self._each - (pieces - 1) * length
        self.lengths: np.ndarray = np.repeat(np.where(np.arange(pieces) < pieces - 1, length, last), streams)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Row:
        piece, stream = divmod(check_index(index, len(self)), self.streams)
        start = stream * self._each + piece * self.length
        end = start + int(self.lengths[index]) + 1
        ids, documents = [], []
        first = number = int(np.searchsorted(self._ends, start, side="right"))
        while start < end:
            begin = int(self._ends[number - 1]) if number else 0
            text = self._corpus.tokens(int(self._documents[number]))
            part = np.concatenate([[self._cls], text, [self._sep]])[start - begin : end - begin]
            ids.append(part)
            documents.append(np.full(len(part), number - first))
            start, number = int(self._ends[number]), number + 1
        return Row(
            np.concatenate(ids).astype(np.int64),
            documents=np.concatenate(documents).astype(np.int64),
            stream_position=(stream, piece),
        )
