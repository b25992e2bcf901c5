"""Documents of a side of a split, selected by hash: memory does not depend on their number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import DTypeLike, NDArray

from homespun.text.hashing import splitmix64

_CHUNK = 1 << 20  # documents hashed at a time
_READ = 64  # documents that are hashed at a time to read them one by one
_BITS = 16  # bits of a hash that choose one of the bins of `split_documents`
_LARGEST = (1 << 64) - 1


@dataclass(frozen=True)
class DocumentSet:
    """Documents of a corpus whose hash of key and index lies in a range; by default all documents.

    ``numpy.asarray`` gives their ascending indices.
    """

    total: int  # number of documents of the corpus
    size: int  # number of documents in the set
    key: int = 0  # key of the hash
    lowest: int = 0  # lowest hash of the set
    highest: int = _LARGEST  # highest hash of the set

    @classmethod
    def all(cls, total: int) -> DocumentSet:
        return cls(total, total)

    def __len__(self) -> int:
        return self.size

    def between(self, first: int, stop: int) -> NDArray[np.int64]:
        """Return the (n,) ascending indices of documents of the set from ``first`` to ``stop`` - 1."""
        inside = self._inside[first:stop] if self.total <= _CHUNK * 16 else self._contains(first, stop)
        return first + inside.nonzero()[0]

    @cached_property
    def _inside(self) -> NDArray[np.bool_]:
        """(total,) mask of the documents of the set; halves the time to read a row."""
        return self._contains(0, self.total)

    def _contains(self, first: int, stop: int) -> NDArray[np.bool_]:
        hashes = _hashes(first, min(stop, self.total), self.key)
        return (hashes >= np.uint64(self.lowest)) & (hashes <= np.uint64(self.highest))

    def indices(self, first: int = 0) -> Iterator[int]:
        """Yield the ascending indices of the documents from ``first`` on."""
        for begin in range(first, self.total, _READ):
            yield from self.between(begin, begin + _READ).tolist()

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[np.int64]:
        return self.between(0, self.total).astype(dtype or np.int64, copy=False)


Documents = DocumentSet | NDArray[np.int64]
"""Documents, or their indices."""


def split_documents(total: int, held_out: int, key: int) -> tuple[DocumentSet, DocumentSet]:
    """Hold out the ``held_out`` of ``total`` documents with the lowest hashes, at least one on each side."""
    bins = np.zeros(1 << _BITS, np.int64)
    chunks = [(first, min(first + _CHUNK, total)) for first in range(0, total, _CHUNK)]
    for first, stop in chunks:
        bins += np.bincount(_bins(_hashes(first, stop, key)), minlength=len(bins))
    ends = np.cumsum(bins)
    last = int(np.searchsorted(ends, held_out))  # bin of the highest hash of a held-out document
    inside = [hashes[_bins(hashes) == last] for hashes in (_hashes(*chunk, key) for chunk in chunks)]
    place = held_out - 1 - int(ends[last] - bins[last])
    highest = int(np.sort(np.concatenate(inside))[place])
    return (
        DocumentSet(total, total - held_out, key, lowest=highest + 1),
        DocumentSet(total, held_out, key, highest=highest),
    )


def _hashes(first: int, stop: int, key: int) -> NDArray[np.uint64]:
    """Compute distinct hashes of documents."""
    return splitmix64(np.arange(first, stop, dtype=np.uint64) ^ np.uint64(key))


def _bins(hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    return (hashes >> np.uint64(64 - _BITS)).astype(np.int64)
