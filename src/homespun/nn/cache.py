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
    """Error of attention that does not support a cache, so that each new token needs a pass over the full text."""


class Cache:
    """Keys and values of each attention module; each call of a decoder appends those of its new tokens.

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
        """Append keys and values of new tokens, (batch, heads, seq, head_dim), and return those of all tokens."""
        slot = owner, self._uses[owner]  # layers with shared weights are one owner with several slots
        self._uses[owner] += 1
        past = self._past.get(slot)
        if past is None:
            batch, heads, seq, head_dim = key.shape
            past = self._past[slot] = _Buffer(key.new_empty(2, batch, heads, seq + _ROOM, head_dim), batch)
        return past.extend(key, value)

    def once(self, owner: nn.Module, build: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Return keys and values of the source, (batch, heads, source, head_dim), built by the first call."""
        if owner not in self._source:
            self._source[owner] = build()
        return self._source[owner]

    def state(self, owner: nn.Module) -> tuple[Tensor, ...] | None:
        """Return the state of a recurrent layer after previous tokens, each part (batch, size), or None."""
        return self._states.get(owner)

    def keep_state(self, owner: nn.Module, state: tuple[Tensor, ...]) -> None:
        """Store the state of a recurrent layer, detached."""
        self._states[owner] = tuple(part.detach() for part in state)

    def branch(self, rows: Tensor) -> Cache:
        """Copy the cache with these rows, (new batch,) int64."""
        cache = Cache()
        cache.length = self.length
        for owner, past in self._past.items():
            cache._past[owner] = _Buffer(past.buffer.index_select(1, rows), len(rows), past.start, past.end)
        for slot, (key, value) in self._source.items():
            cache._source[slot] = key.index_select(0, rows), value.index_select(0, rows)
        cache._states = self._select_states(rows)
        return cache

    def follow(self, rows: Tensor) -> None:
        """Select rows in place, (new batch,) int64, as beams end and split.

        Keys and values of the source are unchanged, since adjacent beams of a text share them. If the number of rows
        does not change, only rows that moved are copied.
        """
        self._states = self._select_states(rows)
        for past in self._past.values():
            if len(rows) != past.rows:
                past.buffer, past.rows = past.buffer.index_select(1, rows), len(rows)
                continue
            moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero().squeeze(1)
            if len(moved):
                written = past.written
                written[:, moved] = written.index_select(1, rows[moved])

    def join(self, other: Cache) -> None:
        """Append the rows of another cache of the same decoder without a source.

        The newest tokens of all rows are aligned, and shorter rows are padded on the left with zeros, which the
        attention mask must exclude.
        """
        self.length = max(self.length, other.length)
        for slot, new in other._past.items():
            self._past[slot].join(new, self.length)
        for owner, state in other._states.items():
            pairs = zip(self._states[owner], state, strict=True)
            self._states[owner] = tuple(torch.cat(pair) for pair in pairs)

    def drop(self, row: int) -> None:
        """Remove a row; the last row takes its index."""
        for past in self._past.values():
            written = past.written
            written[:, row] = written[:, -1]
            past.rows -= 1
        for owner, state in self._states.items():
            rows = torch.arange(len(state[0]) - 1, device=state[0].device)
            rows[row : row + 1] = len(rows)
            self._states[owner] = tuple(part.index_select(0, rows) for part in state)

    def trim(self, length: int) -> None:
        """Remove the oldest tokens, padding of all rows, except for the last ``length``."""
        for past in self._past.values():
            past.start = past.end - length
        self.length = length

    def _select_states(self, rows: Tensor) -> dict[Hashable, tuple[Tensor, ...]]:
        return {owner: tuple(part.index_select(0, rows) for part in state) for owner, state in self._states.items()}


@dataclass
class _Buffer:
    buffer: Tensor  # (2, free and used rows, heads, room, head_dim): keys and values
    rows: int  # used rows, the first
    start: int = 0  # first used column
    end: int = 0

    @property
    def written(self) -> Tensor:
        """(2, rows, heads, tokens, head_dim) view of the written part."""
        return self.buffer[:, : self.rows, :, self.start : self.end]

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values, see `Cache.extend`."""
        seq, length = key.shape[2], self.end - self.start
        if self.end + seq > self.buffer.shape[3]:
            self._move(self.buffer.shape[1], 0, max(length + seq, 2 * length))
        self.end += seq
        keys, values = self.written
        with torch.no_grad():
            keys[:, :, length:].copy_(key)
            values[:, :, length:].copy_(value)
        return (keys, values) if length else (key, value)

    def join(self, new: _Buffer, length: int) -> None:
        """Append the rows of ``new``; all rows get ``length`` tokens."""
        padding = length - (self.end - self.start)
        rows = self.rows + new.rows
        if rows > self.buffer.shape[1]:
            self._move(2 * rows, padding, length + _ROOM)
        elif padding > self.start:
            self._move(self.buffer.shape[1], padding, length + _ROOM)
        self.start -= padding
        # free memory, which may hold NaN
        self.buffer[:, : self.rows, :, self.start : self.start + padding] = 0.0
        added = self.buffer[:, self.rows : rows, :, self.start : self.end]
        columns = length - (new.end - new.start)
        added[:, :, :, :columns] = 0.0
        added[:, :, :, columns:] = new.written
        self.rows = rows

    def _move(self, rows: int, start: int, room: int) -> None:
        """Copy to a new buffer, from column ``start`` on."""
        written = self.written
        self.buffer = self.buffer.new_empty(2, rows, *written.shape[2:3], room, written.shape[4])
        self.start, self.end = start, start + written.shape[3]
        self.written.copy_(written)
