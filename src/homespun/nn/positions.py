"""Position embeddings, added to token embeddings, and rotary positions. All refuse longer sequences than the model."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from homespun.errors import UserError


def _check(length: int, maximum: int) -> None:
    if length > maximum:
        raise UserError(
            f"sequence of {length} tokens exceeds max_position_embeddings={maximum}; "
            f"truncate, chunk, or stretch the positions"
        )


class LearnedPositions(nn.Module):
    """One learned vector a position (BERT); ``offset`` rows come before the first (RoBERTa: padding id + 1)."""

    def __init__(self, max_position_embeddings: int, embedding_size: int, *, offset: int = 0) -> None:
        super().__init__()
        self.max_position_embeddings = max_position_embeddings
        self.offset = offset
        self.embedding = nn.Embedding(max_position_embeddings + offset, embedding_size)

    def forward(self, position_ids: Tensor | None, length: int) -> Tensor:
        """(batch, seq, embedding), or (1, seq, embedding) if ``position_ids`` is None: positions from 0."""
        _check(length, self.max_position_embeddings)
        if position_ids is None:
            return self.embedding.weight[None, self.offset : self.offset + length]
        vectors: Tensor = self.embedding(position_ids + self.offset)
        return vectors


class NoPositions(nn.Module):
    """No position embedding, for attention with relative positions (T5, DeBERTa)."""

    nothing: Tensor

    def __init__(self, max_position_embeddings: int) -> None:
        super().__init__()
        self.max_position_embeddings = max_position_embeddings
        self.register_buffer("nothing", torch.zeros(1, 1, 1), persistent=False)

    def forward(self, position_ids: Tensor | None, length: int) -> Tensor:
        """(1, 1, 1) zero, whatever the positions."""
        _check(length, self.max_position_embeddings)
        return self.nothing


class SinusoidalPositions(nn.Module):
    """Sines and cosines of falling frequency, not learned (Vaswani et al. 2017, section 3.5).

    ``halves``: all sines come before all cosines (PEGASUS); else they take turns. An odd size is a `UserError`.
    """

    table: Tensor

    def __init__(self, max_position_embeddings: int, embedding_size: int, *, halves: bool = False) -> None:
        super().__init__()
        if embedding_size % 2:
            raise UserError(f"sinusoidal positions need an even embedding_size, not {embedding_size}")
        self.max_position_embeddings = max_position_embeddings
        place = torch.arange(max_position_embeddings, dtype=torch.float64)[:, None]
        # in float64 to the end: an error of the seventh digit of a frequency is one of the fourth at place 1000
        even = torch.arange(0, embedding_size, 2, dtype=torch.float64)
        frequency = torch.exp(even * (-math.log(10000.0) / embedding_size))
        parts = torch.sin(place * frequency), torch.cos(place * frequency)
        table = torch.cat(parts, dim=-1) if halves else torch.stack(parts, dim=-1).flatten(1)
        self.register_buffer("table", table.float(), persistent=False)

    def forward(self, position_ids: Tensor | None, length: int) -> Tensor:
        """(batch, seq, embedding), or (1, seq, embedding) if ``position_ids`` is None: positions from 0."""
        _check(length, self.max_position_embeddings)
        return self.table[None, :length] if position_ids is None else self.table[position_ids]


class AxialPositions(nn.Module):
    """Learned vectors of a grid: a position's is that of its row and that of its column (Kitaev et al. 2020).

    ``rows * columns`` positions need ``rows + columns`` vectors; positions run along the rows.

    Args:
        max_position_embeddings: the longest sequence, at most the cells of the grid.
        embedding_size: width of a position's vector.
        shape: rows and columns.
        sizes: widths of a row's vector and of a column's.

    Raises:
        UserError: a grid too small, or sizes that do not sum to ``embedding_size``.
    """

    def __init__(
        self, max_position_embeddings: int, embedding_size: int, *, shape: tuple[int, int], sizes: tuple[int, int]
    ) -> None:
        super().__init__()
        rows, self.columns = shape
        if rows * self.columns < max_position_embeddings:
            needed = -(-max_position_embeddings // self.columns)
            raise UserError(
                f"axial positions of shape={[*shape]} are {rows * self.columns} and "
                f"max_position_embeddings={max_position_embeddings}; shape={[needed, self.columns]} has enough"
            )
        if sum(sizes) != embedding_size:
            first = min(sizes[0], embedding_size - 1)
            raise UserError(
                f"axial positions of sizes={[*sizes]} are {sum(sizes)} wide and the embeddings {embedding_size}; "
                f"sizes={[first, embedding_size - first]} fit"
            )
        self.max_position_embeddings = max_position_embeddings
        self.row = nn.Embedding(rows, sizes[0])
        self.column = nn.Embedding(self.columns, sizes[1])

    def forward(self, position_ids: Tensor | None, length: int) -> Tensor:
        """(batch, seq, embedding), or (1, seq, embedding) if ``position_ids`` is None: positions from 0."""
        _check(length, self.max_position_embeddings)
        if position_ids is None:
            position_ids = torch.arange(length, device=self.row.weight.device)[None]
        return torch.cat([self.row(position_ids // self.columns), self.column(position_ids % self.columns)], -1)


class Rotary(nn.Module):
    """Rotate pairs of components by ``position * theta^(-2i / size)`` (Su et al. 2021, equation 34).

    Component ``i`` is paired with ``i + size / 2``, as in GPT-NeoX and Llama. Products of rotated queries and keys
    depend on their distance alone.

    Args:
        head_size: components of a query or key; even.
        max_position_embeddings: the longest sequence.
        theta: base of the wavelengths.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, head_size: int, max_position_embeddings: int, *, theta: float = 10_000.0) -> None:
        super().__init__()
        frequency = theta ** -(torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
        angle = torch.arange(max_position_embeddings, dtype=torch.float64)[:, None] * frequency
        self.frequencies = frequency.float()  # (head_size / 2,) radians a position
        self.register_buffer("cos", angle.cos().float(), persistent=False)  # (positions, head_size / 2)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def forward(self, heads: Tensor, *, start: int = 0, position_ids: Tensor | None = None) -> Tensor:
        """(batch, heads, seq, head_size) -> the same, rotated in float32 and returned in the type of ``heads``.

        Positions count from ``start``, or are ``position_ids``, (batch, seq) or (1, seq).
        """
        if position_ids is None:
            here = slice(start, start + heads.shape[2])
            cos, sin = self.cos[here], self.sin[here]  # (seq, head_size / 2)
        else:
            cos, sin = self.cos[position_ids][:, None], self.sin[position_ids][:, None]  # (batch, 1, seq, ...)
        first, second = heads.chunk(2, -1)
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
        return rotated.to(heads.dtype)
