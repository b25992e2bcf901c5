"""Softmax attention: the fused path of PyTorch, or plain products where that is slow, and the dense reference."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.attention.multi_head import AttentionSpec
from homespun.config import Config
from homespun.nn.layers import drop
from homespun.nn.masks import Mask, zero_fully_masked
from homespun.nn.patterns import FULL, Sparse

_HALF = (torch.bfloat16, torch.float16)
_WIDTHS = 4  # of a head: keys up to which the probabilities are no more than float32 queries, keys and values would be


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
    """``softmax(scale * query key^T + table) value``: (batch, heads, queries, head_dim).

    In half precision on a CPU, PyTorch's fused backward pass over some hundred keys takes three to six times as long as
    plain products, and with dropout it holds all probabilities in float32. Plain products are used there if they need
    no more memory; `python -m benchmarks finetune --precision bf16` measures it.

    Args:
        query: (batch, heads, queries, head_dim).
        key, value: (batch, heads, keys, head_dim).
        table: broadcast to (batch, heads, queries, keys): bool, True where a key is seen, or numbers to add. Queries
            that
            see no key have undefined results, NaN for -inf.
        dropout: of the probabilities.
        causal: no later keys are seen; without a table.
        scale: of the products; None: ``1 / sqrt(head_dim)``.
    """
    if not _plain(query, key, dropout):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=table, dropout_p=dropout, is_causal=causal, scale=scale
        )
    if causal:
        table = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.mT
    dtype = scores.dtype
    if table is not None:
        if table.dtype == torch.bool:  # the least number and not -inf: a row of those would be NaN
            table = torch.zeros((), dtype=dtype).where(table, torch.finfo(dtype).min)
        scores = scores + table
    return drop(scores.softmax(-1).to(dtype), dropout) @ value


def _plain(query: Tensor, key: Tensor, dropout: float) -> bool:
    # nothing that differs where a layer is computed a second time, for its gradients, may decide
    if query.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    if (torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else query.dtype) not in _HALF:
        return False
    return dropout > 0 or key.shape[-2] <= _WIDTHS * key.shape[-1]


class DotProduct(nn.Module):
    """``softmax(query key^T / sqrt(head_dim)) value`` over the allowed keys (Vaswani et al. 2017, equation 1).

    A query that sees no key gives zeros.

    Args:
        sparse: which positions see each other; by default all.
        dropout: of the attention probabilities, in training; SDPA on a CPU then holds the table of probabilities.
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
