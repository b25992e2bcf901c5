"""Tables of blocks: (heads or 1, blocks, n) int64, the blocks of keys that each block of queries needs; -1 for none."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def neighbour_blocks(length: int, size: int, before: int, after: int) -> Tensor:
    """(1, blocks, n) int64: each block of ``length`` tokens, those before and those after it; -1 beyond the ends."""
    blocks = -(-length // size)
    block = torch.arange(blocks)[:, None] + torch.arange(-min(before, blocks - 1), min(after, blocks - 1) + 1)
    return torch.where((block >= 0) & (block < blocks), block, -1)[None]


def rescale_blocks(table: Tensor, own: int, length: int, size: int) -> Tensor:
    """A table of blocks of ``own`` tokens (heads, blocks, n) as one of blocks of ``size``."""
    asking, named = _touched(length, size, own), _touched(length, own, size)
    # one more row, for what is past the end of a table, and for -1: it names none
    table, named = F.pad(table, (0, 0, 0, 1), value=-1), F.pad(named, (0, 0, 0, 1), value=-1)
    columns = table[:, asking.clamp(max=table.shape[1] - 1)].flatten(2)
    return named[columns.clamp(max=len(named) - 1)].flatten(2)


def drop_repeats(table: Tensor) -> Tensor:
    """(heads, blocks, n) -> (heads, blocks, 1 or more): what comes again in a row is left out.

    Columns that are one shift of the own block stay what they are, and the others become as few as hold the rest.
    """
    value, order = table.sort(dim=-1, stable=True)
    again = F.pad(value[..., 1:] == value[..., :-1], (1, 0))
    table = table.masked_fill(again.gather(-1, order.argsort(-1)), -1)
    blocks, none = table.shape[1], -table.shape[1]
    own = torch.arange(blocks)[:, None]
    shift = torch.where(table < 0, none, table - own).amax((0, 1))
    shifted = own + shift
    straight = (table == torch.where((shifted >= 0) & (shifted < blocks), shifted, -1)).all(1).all(0) & (shift > none)
    others = table[..., ~straight].sort(dim=-1, descending=True).values
    kept = torch.cat([table[..., straight], others[..., (others >= 0).any(1).any(0)]], dim=-1)
    return kept if kept.shape[-1] else table[..., :1]


def _touched(length: int, size: int, other: int) -> Tensor:
    """(blocks, n) int64: the blocks of ``other`` tokens in which each block of ``size`` has some; -1 where fewer."""
    start = torch.arange(0, length, size)[:, None]
    first, last = start // other, ((start + size).clamp(max=length) - 1) // other
    found = first + torch.arange(int((last - first).max()) + 1)
    return torch.where(found <= last, found, -1)
