"""Rows of a stream of documents, computed from the manifest: memory and opening do not depend on the corpus size."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from homespun.data.corpus import Corpus, random_keys
from homespun.data.rows import Row, check_corpus_rows, check_index
from homespun.errors import UserError
from homespun.text.hashing import splitmix64


class StreamRows:
    """Rows of exactly ``length`` tokens from the stream ``[CLS] document [SEP] [CLS] document [SEP] ...`` of a shard.

    A row begins at the end of the previous row, possibly inside a document, and then has no [CLS] there. The last row
    of a shard is filled with tokens of the previous row. Shards shorter than a row are left out.
    `homespun.data.packed_rows.PackedRows` reads the lengths of all documents first; here a row is found by arithmetic
    on the manifest and a binary search in its shard. ``shards`` (n,) are a side of `split_shards`.

    Raises:
        UserError: ``length`` is below 8, or no shard has a row.
    """

    def __init__(self, corpus: Corpus, shards: np.ndarray, *, length: int) -> None:
        check_corpus_rows(length, shards)
        sizes = corpus.records.tokens[shards] + 2 * corpus.records.documents[shards]
        self._shards, self._sizes = shards[sizes >= length], sizes[sizes >= length]
        if not len(self._shards):
            raise UserError(f"no shard of {corpus.path} fills a row of data.max_length={length}; give more text")
        self._ends = np.cumsum(-(-self._sizes // length))  # (shards,) rows up to the end of each
        self._corpus, self.length = corpus, length
        self.lengths = np.broadcast_to(np.int64(length), int(self._ends[-1]))  # a broadcast takes no memory
        self._cls, self._sep = corpus.tokenizer.cls_id, corpus.tokenizer.sep_id

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Row:
        place = int(np.searchsorted(self._ends, check_index(index, len(self)), side="right"))
        first = int(self._ends[place - 1]) if place else 0
        begin = min((index - first) * self.length, int(self._sizes[place]) - self.length)
        shard = self._corpus.shards[int(self._shards[place])]
        offsets, end = shard.offsets, begin + self.length

        def starts(document: int) -> int:
            return int(offsets[document]) + 2 * document  # counts [CLS] and [SEP] of all previous documents

        document = bisect_right(range(len(offsets) - 1), begin, key=starts) - 1
        ids, numbers = np.empty(self.length, np.int64), np.empty(self.length, np.int64)
        at, number = begin, 0
        while at < end:
            start, stop = starts(document), starts(document + 1)  # position of [CLS], and the position after [SEP]
            if at == start:
                ids[at - begin] = self._cls
            first, last = max(at, start + 1), min(end, stop - 1)
            ids[first - begin : last - begin] = shard.tokens(document)[first - start - 1 : last - start - 1]
            if stop <= end:
                ids[stop - 1 - begin] = self._sep
            numbers[at - begin : min(end, stop) - begin] = number
            at, document, number = stop, document + 1, number + 1
        return Row(ids, documents=numbers if number > 1 else None)


def split_shards(corpus: Corpus, validation: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split shards into training and validation by a hash of seed and number, at least one each.

    Returns:
        (n,) int64 ascending shard numbers of each side.

    Raises:
        UserError: the corpus has one shard.
    """
    count = len(corpus.records)
    if count < 2:
        raise UserError(
            f"data.packing=stream holds out complete shards, and corpus {corpus.path} has one; set "
            f"data.packing=documents"
        )
    held = min(max(round(validation * count), 1), count - 1)
    order = np.argsort(splitmix64(np.arange(count, dtype=np.uint64) ^ random_keys(seed)[0]), kind="stable")
    return np.sort(order[held:]), np.sort(order[:held])
