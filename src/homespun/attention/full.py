"""Softmax attention over all keys: PyTorch's fused kernel, or matrix products where they are faster."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.attention.multi_head import AttentionSettings, AttentionSpec
from homespun.nn.layers import drop
from homespun.nn.masks import Mask, additive_mask, zero_fully_masked
from homespun.nn.patterns import FULL, Sparse

_HALF = (torch.bfloat16, torch.float16)
_MAX_KEYS = 4  # keys a component of a head up to which plain products need no more memory than the fused kernel


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    table: Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Compute ``softmax(scale * query key^T + table) value``, (batch, heads, queries, head_dim).

    In half precision on a CPU, the fused backward pass over a few hundred keys takes three to six times as long as
    matrix products, and with dropout it stores all probabilities in float32. Matrix products are used there if they
    need no more memory; `python -m benchmarks finetune --precision bf16` measures it.

    Args:
        query: (batch, heads, queries, head_dim).
        key, value: (batch, heads, keys, head_dim).
        table: bool mask, True where a key is seen, or bias; broadcasts to (batch, heads, queries, keys). Results of
            queries without a key are undefined, NaN for -inf.
        dropout: dropout probability of the attention probabilities.
        causal: mask later keys; only without a table.
        scale: factor of the products; None: ``1 / sqrt(head_dim)``.
    """
    if not _use_matrix_products(query, key, dropout):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=table, dropout_p=dropout, is_causal=causal, scale=scale
        )
    if causal:
        table = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.mT
    dtype = scores.dtype
    if table is not None:
        scores = scores + (additive_mask(table, dtype) if table.dtype == torch.bool else table)
    return drop(scores.softmax(-1).to(dtype), dropout) @ value


def _use_matrix_products(query: Tensor, key: Tensor, dropout: float) -> bool:
    # a checkpointed layer must make the same choice when it is recomputed, so the grad mode must not matter
    if query.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    if (torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else query.dtype) not in _HALF:
        return False
    return dropout > 0 or key.shape[-2] <= _MAX_KEYS * key.shape[-1]


class DotProduct(nn.Module):
    """Attention ``softmax(query key^T / sqrt(head_dim)) value`` (Vaswani et al. 2017, equation 1).

    Queries that see no key give zeros.

    Args:
        sparse: patterns of allowed keys; by default all keys.
        dropout: dropout probability of the attention probabilities, in training.
        scaled: divide by ``sqrt(head_dim)``; False in T5.
    """

    def __init__(self, sparse: Sparse = FULL, *, dropout: float = 0.0, scaled: bool = True) -> None:
        super().__init__()
        self.sparse = sparse
        self.dropout = dropout
        self.scale = None if scaled else 1.0  # None: SDPA divides by sqrt(head_dim)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """Attend from (batch, heads, queries, head_dim) queries to (batch, heads, keys, head_dim) keys and values."""
        queries, keys = query.shape[-2], key.shape[-2]
        dropout = self.dropout if self.training else 0.0
        if mask.lengths is not None:
            texts = zip(*(part.split(list(mask.lengths), -2) for part in (query, key, value)), strict=True)
            parts = [
                attend(*text, dropout=dropout, causal=mask.causal, scale=self.scale)  # (1, heads, tokens, head_dim)
                for text in texts
            ]
            return torch.cat(parts, -2)
        unmasked = not self.sparse.patterns and mask.keep is None and mask.documents is None
        if unmasked and mask.causal and mask.start == 0 and queries == keys:  # SDPA needs no table
            return attend(query, key, value, dropout=dropout, causal=True, scale=self.scale)
        table = mask.dense(self.sparse, queries, keys, query.device)
        values = attend(query, key, value, table=table, dropout=dropout, scale=self.scale)
        return zero_fully_masked(values, table)

    def extra_repr(self) -> str:
        return f"{self.sparse}, dropout={self.dropout}"


class FullAttentionConfig(AttentionSettings):
    """Config of full softmax attention (Vaswani et al. 2017)."""

    kind: Literal["full"] = "full"
    reads_context: ClassVar[bool] = True
    reads_unpadded: ClassVar[bool] = True

    def build(self, spec: AttentionSpec) -> nn.Module:
        return spec.multi_head(DotProduct(dropout=spec.dropout, scaled=spec.scaled))
