"""Position embeddings and rotary positions. Sequences longer than ``max_position_embeddings`` raise `UserError`."""

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
    """Learned position embeddings (BERT), after ``offset`` unused rows (RoBERTa: padding id + 1)."""

    def __init__(self, max_position_embeddings: int, embedding_size: int, *, offset: int = 0) -> None:
        super().__init__()
        self.max_position_embeddings = max_position_embeddings
        self.offset = offset
        self.embedding = nn.Embedding(max_position_embeddings + offset, embedding_size)

    def forward(self, position_ids: Tensor | None, length: int) -> Tensor:
        """Map (batch, seq) ids, or None for positions from 0 to (batch or 1, seq, embedding)."""
        _check(length, self.max_position_embeddings)
        if position_ids is None:
            return self.embedding.weight[None, self.offset : self.offset + length]
        return self.embedding(position_ids + self.offset)


class NoPositions(nn.Module):
    """No position embedding, for attention with relative positions (T5, DeBERTa)."""

    nothing: Tensor

    def __init__(self, max_position_embeddings: int) -> None:
        super().__init__()
        self.max_position_embeddings = max_position_embeddings
        self.register_buffer("nothing", torch.zeros(1, 1, 1), persistent=False)

    def forward(self, position_ids: Tensor | None, length: int) -> Tensor:
        """Return a (1, 1, 1) zero."""
        _check(length, self.max_position_embeddings)
        return self.nothing


def _only_shapes() -> bool:
    """True if a model is built on the ``meta`` device, where arithmetic imports torch's compiler (1.3 s)."""
    return bool(torch.get_default_device().type == "meta")


class SinusoidalPositions(nn.Module):
    """Sinusoidal position embeddings (Vaswani et al. 2017, section 3.5).

    Args:
        max_position_embeddings: maximum sequence length.
        embedding_size: width; an odd width raises `UserError`.
        halves: all sines before all cosines (PEGASUS) instead of interleaved.
        ascending: lowest frequency first. Of two streams (`ReversibleStack`) the second, which the first attention
            reads, then has the high frequencies, which distinguish neighbours.
    """

    table: Tensor

    def __init__(
        self, max_position_embeddings: int, embedding_size: int, *, halves: bool = False, ascending: bool = False
    ) -> None:
        super().__init__()
        if embedding_size % 2:
            raise UserError(f"sinusoidal positions need an even embedding_size, not {embedding_size}")
        self.max_position_embeddings = max_position_embeddings
        if _only_shapes():
            table = torch.empty(max_position_embeddings, embedding_size)
        else:
            position = torch.arange(max_position_embeddings, dtype=torch.float64)[:, None]
            # float64: an error in the seventh digit of a frequency is one in the fourth digit at position 1000
            even = torch.arange(0, embedding_size, 2, dtype=torch.float64)
            frequency = torch.exp(even * (-math.log(10000.0) / embedding_size))
            frequency = frequency.flip(0) if ascending else frequency
            parts = torch.sin(position * frequency), torch.cos(position * frequency)
            table = torch.cat(parts, dim=-1) if halves else torch.stack(parts, dim=-1).flatten(1)
        self.register_buffer("table", table.float(), persistent=False)

    def forward(self, position_ids: Tensor | None, length: int) -> Tensor:
        """Map (batch, seq) ids, or None for positions from 0 to (batch or 1, seq, embedding)."""
        _check(length, self.max_position_embeddings)
        return self.table[None, :length] if position_ids is None else self.table[position_ids]


class AxialPositions(nn.Module):
    """Axial position embeddings: concatenated embeddings of row and column of a grid (Kitaev et al. 2020).

    Args:
        max_position_embeddings: maximum sequence length, at most ``rows * columns``.
        embedding_size: width.
        shape: rows and columns; positions run along the rows.
        sizes: widths of row and column embeddings.

    Raises:
        UserError: the grid is too small, or ``sizes`` do not sum to ``embedding_size``.
    """

    def __init__(
        self, max_position_embeddings: int, embedding_size: int, *, shape: tuple[int, int], sizes: tuple[int, int]
    ) -> None:
        super().__init__()
        rows, self.columns = shape
        if rows * self.columns < max_position_embeddings:
            needed = -(-max_position_embeddings // self.columns)
            raise UserError(
                f"shape={[*shape]} of axial positions has {rows * self.columns} positions, less than "
                f"max_position_embeddings={max_position_embeddings}; set shape={[needed, self.columns]}"
            )
        if sum(sizes) != embedding_size:
            first = min(sizes[0], embedding_size - 1)
            raise UserError(
                f"sizes={[*sizes]} of axial positions must sum to embedding_size={embedding_size}, not {sum(sizes)}; "
                f"set sizes={[first, embedding_size - first]}"
            )
        self.max_position_embeddings = max_position_embeddings
        self.row = nn.Embedding(rows, sizes[0])
        self.column = nn.Embedding(self.columns, sizes[1])

    def forward(self, position_ids: Tensor | None, length: int) -> Tensor:
        """Map (batch, seq) ids, or None for positions from 0 to (batch or 1, seq, embedding)."""
        _check(length, self.max_position_embeddings)
        if position_ids is None:
            position_ids = torch.arange(length, device=self.row.weight.device)[None]
        return torch.cat([self.row(position_ids // self.columns), self.column(position_ids % self.columns)], -1)


class Rotary(nn.Module):
    """Rotary positions: rotate pairs of components by ``position * theta^(-2i / size)`` (Su et al. 2021, equation 34).

    Component ``i`` is paired with ``i + size / 2``, as in GPT-NeoX and Llama.

    Args:
        head_size: width of a query or key; even.
        max_position_embeddings: maximum sequence length.
        theta: base of the wavelengths.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, head_size: int, max_position_embeddings: int, *, theta: float = 10_000.0) -> None:
        super().__init__()
        if _only_shapes():
            frequency = torch.empty(len(range(0, head_size, 2)))
            cos = sin = torch.empty(max_position_embeddings, len(frequency))
        else:
            frequency = theta ** -(torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
            angle = torch.arange(max_position_embeddings, dtype=torch.float64)[:, None] * frequency
            cos, sin = angle.cos(), angle.sin()
        self.frequencies = frequency.float()  # (head_size / 2,) radians a position
        self.register_buffer("cos", cos.float(), persistent=False)  # (positions, head_size / 2)
        self.register_buffer("sin", sin.float(), persistent=False)

    def forward(self, heads: Tensor, *, start: int = 0, position_ids: Tensor | None = None) -> Tensor:
        """Transform (batch, heads, seq, head_size), keeping the shape; computed in float32.

        Positions count from ``start``, or are the first ``seq`` of ``position_ids``, (batch or 1, keys).
        """
        if position_ids is None:
            positions = slice(start, start + heads.shape[2])
            cos, sin = self.cos[positions], self.sin[positions]  # (seq, head_size / 2)
        else:
            position_ids = position_ids[:, None, : heads.shape[2]]
            cos, sin = self.cos[position_ids], self.sin[position_ids]  # (batch, 1, seq, ...)
        first, second = heads.chunk(2, -1)
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
        return rotated.to(heads.dtype)
