"""Near-duplicates between training and test texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from homespun.text.clean import NearDuplicates, similarity

THRESHOLD = 0.8
_SAME = 1.0
_CHUNK = 4096  # training texts compared at a time, so that memory grows with the test alone


@dataclass(frozen=True)
class NearDuplicatePairs:
    """Test texts that are near-duplicates of training texts."""

    rows: tuple[int, ...]  # of the test, ascending
    of: tuple[int, ...]  # the most similar training text of each
    similarity: tuple[float, ...]  # Jaccard similarity of five-word shingles
    compared: int  # test texts that are not empty

    @property
    def same(self) -> int:
        """Number of test texts with the same words, up to case and punctuation."""
        return sum(value >= _SAME for value in self.similarity)


def find_near_duplicates(
    training: Sequence[str], test: Sequence[str], *, threshold: float = THRESHOLD
) -> NearDuplicatePairs:
    """Test texts with a Jaccard similarity of at least ``threshold`` to a training text, without empty ones.

    `NearDuplicates` finds candidates, but misses a few near the threshold; each is then compared in full. Memory is
    about 140 bytes a test text.

    Raises:
        UserError: ``threshold`` not between 0 and 1.
    """
    near = NearDuplicates(threshold, capacity=1)
    rows = [row for row, text in enumerate(test) if text.strip()]
    if not rows:
        return NearDuplicatePairs((), (), (), 0)
    keys = np.stack([near.keys(test[row]) for row in rows])  # (rows, bands)
    order = np.argsort(keys, axis=0)
    ordered = np.take_along_axis(keys, order, axis=0)
    best: dict[int, tuple[float, int]] = {}
    for start in range(0, len(training), _CHUNK):
        part = [index for index in range(start, min(start + _CHUNK, len(training))) if training[index].strip()]
        if not part:
            continue
        wanted = np.stack([near.keys(training[index]) for index in part])
        for place, row in _candidates(ordered, order, wanted):
            if row in best and best[row][0] >= _SAME:
                continue
            score = similarity(training[part[place]], test[rows[row]])
            if score >= threshold and score > best.get(row, (0.0, 0))[0]:
                best[row] = (score, part[place])
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
    wanted: np.ndarray[tuple[int, int], np.dtype[np.uint64]],
) -> list[tuple[int, int]]:
    """(training index in the chunk, test row) that agree in a band, each once, sorted.

    Args:
        ordered: (rows, bands) keys of the test, each band sorted; ``order`` has their rows.
        wanted: (texts, bands) keys of the training.
    """
    pairs: set[tuple[int, int]] = set()
    for band in range(ordered.shape[1]):
        column, asked = ordered[:, band], wanted[:, band]
        first, last = np.searchsorted(column, asked, "left"), np.searchsorted(column, asked, "right")
        for place in np.flatnonzero(last > first).tolist():
            pairs.update((place, int(row)) for row in order[first[place] : last[place], band])
    return sorted(pairs)
