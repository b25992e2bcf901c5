"""Duplicates among texts: equal texts, and near-duplicates by MinHash."""

from __future__ import annotations

import hashlib
import string
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from homespun.errors import UserError
from homespun.text.clean import normalise, space_characters
from homespun.text.hashing import splitmix64


class ExactDuplicates:
    """Filter of texts that are equal after `normalise`.

    Stores a digest of 8 bytes of each text in an open hash table: 12 to 24 bytes a text, where a set takes 100. Among a
    billion texts, the expected number that is rejected by mistake is below 0.1.
    """

    def __init__(self) -> None:
        self._table, self._count = _slots(1 << 12), 0

    @staticmethod
    def digest(text: str) -> bytes:
        """Compute a digest of 8 bytes of the normalised text."""
        return hashlib.blake2b(normalise(text).encode("utf-8", "surrogatepass"), digest_size=8).digest()

    def is_new(self, text: str) -> bool:
        key = int.from_bytes(self.digest(text), "little") or 1  # 0 marks a free slot
        slot = _find(self._table, key)
        if self._table[slot]:
            return False
        self._table[slot] = key
        self._count += 1
        if 3 * self._count > 2 * len(self._table):
            larger = _slots(2 * len(self._table))
            for known in filter(None, self._table):
                larger[_find(larger, known)] = known
            self._table = larger
        return True


def _slots(count: int) -> array[int]:
    return array("Q", bytes(8 * count))


def _find(table: array[int], key: int) -> int:
    """Slot of ``key``, or the free slot for it (linear probing)."""
    mask = len(table) - 1
    slot = key & mask
    while table[slot] not in (0, key):
        slot = (slot + 1) & mask
    return slot


THRESHOLD = 0.8
"""Jaccard similarity from which texts are near-duplicates."""


class NearDuplicates:
    """Near-duplicate filter: MinHash (Broder 1997) over shingles of five words, ignoring case and punctuation.

    Texts are near-duplicates if the Jaccard similarity of their shingles is at least ``threshold``; in scripts without
    spaces a shingle is five characters. With 240 hashes in bands, about half of the pairs at the threshold are found,
    nearly all pairs 0.1 above it and hardly any 0.2 below it. Deterministic in the order of the texts; rejected
    texts are not stored.

    Memory is constant: 4 bytes for each band and slot, with 17 bands at 0.8, at most 143 MB for a ``capacity`` of a
    million documents. A key has a choice of four slots; beyond the capacity new texts overwrite earlier ones.

    Raises:
        UserError: ``threshold`` is not between 0 and 1.
    """

    def __init__(self, threshold: float = THRESHOLD, *, capacity: int = 1_000_000) -> None:
        if not 0.0 < threshold < 1.0:
            raise UserError(f"threshold={threshold} must be between 0 and 1, exclusive; set it to 0.8")
        self._bands, self._rows = _banding(threshold)
        generator = np.random.Generator(np.random.PCG64(0x5EED))
        count = self._bands * self._rows
        # multiply-shift hashing with odd multipliers (Dietzfelbinger 1997), one column for each hash function
        self._multipliers = generator.integers(1 << 63, dtype=np.uint64, size=(count, 1)) | np.uint64(1)
        self._offsets = generator.integers(1 << 63, dtype=np.uint64, size=(count, 1))
        self._mixers = generator.integers(1 << 63, dtype=np.uint64, size=self._rows) | np.uint64(1)
        self._sets = np.uint64(max(1, (1 << (2 * capacity - 1).bit_length()) // _WAYS))
        self._tags = np.zeros((self._bands, int(self._sets), _WAYS), dtype=np.uint32)  # 0: empty
        self._band_numbers = np.arange(self._bands)
        self._buffer = np.empty((count, _BLOCK), dtype=np.uint64)  # reused, without page faults

    def are_new(self, texts: Sequence[str]) -> list[bool]:
        """Return for each text whether it is new, and store the new ones; a text may repeat an earlier one."""
        keys = self.keys(texts)
        sets = (keys % self._sets).astype(np.int64)
        tags = (keys >> np.uint64(32)).astype(np.uint32) | np.uint32(1)
        return [self._is_new(*pair) for pair in zip(sets, tags, strict=True)]

    def _is_new(self, sets: NDArray[np.int64], tags: NDArray[np.uint32]) -> bool:
        stored = self._tags[self._band_numbers, sets]  # (bands, slots)
        if (stored == tags[:, None]).any():
            return False
        empty = stored == 0
        slots = np.where(empty.any(1), empty.argmax(1), (tags >> np.uint32(1)) % _WAYS)
        self._tags[self._band_numbers, sets, slots] = tags
        return True

    def keys(self, texts: Sequence[str]) -> NDArray[np.uint64]:
        """Compute (texts, bands) uint64 keys; texts that share a key are candidates. Stores nothing."""
        parts = [self._keys(texts[start : start + _TEXTS]) for start in range(0, len(texts), _TEXTS)]
        return np.concatenate([np.empty((0, self._bands), dtype=np.uint64), *parts])

    def _keys(self, texts: Sequence[str]) -> NDArray[np.uint64]:
        shingles, counts = _shingles(texts)
        ends = np.cumsum(counts)
        starts = ends - counts
        minima = np.full((len(self._multipliers), len(texts)), np.iinfo(np.uint64).max, dtype=np.uint64)
        for start in range(0, len(shingles), _BLOCK):
            block = shingles[start : start + _BLOCK]
            hashes = np.multiply(block, self._multipliers, out=self._buffer[:, : len(block)])
            hashes += self._offsets
            first, last = np.searchsorted(ends, start, "right"), np.searchsorted(starts, start + _BLOCK)
            found = np.minimum.reduceat(hashes, np.maximum(starts[first:last] - start, 0), axis=1)
            np.minimum(minima[:, first:last], found, out=minima[:, first:last])
        minima ^= minima >> np.uint64(32)
        bands = minima.reshape(self._bands, self._rows, -1) * self._mixers[:, None]
        return splitmix64(bands.sum(axis=1, dtype=np.uint64)).T


def similarity(text: str, other: str) -> float:
    """Compute the Jaccard similarity that `NearDuplicates` estimates."""
    first, second = (np.unique(_shingles([one])[0]) for one in (text, other))
    shared = len(np.intersect1d(first, second, assume_unique=True))
    return shared / (len(first) + len(second) - shared)


_WAYS = 4  # slots of a key
_TEXTS = 64  # texts hashed at a time: their minima stay in the cache
_BLOCK = 512  # shingles hashed at a time: (hashes, block) stays in the cache
_SHINGLE_WORDS = 5
_HASHES = 240
_POWERS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 1], dtype=np.uint64)


def _banding(threshold: float) -> tuple[int, int]:
    """Choose (bands, rows) with at most `_HASHES` hashes that detect a pair at ``threshold`` with probability 1/2."""

    def detected(rows: int) -> float:
        return float((1.0 - 0.5 ** (1.0 / (_HASHES // rows))) ** (1.0 / rows))

    rows = min(range(1, 61), key=lambda r: abs(detected(r) - threshold))
    return _HASHES // rows, rows


def _shingles(texts: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Hash each five consecutive words of each text; a shorter text is padded to one shingle.

    In scripts without spaces each character is a word.

    Returns:
        (shingles,) hashes, those of the first text first, and the (texts,) number of shingles of each text.
    """
    words: list[bytes] = []
    ends = []
    for text in texts:
        spaced = space_characters(text.lower()).encode("utf-8", "surrogatepass")
        own = spaced.translate(None, string.punctuation.encode()).split()
        words += own + [b""] * (_SHINGLE_WORDS - len(own))
        ends.append(len(words))
    hashes = np.fromiter(map(zlib.crc32, words), dtype=np.uint64, count=len(words))
    windows = len(hashes) - _SHINGLE_WORDS + 1
    total = hashes[:windows] * _POWERS[0]
    for i in range(1, _SHINGLE_WORDS):
        total = splitmix64(total) + hashes[i : i + windows] * _POWERS[i]
    inside = np.ones(windows, dtype=bool)  # False for windows over the end of a text
    inside[np.array(ends[:-1], dtype=np.int64)[:, None] - np.arange(1, _SHINGLE_WORDS)] = False
    return splitmix64(total)[inside], np.diff(ends, prepend=0) - _SHINGLE_WORDS + 1


_SAME = 1.0
_TRAINING_CHUNK = 4096  # training texts compared at a time; memory grows with the test texts only


@dataclass(frozen=True)
class NearDuplicatePairs:
    """Test texts that are near-duplicates of training texts, in ascending order."""

    rows: tuple[int, ...]  # numbers of these test texts
    of: tuple[int, ...]  # number of the most similar training text of each
    similarity: tuple[float, ...]  # Jaccard similarity of both
    compared: int  # number of test texts that are not blank

    @property
    def same(self) -> int:
        """Number of test texts whose words equal those of a training text, ignoring case and punctuation."""
        return sum(value >= _SAME for value in self.similarity)


def find_near_duplicates(training: Sequence[str], test: Sequence[str]) -> NearDuplicatePairs:
    """Find test texts whose Jaccard similarity to a training text is at least `THRESHOLD`. Blank texts are skipped.

    Candidates come from `NearDuplicates`, which misses a few near the threshold; each is then compared exactly. Memory
    is about 140 bytes a test text.
    """
    near = NearDuplicates(THRESHOLD, capacity=1)
    rows = [row for row, text in enumerate(test) if text.strip()]
    if not rows:
        return NearDuplicatePairs((), (), (), 0)
    keys = near.keys([test[row] for row in rows])  # (rows, bands)
    order = np.argsort(keys, axis=0)
    ordered = np.take_along_axis(keys, order, axis=0)
    best: dict[int, tuple[float, int]] = {}
    for start in range(0, len(training), _TRAINING_CHUNK):
        part = [index for index in range(start, min(start + _TRAINING_CHUNK, len(training))) if training[index].strip()]
        if not part:
            continue
        for index, row in _candidates(ordered, order, near.keys([training[index] for index in part])):
            if row in best and best[row][0] >= _SAME:
                continue
            score = similarity(training[part[index]], test[rows[row]])
            if score >= THRESHOLD and score > best.get(row, (0.0, 0))[0]:
                best[row] = (score, part[index])
    found = sorted(best)
    return NearDuplicatePairs(
        tuple(rows[row] for row in found),
        tuple(best[row][1] for row in found),
        tuple(best[row][0] for row in found),
        len(rows),
    )


def _candidates(
    ordered: np.ndarray[tuple[int, int], np.dtype[np.uint64]],
    order: np.ndarray[tuple[int, int], np.dtype[np.int64]],
    keys: np.ndarray[tuple[int, int], np.dtype[np.uint64]],
) -> list[tuple[int, int]]:
    """Find (training index, test row) pairs with equal keys in a band, each once, sorted.

    Args:
        ordered: (rows, bands) keys of the test texts, each band sorted; ``order`` are their rows.
        keys: (texts, bands) keys of the training texts.
    """
    pairs: set[tuple[int, int]] = set()
    for band in range(ordered.shape[1]):
        first, last = (np.searchsorted(ordered[:, band], keys[:, band], side) for side in ("left", "right"))
        for index in np.flatnonzero(last > first).tolist():
            pairs.update((index, int(row)) for row in order[first[index] : last[index], band])
    return sorted(pairs)
