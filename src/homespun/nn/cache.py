"""What a decoder need not compute again while it writes: keys and values of the tokens before, and of the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable

import torch
from torch import Tensor, nn


class Cache:
    """Keys and values by the attention that made them; each call of a decoder adds those of its new tokens.

    Attributes:
        length: tokens that are in it. The decoder counts them on, once all of its layers have run.
    """

    def __init__(self) -> None:
        self.length = 0
        self._past: dict[Hashable, tuple[Tensor, Tensor]] = {}
        self._source: dict[Hashable, tuple[Tensor, Tensor]] = {}
        self._uses: Counter[nn.Module] = Counter()

    def begin(self) -> None:
        """A call of the decoder begins: its layers come again from the first."""
        self._uses.clear()

    def extend(self, owner: nn.Module, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values of all tokens so far, given those of the new ones; (batch, heads, seq, head_dim)."""
        place = owner, self._uses[owner]  # layers that share their weights are one owner, with keys of each
        self._uses[owner] += 1
        if place in self._past:
            keys, values = self._past[place]
            key, value = torch.cat([keys, key], 2), torch.cat([values, value], 2)
        self._past[place] = key, value
        return key, value

    def once(self, owner: nn.Module, build: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """The keys and values of the source, made by the first call."""
        if owner not in self._source:
            self._source[owner] = build()
        return self._source[owner]

    def reorder(self, rows: Tensor) -> None:
        """Take these rows of the batch, in this order: (new batch,) int64. Beams die and split."""
        for entries in (self._past, self._source):
            for owner, (key, value) in entries.items():
                entries[owner] = key.index_select(0, rows), value.index_select(0, rows)
