"""Exact scaled dot-product attention under any pattern: the dense path, which is the reference for every other."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor, nn

from homespun.attention.sdpa import attend
from homespun.attention.spec import AttentionSpec
from homespun.config import Config
from homespun.nn.masks import Mask, zero_fully_masked
from homespun.nn.patterns import FULL, Sparse


class DotProduct(nn.Module):
    """``softmax(query key^T / sqrt(head_dim)) value`` over the allowed keys (Vaswani et al. 2017, equation 1).

    A query that may see nothing gives zeros, not NaN.

    Args:
        sparse: which places see each other; all of them by default.
        dropout: of the attention probabilities, in training. Above zero, SDPA on a CPU falls back to a path that
            holds the whole table of probabilities.
        scaled: divide by ``sqrt(head_dim)``; T5 does not.
    """

    def __init__(self, sparse: Sparse = FULL, *, dropout: float = 0.0, scaled: bool = True) -> None:
        super().__init__()
        self.sparse = sparse
        self.dropout = dropout
        self.scale = None if scaled else 1.0  # None: SDPA divides by sqrt(head_dim)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """(batch, heads, queries, head_dim) from queries, and (batch, heads, keys, head_dim) keys and values."""
        queries, keys = query.shape[-2], key.shape[-2]
        dropout = self.dropout if self.training else 0.0
        plain = not self.sparse.patterns and mask.keep is None and mask.documents is None
        if plain and mask.causal and mask.start == 0 and queries == keys:  # SDPA's own causal path needs no table
            return attend(query, key, value, dropout=dropout, causal=True, scale=self.scale)
        table = mask.dense(self.sparse, queries, keys, query.device)
        values = attend(query, key, value, table=table, dropout=dropout, scale=self.scale)
        return zero_fully_masked(values, table)

    def extra_repr(self) -> str:
        return f"{self.sparse}, dropout={self.dropout}"


class FullAttentionConfig(Config):
    """Every token sees every token (Vaswani et al. 2017)."""

    kind: Literal["full"] = "full"
    supports_packing: ClassVar[bool] = True
    is_positional: ClassVar[bool] = False

    def build(self, spec: AttentionSpec) -> nn.Module:
        kernel = DotProduct(dropout=spec.dropout, scaled=spec.scaled)
        return spec.multi_head(kernel)
