"""Rows of packed documents, computed by packing a few documents on access: memory does not grow with the corpus."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from homespun.data.corpus import Corpus
from homespun.data.document_set import DocumentSet
from homespun.data.rows import Row, check_corpus_rows, check_index

SHORTEST_PIECE = 16  # minimum tokens of a piece at the end of a packed row, with [CLS] and [SEP]
MEASURED = 1 << 20
"""Rows whose lengths are known."""

_BLOCKS = 1 << 22  # maximum number of blocks; up to 4 million documents each block is one document
_CHUNK = 1 << 16  # documents that are packed at a time


class PackedRows:
    """Rows of ``length`` tokens: ``[CLS] piece [SEP] [CLS] piece [SEP] ...``; ``documents`` numbers the pieces.

    Documents follow each other without loss: a document that does not fit continues in the next row. A row ends early
    if its room is under `SHORTEST_PIECE` or an eighth of ``length``. `Row.cut` marks rows whose first [CLS] or last
    [SEP] is inside a document.

    For each block of documents, 12 bytes are stored: the number of rows that begin before it, and the room in the last
    of them. A row is found by packing its block again. With `lengths` and the documents of the split, memory stays
    below 80 MB.

    Attributes:
        lengths: (rows,) tokens in each of the first `MEASURED` rows.
        num_tokens: tokens in all rows, special tokens included.

    Raises:
        UserError: ``length`` is below 8, or there are no documents.
    """

    def __init__(self, corpus: Corpus, documents: DocumentSet, *, length: int) -> None:
        check_corpus_rows(length, documents)
        self._corpus, self._documents, self.length = corpus, documents, length
        self._shortest = max(min(SHORTEST_PIECE, length // 8), 3)
        self._cls, self._sep = corpus.tokenizer.cls_id, corpus.tokenizer.sep_id
        self._block = -(-documents.total // _BLOCKS)
        rows, rooms = array("q"), array("i")  # (blocks,) before each
        lengths = np.full(MEASURED, length)
        count = room = padding = 0
        chunk = max(_CHUNK // self._block, 1) * self._block
        for begin in range(0, documents.total, chunk):
            stop = min(begin + chunk, documents.total)
            members = documents.between(begin, stop)
            sizes = corpus.sizes(begin, stop)[members - begin]
            before = self._pack(sizes, room)  # room before each document, and after the last one
            new = before[:-1] < self._shortest
            firsts = np.minimum(sizes, np.where(new, length, before[:-1]) - 2)
            ends = count + np.cumsum(np.append(0, new - (firsts - sizes) // (length - 2)))  # rows before each document
            blocks = np.searchsorted(members, np.arange(begin, stop, self._block))
            rows.frombytes(ends[blocks].astype(np.int64).tobytes())
            rooms.frombytes(before[blocks].astype(np.int32).tobytes())
            unused = np.where(new, before[:-1], 0)  # in the row before
            padding += int(unused.sum())
            short = np.flatnonzero(unused * (ends[:-1] <= MEASURED))
            lengths[ends[short] - 1] -= unused[short]
            count, room = int(ends[-1]), int(before[-1])
        if count <= MEASURED:
            lengths[count - 1] -= room
        self._rows, self._rooms = np.frombuffer(rows, np.int64), np.frombuffer(rooms, np.int32)
        self._count, self.num_tokens = count, count * length - padding - room
        self.lengths: NDArray[np.int64] = lengths[:count].copy()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Row:
        first, start = self._find(check_index(index, len(self)))
        ids, numbers = np.empty(self.length, np.int64), np.empty(self.length, np.int64)
        cut_begin, cut_end = start > 0, False
        at, number, room = 0, 0, self.length
        for document in self._documents.indices(first):
            text = self._corpus.tokens(document)
            piece = text[start : start + room - 2]
            end = at + len(piece) + 2
            ids[at], ids[at + 1 : end - 1], ids[end - 1] = self._cls, piece, self._sep
            numbers[at:end] = number
            cut_end = start + len(piece) < len(text)
            at, number, room, start = end, number + 1, self.length - end, 0
            if room < self._shortest:
                break
        return Row(ids[:at], documents=numbers[:at] if number > 1 else None, cut=(cut_begin, cut_end))

    def _find(self, index: int) -> tuple[int, int]:
        """Return the document and the token at which a row begins."""
        block = int(self._rows.searchsorted(index, side="right")) - 1
        begin, rows, room = block * self._block, int(self._rows[block]), int(self._rooms[block])
        sizes = self._corpus.sizes(begin, min(begin + self._block, self._documents.total))
        members = self._documents.between(begin, begin + len(sizes))
        sizes = sizes[members - begin]
        before = self._pack(sizes, room)[:-1].tolist()
        for document, size, left in zip(members.tolist(), sizes.tolist(), before, strict=True):
            new = left < self._shortest
            first = min(size, (self.length if new else left) - 2)
            end = rows + new - (first - size) // (self.length - 2)
            if index < end:
                full = index - rows - new  # rows between the first one of the document and this
                return document, first + full * (self.length - 2) if full >= 0 else 0
            rows = end
        raise IndexError(f"row {index} is not in its block")

    def _pack(self, sizes: NDArray[np.int64], room: int) -> NDArray[np.int64]:
        """Return (n + 1,) room in the last row before each document, and after the last one."""
        rooms = array("q", (room,))
        length, shortest, body = self.length, self._shortest, self.length - 2
        for size in sizes.tolist():
            if room < shortest:
                room = length
            if size <= room - 2:
                room -= size + 2
            else:
                tail = (size - room + 2) % body
                room = body - tail if tail else 0
            rooms.append(room)
        return np.frombuffer(rooms, np.int64)
