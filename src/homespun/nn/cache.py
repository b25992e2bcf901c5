"""Key-value cache of a decoder for previous tokens and the source, and the states of recurrent layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from homespun.errors import UserError

_ROOM = 32  # free tokens in a new buffer


class NoCacheError(UserError):
    """Attention that does not support a cache, so that each new token needs a pass over the full text."""


class Cache:
    """Keys and values of each attention module; each call of a decoder adds those of its new tokens.

    Buffers double in size when full and are written in place. No gradient flows into earlier calls.

    Attributes:
        length: number of cached tokens, increased by the decoder after its last layer.
    """

    def __init__(self) -> None:
        self.length = 0
        self._past: dict[Hashable, _Buffer] = {}
        self._source: dict[Hashable, tuple[Tensor, Tensor]] = {}
        self._states: dict[Hashable, tuple[Tensor, ...]] = {}
        self._uses: Counter[nn.Module] = Counter()

    def start_call(self) -> None:
        """Start a call of the decoder at its first layer."""
        self._uses.clear()

    def extend(self, owner: nn.Module, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add keys and values of new tokens, (batch, heads, seq, head_dim), and return those of all tokens."""
        slot = owner, self._uses[owner]  # layers with shared weights are one owner with several slots
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
        """Keys and values of the source, built by the first call."""
        if owner not in self._source:
            self._source[owner] = build()
        return self._source[owner]

    def state(self, owner: nn.Module) -> tuple[Tensor, ...] | None:
        """State of a recurrent layer after previous tokens, each part (batch, size); None: there are none."""
        return self._states.get(owner)

    def keep_state(self, owner: nn.Module, state: tuple[Tensor, ...]) -> None:
        """Replace the state of a recurrent layer, detached."""
        self._states[owner] = tuple(part.detach() for part in state)

    def branch(self, rows: Tensor) -> Cache:
        """Copy of the cache with these rows, (new batch,) int64."""
        cache = Cache()
        cache.length = self.length
        for owner, past in self._past.items():
            cache._past[owner] = _Buffer(past.buffer.index_select(1, rows), past.length)
        for slot, (key, value) in self._source.items():
            cache._source[slot] = key.index_select(0, rows), value.index_select(0, rows)
        cache._states = self._select_states(rows)
        return cache

    def follow(self, rows: Tensor) -> None:
        """Select rows in place, (new batch,) int64, as beams end and split.

        Keys and values of the source stay, since adjacent beams of a text share them. If the number of rows does not
        change, only rows that moved are copied.
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
    buffer: Tensor  # (2, batch, heads, room, head_dim): keys and values
    length: int  # tokens


def _grown(past: _Buffer | None, key: Tensor, end: int) -> Tensor:
    """New buffer for at least ``end`` tokens with the content of the old one."""
    batch, heads, _, head_dim = key.shape
    room = end + _ROOM if past is None else max(end, 2 * past.buffer.shape[3])
    grown = key.new_empty(2, batch, heads, room, head_dim)
    if past is not None:
        grown[:, :, :, : past.length] = past.buffer[:, :, :, : past.length]
    return grown
