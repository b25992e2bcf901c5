"""Document lengths in tokens: statistics and histograms by split and class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from homespun.config import Tree
from homespun.errors import UserError

LIMITS = (128, 256, 512)
BINS = 30


def length_statistics(
    lengths: np.ndarray,
    *,
    splits: Mapping[str, np.ndarray] | None = None,
    classes: Sequence[str | None] | None = None,
) -> list[Tree]:
    """Compute statistics of document lengths, by split and by class.

    Args:
        lengths: (documents,) tokens of each, from `Corpus.lengths` or of labelled rows.
        splits: document indices of each split; by default one split, ``all``.
        classes: class of each document, or None.

    Returns:
        Rows of plain values: ``split``, ``class`` (None: the split), ``count``, ``mean``, ``median``, ``minimum``,
            ``maximum``, ``tokens`` (the sum), ``above`` {limit of `LIMITS`: share of longer documents}, ``histogram``
            {``edges``, ``counts``}. All rows have the same edges, spaced evenly in the logarithm. The row of a split is
            followed by those of its classes, sorted by name.

    Raises:
        UserError: there are no documents.
    """
    lengths = np.asarray(lengths)
    if not len(lengths):
        raise UserError("there are no documents; give inputs with text")
    splits = {"all": np.arange(len(lengths))} if splits is None else splits
    names = np.array(classes or [], dtype=object)
    edges = _edges(lengths)
    rows = []
    for split, indices in splits.items():
        groups: dict[str | None, np.ndarray] = {None: indices}
        if classes is not None:
            groups |= {name: indices[names[indices] == name] for name in sorted(set(names[indices]) - {None})}
        rows += [
            {"split": split, "class": name, **_row(lengths[members], edges)}
            for name, members in groups.items()
            if len(members)
        ]
    return rows


def _row(lengths: np.ndarray, edges: np.ndarray) -> Tree:
    return {
        "count": len(lengths),
        "mean": float(lengths.mean()),
        "median": float(np.median(lengths)),
        "minimum": int(lengths.min()),
        "maximum": int(lengths.max()),
        "tokens": int(lengths.sum()),
        "above": {limit: float((lengths > limit).mean()) for limit in LIMITS},
        "histogram": {"edges": edges.tolist(), "counts": np.histogram(lengths, edges)[0].tolist()},
    }


def _edges(lengths: np.ndarray) -> np.ndarray:
    """Compute (bins + 1,) int64 ascending edges, from the shortest length to above the longest."""
    shortest, longest = int(lengths.min()), int(lengths.max())
    edges = np.geomspace(max(shortest, 1), longest + 1, BINS + 1).round().astype(np.int64)
    edges[0], edges[-1] = shortest, longest + 1
    return np.unique(edges)  # edges of a narrow range round to equal ones
