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

    Args:
        hidden_size: width of the stream that it reads and writes.
        num_attention_heads: heads.
        kernel: `Kernel`.
        head_size: width of a head; 0: ``hidden_size / num_attention_heads``.
        bias: whether the projections have biases.

    Raises:
        UserError: ``hidden_size`` is not a multiple of ``num_attention_heads``, and no ``head_size`` is given.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        kernel: nn.Module,
        *,
        head_size: int = 0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_attention_heads = num_attention_heads
        width = inner_size(hidden_size, num_attention_heads, head_size)
        self.query = nn.Linear(hidden_size, width, bias=bias)
        self.key = nn.Linear(hidden_size, width, bias=bias)
        self.value = nn.Linear(hidden_size, width, bias=bias)
        self.output = nn.Linear(width, hidden_size, bias=bias)
        self.kernel = kernel

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """(batch, seq, hidden) -> (batch, seq, hidden)."""
        query, key, value = (
            split_heads(part(hidden), self.num_attention_heads) for part in (self.query, self.key, self.value)
        )
        if mask.cache is not None:
            key, value = mask.cache.extend(self, key, value)
        values: Tensor = self.kernel(query, key, value, mask)  # (batch, heads, seq, head_dim)
        mixed: Tensor = self.output(values.transpose(1, 2).flatten(2))  # (batch, seq, hidden)
        return mixed


def inner_size(hidden_size: int, num_attention_heads: int, head_size: int) -> int:
    """How wide all heads are together, where ``head_size`` 0 is ``hidden_size / num_attention_heads``.

    Raises:
        UserError: there is no such whole number.
    """
    if head_size:
        return head_size * num_attention_heads
    if hidden_size % num_attention_heads:
        raise UserError(
            f"hidden_size={hidden_size} is not a multiple of num_attention_heads={num_attention_heads}; "
            f"choose heads that divide it"
        )
    return hidden_size


def split_heads(hidden: Tensor, heads: int) -> Tensor:
    """(batch, seq, hidden) -> (batch, heads, seq, head_dim), without copying."""
    return hidden.reshape(*hidden.shape[:2], heads, -1).transpose(1, 2)
