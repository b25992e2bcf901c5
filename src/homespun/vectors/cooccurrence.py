"""Co-occurrence counts of words: streamed, in bounded memory, on all cores.

A pair of words is one integer. The pairs of each piece of text are sorted and summed into a run; runs are merged, and
written to disk when they exceed the memory. Finally all runs are merged, a range of pairs at a time, and each pair
is written in both orders to the block of its second word.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from homespun.io.cores import available_cores
from homespun.vectors.word_file import OnProgress, WordFile

PAIRS = 2_000_000  # pairs that a thread sorts at once
RUN = 8_000_000  # different pairs in memory
MERGED = 4_000_000  # pairs of all runs that are merged at once
CELLS = 6_000_000  # cells of a block
BLOCKS = 16  # minimum number

Keys = NDArray[np.int64]
Sums = NDArray[np.float32]


@dataclass(frozen=True)
class Block:
    """Columns of the co-occurrence matrix, in CSR format."""

    words: NDArray[np.int64]  # (columns,) int64, the words of the columns
    row_starts: NDArray[np.int32]  # (vocabulary + 1,) int32, the first cell of each row
    columns: NDArray[np.int32]  # (cells,) int32, indices of ``words``
    weights: Sums  # (cells,) float32, sums of 1 / distance


@dataclass(frozen=True)
class Cooccurrence:
    """Symmetric matrix (words, words), on disk in blocks of columns; block ``b`` has words b, b + blocks, ..."""

    folder: Path
    words: int
    cells: int  # non-zero
    blocks: int

    def block(self, number: int) -> Block:
        """Memory-map a block."""
        starts, columns, weights = (
            np.load(self.folder / f"{name}-{number}.npy", mmap_mode="r") for name in ("starts", "columns", "weights")
        )
        return Block(np.arange(number, self.words, self.blocks), starts, columns, weights)


def count_pairs(
    text: WordFile,
    folder: str | Path,
    *,
    window: int,
    workers: int | None = None,
    on_progress: OnProgress = lambda share: None,
) -> Cooccurrence:
    """Count co-occurrences within ``window`` words in a document, each as 1 / distance.

    Runs and matrix are written to an empty ``folder``: 12 bytes for each different pair of a run, and 16 for each cell
    of the matrix. ``workers`` are threads, by default one per core.
    """
    folder = Path(folder)
    count, ids = len(text.words), text.ids
    workers = workers or available_cores()
    step = max(PAIRS // window, 1)
    pieces = [(start, min(start + step, len(ids))) for start in range(0, len(ids), step)]
    counted = partial(_count_piece, ids, text.ends, count, window)
    runs = _Runs(folder)
    with ThreadPoolExecutor(workers) as pool:
        queue = iter(pieces)
        futures = [pool.submit(counted, piece) for piece in islice(queue, workers + 1)]
        done = 0
        while futures:  # in order, for reproducible sums
            keys, sums = futures.pop(0).result()
            futures += [pool.submit(counted, piece) for piece in islice(queue, 1)]
            runs.add(keys, sums)
            done += 1
            on_progress(0.7 * done / len(pieces))
    sorted_runs = runs.finish()
    total = 2 * sum(len(keys) for keys, _ in sorted_runs)
    blocks = min(max(BLOCKS, -(-total // CELLS)), count)
    _spread(sorted_runs, folder, count, blocks)
    runs.remove()
    num_cells = 0
    for number in range(blocks):
        num_cells += _write_block(folder, number, count, blocks)
        on_progress(0.85 + 0.15 * (number + 1) / blocks)
    return Cooccurrence(folder, count, num_cells, blocks)


def _count_piece(
    ids: NDArray[np.int32], ends: NDArray[np.int64], count: int, window: int, piece: tuple[int, int]
) -> tuple[Keys, Sums]:
    start, end = piece
    words = ids[start : end + window].astype(np.int64)
    document = np.searchsorted(ends, np.arange(start, start + len(words)), side="right")
    bits = int(window).bit_length()
    parts = []
    for distance in range(1, min(window, len(words) - 1) + 1):
        firsts = min(end - start, len(words) - distance)
        first, second = words[:firsts], words[distance : distance + firsts]
        same_document = document[:firsts] == document[distance : distance + firsts]
        # the lowest bits are the distance, so one sort orders pairs and distances
        key = ((np.minimum(first, second) * count + np.maximum(first, second)) << bits) | distance
        parts.append(key if same_document.all() else key[same_document])
    keys = np.concatenate(parts) if parts else np.empty(0, np.int64)
    keys.sort()
    weights = np.zeros(1 << bits, np.float32)
    weights[1 : window + 1] = 1 / np.arange(1, window + 1)
    return _summed(keys >> bits, weights[keys & ((1 << bits) - 1)])


def _summed(keys: Keys, values: Sums) -> tuple[Keys, Sums]:
    if not len(keys):
        return keys, values
    begins = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[begins], np.add.reduceat(values, begins, dtype=np.float64).astype(np.float32)


def _merge(runs: Sequence[tuple[Keys, Sums]]) -> tuple[Keys, Sums]:
    if len(runs) == 1:
        return runs[0]
    keys = np.concatenate([keys for keys, _ in runs])
    order = np.argsort(keys, kind="stable")  # a merge sort is fast on sorted parts
    return _summed(keys[order], np.concatenate([values for _, values in runs])[order])


class _Runs:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held: list[tuple[Keys, Sums]] = []
        self._written: list[Path] = []

    def add(self, keys: Keys, values: Sums) -> None:
        self._held.append((keys, values))
        # merge runs of similar length, so that each pair is merged few times
        while len(self._held) > 1 and 2 * len(self._held[-1][0]) > len(self._held[-2][0]):
            last = self._held.pop()
            self._held[-1] = _merge([self._held[-1], last])
        if sum(len(keys) for keys, _ in self._held) > RUN:
            self._write()

    def _write(self) -> None:
        keys, values = _merge(self._held)
        self._held = []
        path = self.folder / f"run-{len(self._written)}"
        np.save(path.with_suffix(".keys.npy"), keys)
        np.save(path.with_suffix(".values.npy"), values)
        self._written.append(path)

    def finish(self) -> list[tuple[Keys, Sums]]:
        """Return all runs; those on disk are memory-mapped."""
        if self._written and self._held:
            self._write()
        held = [_merge(self._held)] if self._held else []
        self._held = []
        return held + [
            (
                np.load(path.with_suffix(".keys.npy"), mmap_mode="r"),
                np.load(path.with_suffix(".values.npy"), mmap_mode="r"),
            )
            for path in self._written
        ]

    def remove(self) -> None:
        for path in self._written:
            path.with_suffix(".keys.npy").unlink()
            path.with_suffix(".values.npy").unlink()


def _ranges(runs: Sequence[tuple[Keys, Sums]]) -> Iterator[list[tuple[Keys, Sums]]]:
    """Split the runs into ranges of keys with about `MERGED` entries."""
    step = max(MERGED // (4 * len(runs)), 1)
    marks = np.sort(np.concatenate([keys[::step] for keys, _ in runs]))[4 * len(runs) :: 4 * len(runs)]
    before = [0] * len(runs)
    for mark in np.unique(marks):
        now = [int(np.searchsorted(keys, mark)) for keys, _ in runs]
        yield [(k[a:b], v[a:b]) for (k, v), a, b in zip(runs, before, now, strict=True)]
        before = now
    yield [(k[a:], v[a:]) for (k, v), a in zip(runs, before, strict=True)]


_CELL = np.dtype([("row", "<i4"), ("column", "<i4"), ("weight", "<f4")])


def _spread(runs: Sequence[tuple[Keys, Sums]], folder: Path, count: int, blocks: int) -> None:
    """Append each pair, in both orders, to the file of its second word's block."""
    streams = [(folder / f"cells-{number}").open("wb") for number in range(blocks)]
    try:
        for part in _ranges(runs):
            keys, sums = _merge(part)
            low, high = np.divmod(keys, count)
            twice = low == high  # a pair of one word has both orders in one cell
            sums = np.where(twice, 2 * sums, sums)
            other = ~twice
            rows = np.concatenate([low, high[other]])
            columns = np.concatenate([high, low[other]])
            cells = np.empty(len(rows), _CELL)
            cells["row"], cells["column"] = rows, columns // blocks
            cells["weight"] = np.concatenate([sums, sums[other]])
            of_block = columns % blocks
            order = np.argsort(of_block.astype(np.uint16 if blocks <= 1 << 16 else np.int64), kind="stable")
            limits = np.searchsorted(of_block[order], np.arange(blocks + 1))
            cells = cells[order]
            for number, stream in enumerate(streams):
                stream.write(cells[limits[number] : limits[number + 1]].tobytes())
    finally:
        for stream in streams:
            stream.close()


def _write_block(folder: Path, number: int, count: int, blocks: int) -> int:
    """Write a block in CSR format; return its number of cells."""
    from scipy.sparse import coo_matrix

    path = folder / f"cells-{number}"
    cells = np.fromfile(path, _CELL)
    width = len(range(number, count, blocks))
    rows = coo_matrix((cells["weight"], (cells["row"], cells["column"])), shape=(count, width)).tocsr()
    np.save(folder / f"starts-{number}.npy", rows.indptr.astype(np.int32))
    np.save(folder / f"columns-{number}.npy", rows.indices.astype(np.int32))
    np.save(folder / f"weights-{number}.npy", rows.data.astype(np.float32))
    path.unlink()
    return len(cells)
