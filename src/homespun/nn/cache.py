"""Key-value cache of a decoder during generation, for previous tokens and for the source.

Of a recurrent layer it is the state after the tokens before, which is all that the layer knows of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from homespun.errors import UserError

_ROOM = 32  # tokens that a new buffer has room for beside those that it begins with


class NoCacheError(UserError):
    """An attention cannot go on from the keys of earlier tokens: the text has to be read again for each new one."""


class Cache:
    """Keys and values by the attention that made them; each call of a decoder adds those of its new tokens.

    They lie in buffers that double when they are full, and are written in place: a cache is for writing, not for
    training, and no gradient goes back into the calls before.

    Attributes:
        length: tokens that are in it. The decoder counts them on, once all of its layers have run.
    """

    def __init__(self) -> None:
        self.length = 0
        self._past: dict[Hashable, _Buffer] = {}
        self._source: dict[Hashable, tuple[Tensor, Tensor]] = {}
        self._states: dict[Hashable, tuple[Tensor, ...]] = {}
        self._uses: Counter[nn.Module] = Counter()

    def start_call(self) -> None:
        """A call of the decoder begins: its layers come again from the first."""
        self._uses.clear()

    def extend(self, owner: nn.Module, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values of all tokens so far, given those of the new ones; (batch, heads, seq, head_dim)."""
        slot = owner, self._uses[owner]  # layers that share their weights are one owner, with keys of each
        self._uses[owner] += 1
        past = self._past.get(slot)
        start = 0 if past is None else past.length
        end = start + key.shape[2]
        if past is None or past.buffer.shape[3] < end:
            past = self._past[slot] = _Buffer(_grown(past, key, end), start)
        past.length = end
        with torch.no_grad():
            new = past.buffer[:, :, :, start:end]
            new[0].copy_(key)
            new[1].copy_(value)
        if not start:
            return key, value
        return past.buffer[0, :, :, :end], past.buffer[1, :, :, :end]

    def once(self, owner: nn.Module, build: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """The keys and values of the source, made by the first call."""
        if owner not in self._source:
            self._source[owner] = build()
        return self._source[owner]

    def state(self, owner: nn.Module) -> tuple[Tensor, ...] | None:
        """The state that a recurrent layer goes on from, each part (batch, size); None: the text begins."""
        return self._states.get(owner)

    def keep_state(self, owner: nn.Module, state: tuple[Tensor, ...]) -> None:
        """The state of a recurrent layer after the new tokens, in place of the one before them."""
        self._states[owner] = tuple(part.detach() for part in state)

    def branch(self, rows: Tensor) -> Cache:
        """A cache that goes on from these rows of this one, (new batch,) int64; this one stays as it is."""
        cache = Cache()
        cache.length = self.length
        for owner, past in self._past.items():
            cache._past[owner] = _Buffer(past.buffer.index_select(1, rows), past.length)
        for slot, (key, value) in self._source.items():
            cache._source[slot] = key.index_select(0, rows), value.index_select(0, rows)
        cache._states = self._select_states(rows)
        return cache

    def follow(self, rows: Tensor) -> None:
        """Take these rows of the tokens so far, in this order: (new batch,) int64. Beams die and split.

        What is of the source stays: the beams of a text, which stand beside each other, look at the same one. Of as
        many rows as there are, only those are copied that come from another place.
        """
        self._states = self._select_states(rows)
        for past in self._past.values():
            if len(rows) != past.buffer.shape[1]:
                past.buffer = past.buffer.index_select(1, rows)
                continue
            moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero().squeeze(1)
            if len(moved):
                written = past.buffer[:, :, :, : past.length]
                written[:, moved] = written.index_select(1, rows[moved])

    def _select_states(self, rows: Tensor) -> dict[Hashable, tuple[Tensor, ...]]:
        return {owner: tuple(part.index_select(0, rows) for part in state) for owner, state in self._states.items()}


@dataclass
class _Buffer:
    """A buffer, (2, batch, heads, room, head_dim) of keys and values, and how many tokens are in it."""

    buffer: Tensor
    length: int


def _grown(past: _Buffer | None, key: Tensor, end: int) -> Tensor:
    """A buffer with room for ``end`` tokens and more; what was written in the old one is in it."""
    batch, heads, _, head_dim = key.shape
    room = end + _ROOM if past is None else max(end, 2 * past.buffer.shape[3])
    grown = key.new_empty(2, batch, heads, room, head_dim)
    if past is not None:
        grown[:, :, :, : past.length] = past.buffer[:, :, :, : past.length]
    return grown
