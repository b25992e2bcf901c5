"""Who may attend to whom. `Mask` is what the data decides, `Pattern` is what the architecture decides.

Both are symbolic; only a dense reference builds a ``queries x keys`` table. ``True`` means *takes part*, as in
`torch.nn.functional.scaled_dot_product_attention`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor


class Pattern(Protocol):
    """Which pairs of places an architecture lets see each other. Hashable, so that a mask builds its table once."""

    def allowed(self, query: Tensor, key: Tensor) -> Tensor | None:
        """Whether the query at one position may see the key at another; ``None`` when every query sees every key.

        Args:
            query: (queries, 1) int64 positions.
            key: (1, keys) int64 positions.

        Returns:
            (queries, keys) bool, or None.
        """

    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class Full:
    """Every token sees every token (Vaswani et al. 2017)."""

    def allowed(self, query: Tensor, key: Tensor) -> Tensor | None:
        return None


@dataclass(frozen=True)
class Window:
    """Every token sees the ``radius`` tokens on each side of it, and itself (Longformer, Beltagy et al. 2020).

    Longformer's *window size* is ``2 * radius``.
    """

    radius: int

    def allowed(self, query: Tensor, key: Tensor) -> Tensor | None:
        return (query - key).abs() <= self.radius


@dataclass(frozen=True, eq=False)
class Mask:
    """Which tokens of this batch take part.

    Args:
        keep: (batch, keys) bool, False at padding; None when nothing is padded.
        causal: no query sees a later key.
        start: the position of the first query; above zero when earlier keys come from a cache.
        documents: (batch, keys) int64; tokens see those of the same number only; None when a row is one document.
    """

    keep: Tensor | None = None
    causal: bool = False
    start: int = 0
    documents: Tensor | None = None
    _tables: dict[tuple[Pattern, int, int], Tensor | None] = field(default_factory=dict, repr=False)

    def dense(self, pattern: Pattern, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """(batch or 1, 1, queries or 1, keys) bool, or None when everything is allowed; built once for all layers."""
        place = (pattern, queries, keys)
        if place not in self._tables:
            self._tables[place] = self._build(pattern, queries, keys, device)
        return self._tables[place]

    def _build(self, pattern: Pattern, queries: int, keys: int, device: torch.device) -> Tensor | None:
        query = torch.arange(self.start, self.start + queries, device=device)[:, None]
        key = torch.arange(keys, device=device)[None, :]
        tables = []
        allowed = pattern.allowed(query, key)
        if allowed is not None:
            tables.append(allowed[None, None])
        if self.causal:
            tables.append((key <= query)[None, None])
        if self.documents is not None:
            asking = self.documents[:, self.start : self.start + queries]
            tables.append((asking[:, :, None] == self.documents[:, None, :])[:, None])
        if self.keep is not None:
            tables.append(self.keep[:, None, None, :])
        if not tables:
            return None
        table = tables[0]
        for other in tables[1:]:
            table = table & other
        return table
