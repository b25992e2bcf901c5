"""Sparsity patterns of attention, and their tables of key blocks for each query block; -1: no block."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


def neighbour_blocks(length: int, size: int, before: int, after: int) -> Tensor:
    """Return (1, blocks, n) int64: each block with ``before`` and ``after`` neighbours; -1 beyond the ends."""
    blocks = -(-length // size)
    block = torch.arange(blocks)[:, None] + torch.arange(-min(before, blocks - 1), min(after, blocks - 1) + 1)
    return torch.where((block >= 0) & (block < blocks), block, -1)[None]


def rescale_blocks(table: Tensor, table_size: int, length: int, size: int) -> Tensor:
    """Convert a table (heads, blocks, n) of blocks of ``table_size`` tokens to blocks of ``size`` tokens."""
    query_blocks, key_blocks = _overlapping(length, size, table_size), _overlapping(length, table_size, size)
    # a last row of -1 for indices beyond the end and for -1
    table, key_blocks = F.pad(table, (0, 0, 0, 1), value=-1), F.pad(key_blocks, (0, 0, 0, 1), value=-1)
    columns = table[:, query_blocks.clamp(max=table.shape[1] - 1)].flatten(2)
    return key_blocks[columns.clamp(max=len(key_blocks) - 1)].flatten(2)


def drop_repeats(table: Tensor) -> Tensor:
    """Remove repeated key blocks of each query block: (heads, blocks, n) to (heads, blocks, 1 or more).

    Columns with a constant offset from the query block are kept; other columns are compacted.
    """
    value, order = table.sort(dim=-1, stable=True)
    repeated = F.pad(value[..., 1:] == value[..., :-1], (1, 0))
    table = table.masked_fill(repeated.gather(-1, order.argsort(-1)), -1)
    blocks, none = table.shape[1], -table.shape[1]
    block = torch.arange(blocks)[:, None]
    offset = torch.where(table < 0, none, table - block).amax((0, 1))
    shifted = block + offset
    constant = (table == torch.where((shifted >= 0) & (shifted < blocks), shifted, -1)).all(1).all(0) & (offset > none)
    others = table[..., ~constant].sort(dim=-1, descending=True).values
    compact = torch.cat([table[..., constant], others[..., (others >= 0).any(1).any(0)]], dim=-1)
    return compact if compact.shape[-1] else table[..., :1]


def _overlapping(length: int, size: int, other: int) -> Tensor:
    """Return (blocks, n) int64 blocks of ``other`` tokens that overlap each block of ``size`` tokens."""
    start = torch.arange(0, length, size)[:, None]
    first, last = start // other, ((start + size).clamp(max=length) - 1) // other
    index = first + torch.arange(int((last - first).max()) + 1)
    return torch.where(index <= last, index, -1)


MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""``mask_mod`` of FlexAttention: indices of row, head, query and key -> True if the query sees the key."""


class Pattern(Protocol):
    """Sparsity pattern: keys that each query sees. Hashable, as a key of cached masks."""

    is_relative: ClassVar[bool] = False
    """True if the pattern depends on the distance between query and key only."""

    @property
    def heads(self) -> int:
        """Number of heads; 1: the same pattern for all heads."""
        return 1

    @property
    def steps(self) -> tuple[int, ...]:
        """Dilation of each head or of all heads: blocks are made of tokens sorted by position modulo dilation."""
        return (1,)

    @property
    def is_empty(self) -> bool:
        """True if no query sees a key."""
        return False

    @property
    def is_random(self) -> bool:
        """True for random patterns."""
        return False

    @property
    def block_size(self) -> int:
        """Block size of the fastest computation."""

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        """Return a mask, (heads, ...), of the keys that the queries see.

        Args:
            query, key: (heads or 1, ...) int64 positions that broadcast against each other.
        """
        head = torch.arange(self.heads, device=query.device).view(-1, *[1] * (query.dim() - 1))
        return self.mask_mod(query.device)(torch.zeros_like(head), head, query, key)

    def mask_mod(self, device: torch.device) -> MaskMod:
        """Build the mask function with its tables on ``device``; its indices broadcast against each other.

        Numbers are default arguments, which `torch.compile` treats as constants, unlike those of a closure.
        """

    def of_heads(self, heads: tuple[int, ...]) -> Pattern:
        """Return the pattern of a subset of the heads."""
        return self

    def key_blocks(self, length: int, size: int, step: int) -> Tensor:
        """Return (heads or 1, blocks, n) int64 blocks of ``size`` keys that each block of ``size`` queries sees.

        -1 stands for no block, and blocks may repeat. The ``length`` tokens are sorted by position modulo ``step``.
        """


@dataclass(frozen=True)
class Window(Pattern):
    """``radius`` tokens on each side, ``dilation`` positions apart, and the token itself (Beltagy et al. 2020, 3.1).

    Longformer's window size is ``2 * radius``. ``dilation`` has one number for all heads, or one a head.
    """

    is_relative: ClassVar[bool] = True
    radius: int
    dilation: tuple[int, ...] = (1,)

    @property
    def heads(self) -> int:
        return len(self.dilation)

    def mask_mod(self, device: torch.device) -> MaskMod:
        radius, step = self.radius, self.dilation[0]
        if self.heads == 1:

            def same(
                row: Tensor, head: Tensor, query: Tensor, key: Tensor, *, reach: int = radius * step, step: int = step
            ) -> Tensor:
                away = (query - key).abs()
                return away <= reach if step == 1 else (away <= reach) & (away % step == 0)

            return same
        steps = torch.tensor(self.dilation, dtype=torch.int32, device=device)

        def seen(row: Tensor, head: Tensor, query: Tensor, key: Tensor, *, radius: int = radius) -> Tensor:
            away = (query - key).abs()
            return (away <= radius * steps[head]) & (away % steps[head] == 0)

        return seen

    @property
    def block_size(self) -> int:
        return min(256, max(16, 1 << (self.radius - 1).bit_length()))

    @property
    def steps(self) -> tuple[int, ...]:
        return self.dilation

    def of_heads(self, heads: tuple[int, ...]) -> Pattern:
        if self.heads == 1:
            return self
        steps = tuple(self.dilation[head] for head in heads)
        return Window(self.radius, steps if len(set(steps)) > 1 else steps[:1])

    def key_blocks(self, length: int, size: int, step: int) -> Tensor:
        reach = -(-self.radius * max(self.dilation) // (step * size))  # in blocks
        return neighbour_blocks(length, size, reach, reach)


@dataclass(frozen=True)
class Band(Pattern):
    """The token itself and ``width - 1`` tokens before it (banded layers of GPT-3, Child et al. 2019)."""

    is_relative: ClassVar[bool] = True
    width: int

    def mask_mod(self, device: torch.device) -> MaskMod:
        def seen(row: Tensor, head: Tensor, query: Tensor, key: Tensor, *, width: int = self.width) -> Tensor:
            return (key <= query) & (query - key < width)

        return seen

    @property
    def block_size(self) -> int:
        return min(256, max(16, 1 << (self.width // 2).bit_length()))

    def key_blocks(self, length: int, size: int, step: int) -> Tensor:
        return neighbour_blocks(length, size, -(-(self.width - 1) // size), 0)


@dataclass(frozen=True)
class Blocks(Pattern):
    """Own block of ``size`` tokens, ``before`` blocks before it and ``after`` blocks after it."""

    size: int
    before: int = 1
    after: int = 1

    def mask_mod(self, device: torch.device) -> MaskMod:
        def seen(
            row: Tensor,
            head: Tensor,
            query: Tensor,
            key: Tensor,
            *,
            size: int = self.size,
            before: int = self.before,
            after: int = self.after,
        ) -> Tensor:
            away = key // size - query // size
            return (away >= -before) & (away <= after)

        return seen

    @property
    def block_size(self) -> int:
        return self.size

    def key_blocks(self, length: int, size: int, step: int) -> Tensor:
        return rescale_blocks(neighbour_blocks(length, self.size, self.before, self.after), self.size, length, size)


@dataclass(frozen=True)
class BlockTable(Pattern):
    """Block ``i`` of ``size`` tokens sees blocks ``table[h][i]`` in head ``h``; -1 stands for no block.

    Permuted blocks of BlockBERT (Qiu et al. 2020) and random blocks of BigBird (Zaheer et al. 2020), drawn for the
    maximum sequence length; blocks beyond the end of shorter sequences are ignored.
    """

    size: int
    table: tuple[tuple[tuple[int, ...], ...], ...]  # heads, blocks, blocks of keys
    is_random: bool = False

    @property
    def heads(self) -> int:
        return len(self.table)

    @property
    def is_empty(self) -> bool:
        return all(block < 0 for head in self.table for row in head for block in row)

    @classmethod
    def draw(cls, *, size: int, count: int, blocks: int, heads: int, away: int, seed: int) -> BlockTable:
        """Draw ``count`` blocks for each block and head, at least ``away`` blocks away and not the first block."""
        generator = torch.Generator().manual_seed(seed)
        block = torch.arange(blocks, device="cpu")  # even if the model is built on another device or on meta
        eligible = ((block[:, None] - block[None, :]).abs() >= away) & (block[None, :] > 0)  # (blocks, blocks)
        order = torch.rand(heads, blocks, blocks, generator=generator, device="cpu").masked_fill(~eligible, 2.0)
        value, chosen = order.sort(-1)
        chosen = torch.where(value < 2.0, chosen, -1)[..., :count]
        return cls(size, tuple(tuple(tuple(row) for row in head) for head in chosen.tolist()), is_random=True)

    def mask_mod(self, device: torch.device) -> MaskMod:
        table = torch.tensor(self.table)
        # a last block of -1 beyond the end of the table; copies, as the compiler does not support views
        columns = [F.pad(column.int(), (0, 1), value=-1).to(device) for column in table.unbind(-1)]

        def seen(
            row: Tensor, head: Tensor, query: Tensor, key: Tensor, *, size: int = self.size, end: int = table.shape[1]
        ) -> Tensor:
            query_block, key_block = (query // size).clamp(max=end), key // size
            allowed = columns[0][head, query_block] == key_block
            for column in columns[1:]:
                allowed = allowed | (column[head, query_block] == key_block)
            return allowed

        return seen

    @property
    def block_size(self) -> int:
        return self.size

    def of_heads(self, heads: tuple[int, ...]) -> Pattern:
        return replace(self, table=tuple(self.table[head] for head in heads))

    def key_blocks(self, length: int, size: int, step: int) -> Tensor:
        return rescale_blocks(torch.tensor(self.table), self.size, length, size)


@dataclass(frozen=True)
class Global:
    """Global tokens, which see all and are seen by all tokens (Beltagy et al. 2020, section 3.1).

    `Mask.batch_global_mask` adds global tokens of the data.

    Args:
        first: number of tokens at the start of each document.
        block: size of the first block and of the block of the last token of each document (BigBird-ITC); 0: none.
        queries: global tokens see all tokens; False if their queries are computed elsewhere.
        positions: further positions in each document, from 0.
    """

    first: int = 0
    block: int = 0
    queries: bool = True
    positions: tuple[int, ...] = ()

    @property
    def max_count(self) -> int:
        """Maximum number of global tokens in a document, without those of the data."""
        return self.first + 2 * self.block + len(self.positions)


@dataclass(frozen=True)
class Sparse:
    """Union of patterns and global tokens; without patterns every token sees every token."""

    patterns: tuple[Pattern, ...] = ()
    global_tokens: Global | None = None

    @property
    def heads(self) -> int:
        return max((pattern.heads for pattern in self.patterns), default=1)

    def allowed(self, query: Tensor, key: Tensor) -> Tensor | None:
        """Return the (heads, ...) mask of the patterns as `Pattern.allowed`, without global tokens; None: all keys."""
        tables = [pattern.allowed(query, key) for pattern in self.patterns]
        return functools.reduce(Tensor.__or__, tables) if tables else None

    @property
    def block_size(self) -> int:
        """Greatest common divisor of the patterns' block sizes, or a size near the smallest if it is below 32.

        If sizes differ, blocks below 32 take longer than they save (measured on a CPU).
        """
        sizes = [pattern.block_size for pattern in self.patterns]
        common = math.gcd(*sizes)
        if common == max(sizes) or common >= 32:
            return common
        return min(256, max(32, 1 << min(sizes).bit_length() - 1))

    @property
    def step(self) -> int:
        """Common dilation of all patterns and heads, or 1."""
        steps = {pattern.steps for pattern in self.patterns}
        return max(steps.pop()) if len(steps) == 1 and self.heads == 1 else 1

    def groups(self) -> tuple[tuple[Sparse, tuple[int, ...]], ...]:
        """Groups of heads with the same dilation, as (pattern, heads); a single group has an empty tuple of heads."""
        if all(len(pattern.steps) == 1 for pattern in self.patterns):
            return ((self, ()),)
        groups: dict[tuple[int, ...], list[int]] = {}
        for head in range(self.heads):
            groups.setdefault(tuple(p.steps[head % len(p.steps)] for p in self.patterns), []).append(head)
        return tuple(
            (Sparse(tuple(p.of_heads(tuple(heads)) for p in self.patterns), self.global_tokens), tuple(heads))
            for heads in groups.values()
        )

    def key_blocks(self, length: int, size: int) -> Tensor:
        """Return (heads or 1, blocks, n) int64 key blocks of the union of patterns without repeats; -1: no block."""
        tables = [pattern.key_blocks(length, size, self.step) for pattern in self.patterns]
        return drop_repeats(torch.cat([table.expand(self.heads, -1, -1) for table in tables], dim=-1))


FULL = Sparse()
"""Full attention."""
