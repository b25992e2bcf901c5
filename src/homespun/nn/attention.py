"""Multi-head attention around any kernel, and the two seams: `Kernel` inside it, `Attention` around it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from homespun.errors import UserError
from homespun.nn.masks import Mask


class Kernel(Protocol):
    """``(query, key, value, mask) -> values``, each (batch, heads, seq, head_dim)."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor: ...


class Attention(Protocol):
    """``(batch, seq, hidden) -> (batch, seq, hidden)``: the outer seam, for what needs its own projections."""

    def __call__(self, hidden: Tensor, mask: Mask) -> Tensor: ...


class MultiHeadAttention(nn.Module):
    """Project to heads, let the kernel mix, project back (Vaswani et al. 2017, section 3.2.2).

    The host never asks a kernel its name.

    Raises:
        UserError: ``hidden_size`` is not a multiple of ``num_attention_heads``.
    """

    def __init__(self, hidden_size: int, num_attention_heads: int, kernel: nn.Module, *, bias: bool = True) -> None:
        super().__init__()
        if hidden_size % num_attention_heads:
            raise UserError(
                f"hidden_size={hidden_size} is not a multiple of num_attention_heads={num_attention_heads}; "
                f"choose heads that divide it"
            )
        self.num_attention_heads = num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.key = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.value = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.output = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.kernel = kernel

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """(batch, seq, hidden) -> (batch, seq, hidden)."""
        query, key, value = (
            split_heads(part(hidden), self.num_attention_heads) for part in (self.query, self.key, self.value)
        )
        values: Tensor = self.kernel(query, key, value, mask)  # (batch, heads, seq, head_dim)
        mixed: Tensor = self.output(values.transpose(1, 2).flatten(2))  # (batch, seq, hidden)
        return mixed


def split_heads(hidden: Tensor, heads: int) -> Tensor:
    """(batch, seq, hidden) -> (batch, heads, seq, head_dim), without copying."""
    return hidden.reshape(*hidden.shape[:2], heads, -1).transpose(1, 2)
