"""Tables of blocks: (heads or 1, blocks, n) int64, the blocks of keys that each block of queries needs; -1 for none."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

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


MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Of indices of row, head, query and key, whether the query may see the key: the ``mask_mod`` of FlexAttention."""


class Pattern(Protocol):
    """Sparsity pattern: the keys that each query may see. Frozen and hashable, so that masks are cached per pass."""

    @property
    def heads(self) -> int:
        """1 when all heads are alike, else how many there are."""
        return 1

    @property
    def steps(self) -> tuple[int, ...]:
        """Of each head, or of all: above 1, tokens are to be cut into blocks in the order of their remainder by it."""
        return (1,)

    @property
    def is_relative(self) -> bool:
        """True if only the distance between query and key counts."""
        return False

    @property
    def is_empty(self) -> bool:
        """True if no query sees a key."""
        return False

    @property
    def is_random(self) -> bool:
        """True if it was drawn."""
        return False

    @property
    def block_size(self) -> int:
        """The size of blocks in which it is cheapest."""

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        """True where the query at one position may see the key at another.

        Args:
            query, key: int64 positions of shapes that broadcast against each other; heads come first, 1 of them or all.

        Returns:
            bool of the broadcast shape, heads first.
        """
        head = torch.arange(self.heads, device=query.device).view(-1, *[1] * (query.dim() - 1))
        return self.mask_mod(query.device)(torch.zeros_like(head), head, query, key)

    def mask_mod(self, device: torch.device) -> MaskMod:
        """The same of one head at a time, its tables on the device and nothing made in it, so that it can be compiled.

        The indices have any shapes that broadcast against each other. Numbers are bound as defaults, which
        `torch.compile` holds constant; those in a closure it makes arguments of the kernel.
        """

    def of_heads(self, heads: tuple[int, ...]) -> Pattern:
        """The same pattern for some of its heads."""
        return self

    def key_blocks(self, length: int, size: int, step: int) -> Tensor:
        """(heads or 1, blocks, n) int64: the blocks of ``size`` keys that each block of ``size`` queries needs.

        -1 stands for none, and a block may come twice. Of ``length`` tokens the last block may not be full; they stand
        in the order of their remainder by ``step``.
        """


@dataclass(frozen=True)
class Window(Pattern):
    """Every token sees ``radius`` tokens on each side of it, ``dilation`` places apart, and itself.

    Longformer's window size is ``2 * radius`` (Beltagy et al. 2020, section 3.1). ``dilation`` holds one number for all
    heads, or one a head.
    """

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
    def is_relative(self) -> bool:
        return True

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
    """Every token sees itself and the ``width - 1`` before it (GPT-3's locally banded layers, Child et al. 2019)."""

    width: int

    def mask_mod(self, device: torch.device) -> MaskMod:

        def seen(row: Tensor, head: Tensor, query: Tensor, key: Tensor, *, width: int = self.width) -> Tensor:
            return (key <= query) & (query - key < width)

        return seen

    @property
    def is_relative(self) -> bool:
        return True

    @property
    def block_size(self) -> int:
        return min(256, max(16, 1 << (self.width // 2).bit_length()))

    def key_blocks(self, length: int, size: int, step: int) -> Tensor:
        return neighbour_blocks(length, size, -(-(self.width - 1) // size), 0)


@dataclass(frozen=True)
class Blocks(Pattern):
    """Every token sees its block of ``size`` tokens, ``before`` blocks before it and ``after`` blocks after it."""

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
    """From block ``i`` of ``size`` tokens head ``h`` sees the blocks ``table[h][i]``; -1 is none.

    Permuted blocks of BlockBERT (Qiu et al. 2020); random ones of BigBird (Zaheer et al. 2020), drawn once for the
    longest input: a block beyond the end of a shorter text is not there, whatever the padding.
    """

    size: int
    table: tuple[tuple[tuple[int, ...], ...], ...]  # heads, blocks, blocks of keys
    is_random: bool = False

    @property
    def heads(self) -> int:
        return len(self.table)

    @property
    def is_empty(self) -> bool:
        """True if there was no block to draw."""
        return all(block < 0 for head in self.table for row in head for block in row)

    @classmethod
    def draw(cls, *, size: int, count: int, blocks: int, heads: int, away: int, seed: int) -> BlockTable:
        """``count`` blocks for each of ``blocks`` in each head, at least ``away`` blocks off and not the first one."""
        generator = torch.Generator().manual_seed(seed)
        block = torch.arange(blocks, device="cpu")  # also where the model is built on another device, or on none
        free = ((block[:, None] - block[None, :]).abs() >= away) & (block[None, :] > 0)  # (blocks, blocks)
        order = torch.rand(heads, blocks, blocks, generator=generator, device="cpu").masked_fill(~free, 2.0)
        value, chosen = order.sort(-1)
        chosen = torch.where(value < 2.0, chosen, -1)[..., :count]
        return cls(size, tuple(tuple(tuple(row) for row in head) for head in chosen.tolist()), is_random=True)

    def mask_mod(self, device: torch.device) -> MaskMod:
        table = torch.tensor(self.table)
        # one more block, past the end of the table, that names none; copies, since the compiler trips over views
        columns = [F.pad(column.int(), (0, 1), value=-1).to(device) for column in table.unbind(-1)]

        def seen(
            row: Tensor, head: Tensor, query: Tensor, key: Tensor, *, size: int = self.size, end: int = table.shape[1]
        ) -> Tensor:
            asking, block = (query // size).clamp(max=end), key // size
            named = columns[0][head, asking] == block
            for column in columns[1:]:
                named = named | (column[head, asking] == block)
            return named

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
    """Some tokens see every token, and every token sees them (Beltagy et al. 2020, section 3.1).

    They are the first ``first`` tokens of every document, those at its ``positions``, the first and last ``block``
    tokens of its grid of blocks (BigBird's ITC), and those that the data chooses (`Mask.chosen`). Not a `Pattern`: it
    depends on the data.

    Args:
        first: tokens at the start of each document.
        block: its first block of so many tokens, and the block in which its last token stands; 0 for neither.
        queries: these tokens also see everything; False where someone else computes what they see.
        positions: further tokens, counted from 0 in each document.
    """

    first: int = 0
    block: int = 0
    queries: bool = True
    positions: tuple[int, ...] = ()

    @property
    def most(self) -> int:
        """Maximum number of global tokens, those chosen by the data excluded."""
        return self.first + 2 * self.block + len(self.positions)


@dataclass(frozen=True)
class Sparse:
    """A union of patterns, and tokens that see and are seen by all. No pattern at all: everything is allowed."""

    patterns: tuple[Pattern, ...] = ()
    global_tokens: Global | None = None

    @property
    def heads(self) -> int:
        return max((pattern.heads for pattern in self.patterns), default=1)

    def allowed(self, query: Tensor, key: Tensor) -> Tensor | None:
        """Keys that the patterns allow, without `Global`; None if they allow all."""
        tables = [pattern.allowed(query, key) for pattern in self.patterns]
        if not tables:
            return None
        return functools.reduce(Tensor.__or__, tables)

    @property
    def block_size(self) -> int:
        """The largest size that divides what each pattern would choose, if that is not small; else one near the least.

        Where patterns differ, blocks under 32 cost more than what they leave out (measured on a CPU).
        """
        sizes = [pattern.block_size for pattern in self.patterns]
        common = math.gcd(*sizes)
        if common == max(sizes) or common >= 32:
            return common
        return min(256, max(32, 1 << min(sizes).bit_length() - 1))

    @property
    def step(self) -> int:
        """The one step of all patterns, or 1."""
        steps = {pattern.steps for pattern in self.patterns}
        return max(steps.pop()) if len(steps) == 1 and self.heads == 1 else 1

    def groups(self) -> tuple[tuple[Sparse, tuple[int, ...]], ...]:
        """Heads whose tokens stand in the same order, together; all of them, unnamed, where heads do not differ so."""
        if all(len(pattern.steps) == 1 for pattern in self.patterns):
            return ((self, ()),)
        heads: dict[tuple[int, ...], list[int]] = {}
        for head in range(self.heads):
            heads.setdefault(tuple(p.steps[head % len(p.steps)] for p in self.patterns), []).append(head)
        together = [tuple(group) for group in heads.values()]
        return tuple(
            (Sparse(tuple(p.of_heads(group) for p in self.patterns), self.global_tokens), group) for group in together
        )

    def key_blocks(self, length: int, size: int) -> Tensor:
        """(heads or 1, blocks, n) int64: the blocks that the patterns need together, each once; -1 for none."""
        tables = [pattern.key_blocks(length, size, self.step) for pattern in self.patterns]
        return drop_repeats(torch.cat([table.expand(self.heads, -1, -1) for table in tables], dim=-1))


FULL = Sparse()
"""Every token sees every token (Vaswani et al. 2017)."""
