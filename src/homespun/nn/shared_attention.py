"""Attention whose queries and keys are one projection, as hashing needs it (Kitaev et al. 2020, section 2)."""

from __future__ import annotations

from torch import Tensor, nn

from homespun.nn.attention import inner_size, split_heads
from homespun.nn.masks import Mask


class SharedQueryKeyAttention(nn.Module):
    """Project to shared queries and keys and to values, let the kernel mix, project back; Reformer has no biases.

    Args:
        kernel: ``(query_key, value, mask) -> values``, each (batch, heads, seq, head_dim).
        head_size: width of a head; 0: ``hidden_size / num_attention_heads``.

    Raises:
        UserError: ``hidden_size`` is not a multiple of ``num_attention_heads``, and no ``head_size`` is given.
    """

    def __init__(self, hidden_size: int, num_attention_heads: int, kernel: nn.Module, *, head_size: int = 0) -> None:
        super().__init__()
        width = inner_size(hidden_size, num_attention_heads, head_size)
        self.num_attention_heads = num_attention_heads
        self.query_key = nn.Linear(hidden_size, width, bias=False)
        self.value = nn.Linear(hidden_size, width, bias=False)
        self.output = nn.Linear(width, hidden_size, bias=False)
        self.kernel = kernel

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """(batch, seq, hidden) -> (batch, seq, hidden).

        Raises:
            UserError: there is a cache.
        """
        mask.refuse_cache("LSH attention")
        query_key, value = (
            split_heads(part(hidden), self.num_attention_heads) for part in (self.query_key, self.value)
        )
        values: Tensor = self.kernel(query_key, value, mask)  # (batch, heads, seq, head_dim)
        mixed: Tensor = self.output(values.transpose(1, 2).flatten(2))  # (batch, seq, hidden)
        return mixed
