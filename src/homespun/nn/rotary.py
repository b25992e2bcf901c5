"""Rotary position embeddings: queries and keys turned by angles that grow with their positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Rotary(nn.Module):
    """Turns pairs of components by ``position * theta^(-2i / size)`` (Su et al. 2021, equation 34).

    Component ``i`` is paired with ``i + size / 2``, as in GPT-NeoX and Llama. The product of a rotated query and a
    rotated key depends on their distance alone.

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

        Args:
            heads: queries or keys.
            start: position of the first of them, where no ``position_ids`` are given.
            position_ids: (batch, seq) or (1, seq).
        """
        if position_ids is None:
            here = slice(start, start + heads.shape[2])
            cos, sin = self.cos[here], self.sin[here]  # (seq, head_size / 2)
        else:
            cos, sin = self.cos[position_ids][:, None], self.sin[position_ids][:, None]  # (batch, 1, seq, ...)
        first, second = heads.chunk(2, -1)
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
        return rotated.to(heads.dtype)
