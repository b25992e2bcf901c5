"""Block layout of sparse attention: which blocks of keys each block of queries attends to."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from homespun.nn.patterns import Sparse


@dataclass(frozen=True, eq=False)
class Plan:
    """Block layout for one sequence length under one union of patterns, shared by all batches."""

    size: int  # tokens in a block
    heads: int  # 1: all heads are alike
    place: Tensor | None  # (slots,) int64: whose token stands in each slot; None where tokens stand in their order
    slot: Tensor | None  # (seq,) int64: where each token stands
    queries: Tensor  # (1, blocks, size, 1) int64 positions; the length itself where a slot is empty
    keys: Tensor  # (heads, blocks, keys) int64 positions, likewise
    columns: tuple[int | Tensor, ...]  # blocks of keys, each a shift from the own block, or (heads, blocks) int64
    inside: Tensor  # (heads, blocks, size or 1, keys) bool: what the patterns and the order of time allow

    @property
    def blocks(self) -> int:
        return self.queries.shape[1]

    def of_heads(self, part: slice) -> Plan:
        """The plan of some heads, where they differ: enough of it to gather by."""
        columns = tuple(column if isinstance(column, int) else column[part] for column in self.columns)
        return dataclasses.replace(self, heads=part.stop - part.start, columns=columns)


@functools.lru_cache(maxsize=64)
@torch.inference_mode(False)  # who asks first may be in it, and training could not use such tensors
def make_plan(sparse: Sparse, length: int, causal: bool, device: torch.device) -> Plan | None:
    """The plan for one length, or None where blocks would not be faster than the whole table."""
    if not sparse.patterns:
        return None
    size, step = sparse.block_size, sparse.step
    shared = 0 if sparse.global_tokens is None else 2 * sparse.global_tokens.most
    slots = -(-length // size) * size
    place = torch.arange(length)
    if step > 1:  # the tokens of one remainder beside each other
        place = (place % step * length + place // step).argsort()
    table = sparse.key_blocks(length, size)  # (heads, blocks, n)
    if 3 * (table.shape[-1] * size + shared) // 2 + 128 > length:  # measured on a CPU, forward and backward
        return None
    standing = F.pad(place, (0, slots - length), value=length)
    queries = standing.view(1, -1, size, 1)
    keys = (table[..., None] * size + torch.arange(size)).flatten(2)  # (heads, blocks, keys)
    keys = torch.where(keys >= 0, standing[keys.clamp(min=0)], length)
    allowed = sparse.allowed(queries, keys[:, :, None])
    assert allowed is not None
    inside = allowed & (keys < length)[:, :, None]
    if causal:
        inside = inside & (keys[:, :, None] <= queries)
    inside = inside.expand(table.shape[0], *inside.shape[1:])
    empty = (queries == length).expand_as(inside)
    any_query = (inside & ~empty).any(-2, keepdim=True)
    if bool(((inside == any_query) | empty).all()):  # all queries of a block see the same
        inside = any_query
    return Plan(
        size,
        table.shape[0],
        place.to(device) if step > 1 else None,
        place.argsort().to(device) if step > 1 else None,
        queries.to(device),
        keys.to(device),
        tuple(_column(column) for column in table.to(device).unbind(-1)),
        inside.to(device),
    )


def _column(column: Tensor) -> int | Tensor:
    """A column of blocks as one shift, if it is one; blocks beyond the ends are masked anyway."""
    shifts = (column - torch.arange(column.shape[1], device=column.device))[column >= 0]
    first = int(shifts[0]) if len(shifts) else 0
    return first if bool((shifts == first).all()) else column
