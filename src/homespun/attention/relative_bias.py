"""Full attention with learned relative position biases (T5, Raffel et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from homespun.attention.full import attend
from homespun.attention.multi_head import AttentionSettings, AttentionSpec
from homespun.errors import UserError
from homespun.nn.masks import Mask, zero_fully_masked
from homespun.nn.patterns import FULL
from homespun.nn.torch_private import FunctionContext

_SCORES = 2**19  # scores in memory at once in the backward pass


def bucket_of(distance: Tensor, *, num_buckets: int, max_distance: int, causal: bool) -> Tensor:
    """Compute the bucket of each relative position, key minus query (Raffel et al. 2020, section 2.1).

    Half of the buckets have one position each, the others grow logarithmically up to ``max_distance``; greater
    distances share the last bucket. Unless causal, half of all buckets are for later keys.
    """
    later = torch.zeros_like(distance)
    if not causal:
        num_buckets //= 2
        later = (distance > 0) * num_buckets
        distance = -distance.abs()
    distance = (-distance).clamp(min=0)
    exact = num_buckets // 2
    # float32 as in the authors' code: the edges of buckets depend on rounding
    ratio = torch.log(distance.clamp(min=exact).float() / exact) / math.log(max_distance / exact)
    far = (exact + (ratio * (num_buckets - exact)).long()).clamp(max=num_buckets - 1)
    return later + torch.where(distance < exact, distance, far)


class RelativeBias(nn.Module):
    """Learned bias of each head and distance bucket, shared by all layers.

    Args:
        num_attention_heads: number of heads.
        num_buckets: number of buckets.
        max_distance: greater distances share the last bucket.
        max_position_embeddings: maximum sequence length.
        causal: no buckets for later keys.
    """

    buckets: Tensor

    def __init__(
        self,
        num_attention_heads: int,
        *,
        num_buckets: int,
        max_distance: int,
        max_position_embeddings: int,
        causal: bool,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_buckets, num_attention_heads)
        self.longest = max_position_embeddings
        distance = torch.arange(1 - self.longest, self.longest)
        buckets = bucket_of(distance, num_buckets=num_buckets, max_distance=max_distance, causal=causal)
        self.register_buffer("buckets", buckets, persistent=False)

    def between(self, mask: Mask, queries: int, keys: int) -> Tensor:
        """Return (queries + keys - 1,) int64 buckets of all distances in increasing order."""
        return self.buckets[self.longest - mask.start - queries : self.longest - 1 - mask.start + keys]

    def table(self, mask: Mask, query: Tensor, keys: int) -> Tensor:
        """Compute (batch or 1, heads, queries, keys) biases in the dtype of ``query``, -inf where masked.

        Computed once for all layers, without gradient. Rows of queries that see no key are not masked.
        """
        queries = query.shape[-2]
        name = ("relative_bias", self, str(queries), str(keys), query.dtype)  # sizes may be symbols without a hash
        return mask.once(name, lambda: self._table(mask, query, keys))

    @torch.no_grad()
    def _table(self, mask: Mask, query: Tensor, keys: int) -> Tensor:
        queries = query.shape[-2]
        biases = self.embedding.weight[self.between(mask, queries, keys)].to(query.dtype)  # (distances, heads)
        # indexing instead of `unfold`, which would fix the sizes of an exported graph
        row = torch.arange(queries, device=query.device)[:, None]
        columns = torch.arange(keys, device=query.device) + (queries - 1 - row)
        table = biases.T[None, :, columns]  # (1, heads, queries, keys)
        allowed = mask.dense(FULL, queries, keys, query.device)
        if allowed is None:
            return table
        return table.masked_fill(~allowed & allowed.any(-1, keepdim=True), -torch.inf)


class BiasedDotProduct(nn.Module):
    """Attention ``softmax(query key^T + bias) value`` over the allowed keys; zeros for queries that see no key.

    Args:
        bias: biases, shared by the layers of a stack.
        dropout: dropout probability of the attention probabilities, in training; stores the table of probabilities.
        scaled: divide products by ``sqrt(head_dim)``; False in T5.
    """

    def __init__(self, bias: RelativeBias, *, dropout: float = 0.0, scaled: bool = False) -> None:
        super().__init__()
        self.bias = bias
        self.sparse = FULL
        self.dropout = dropout
        self.scaled = scaled

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """Attend from (batch, heads, queries, head_dim) queries to (batch, heads, keys, head_dim) keys and values."""
        queries, keys = query.shape[-2], key.shape[-2]
        dropout = self.dropout if self.training else 0.0
        scale = query.shape[-1] ** -0.5 if self.scaled else 1.0
        table, weight = self.bias.table(mask, query, keys), self.bias.embedding.weight
        needs_grad = torch.is_grad_enabled() and weight.requires_grad
        if needs_grad and not dropout and query.device.type == "cpu":
            buckets = self.bias.between(mask, queries, keys)
            values: Tensor = _Attend.apply(query, key, value, weight, table, buckets, scale)
        else:
            if needs_grad:
                table = _TableWithGrad.apply(weight, table, self.bias.between(mask, queries, keys))
            values = attend(query, key, value, table=table, dropout=dropout, scale=scale)
        return zero_fully_masked(values, mask.dense(self.sparse, queries, keys, query.device))

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}, scaled={self.scaled}"


class _TableWithGrad(torch.autograd.Function):
    """Identity on the table with a gradient for the biases; saves no tensors, so that layers can be recomputed."""

    @staticmethod
    def forward(ctx: FunctionContext, weight: Tensor, table: Tensor, buckets: Tensor) -> Tensor:
        ctx.shape, ctx.dtype, ctx.buckets = weight.shape, weight.dtype, buckets
        return table.view_as(table)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, gradient: Tensor) -> tuple[Tensor | None, ...]:
        by_distance = _sum_diagonals(gradient.sum(0, dtype=ctx.dtype))
        return by_distance.new_zeros(ctx.shape).index_add_(0, ctx.buckets, by_distance.T), None, None


class _Attend(torch.autograd.Function):
    """Attention with a learned bias that recomputes scores in the backward pass (flash attention, Dao et al. 2022).

    PyTorch on a CPU stores scores and probabilities of every layer if the bias needs a gradient.
    """

    @staticmethod
    def forward(
        ctx: FunctionContext,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        weight: Tensor,
        table: Tensor,
        buckets: Tensor,
        scale: float,
    ) -> Tensor:
        values = F.scaled_dot_product_attention(query, key, value, attn_mask=table, scale=scale)
        ctx.save_for_backward(query, key, value, values, table)
        ctx.shape, ctx.dtype, ctx.buckets, ctx.scale = weight.shape, weight.dtype, buckets, scale
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, values, table = ctx.saved_tensors
        d_query, d_key, d_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        heads, queries, keys = query.shape[1], query.shape[2], key.shape[2]
        by_distance = torch.zeros(heads, queries + keys - 1, dtype=ctx.dtype, device=query.device)
        wide = torch.promote_types(query.dtype, torch.float32)
        for rows, chunk in _parts(query.shape, keys):
            bias = table[rows if len(table) > 1 else slice(None), :, chunk]
            scores = (query[rows, :, chunk] @ key[rows].mT).to(wide).mul_(ctx.scale).add_(bias)
            weights = scores.softmax(-1)
            upstream = gradient[rows, :, chunk]
            d_value[rows] += weights.to(upstream.dtype).mT @ upstream
            d_scores = (upstream @ value[rows].mT).to(wide)
            d_scores -= (upstream * values[rows, :, chunk]).sum(-1, keepdim=True, dtype=wide)
            d_scores *= weights
            narrow = d_scores.to(query.dtype)
            d_query[rows, :, chunk] = (narrow @ key[rows]).mul_(ctx.scale)
            d_key[rows] += (narrow.mT @ query[rows, :, chunk]).mul_(ctx.scale)
            last = queries - chunk.start  # the last query has the smallest distances
            count = d_scores.shape[2]
            by_distance[:, last - count : last - 1 + keys] += _sum_diagonals(d_scores.sum(0, dtype=ctx.dtype))
        d_weight = by_distance.new_zeros(ctx.shape).index_add_(0, ctx.buckets, by_distance.T)
        return d_query, d_key, d_value, d_weight, None, None, None


def _parts(shape: torch.Size, keys: int) -> Iterator[tuple[slice, slice]]:
    """Yield slices of batch rows and queries with about `_SCORES` scores."""
    batch, heads, queries, _ = shape
    rows = max(1, _SCORES // (heads * queries * keys))
    count = queries if rows > 1 else max(1, min(queries, _SCORES // (heads * keys)))
    for row in range(0, batch, rows):
        for first in range(0, queries, count):
            yield slice(row, row + rows), slice(first, first + count)


def _sum_diagonals(table: Tensor) -> Tensor:
    """Map (heads, queries, keys) to (heads, queries + keys - 1) sums over diagonals, smallest distance first."""
    heads, queries, keys = table.shape
    # shift each row by one more column, so that diagonals become columns
    skewed = F.pad(table.flip(1), (0, queries)).flatten(1)[:, :-queries]
    return skewed.view(heads, queries, queries + keys - 1).sum(1)


class RelativeBiasAttentionConfig(AttentionSettings):
    """Config of full attention with learned relative position biases (Raffel et al. 2020).

    Each head learns one bias a bucket, shared by all layers; set positions to ``none``.
    """

    kind: Literal["relative_bias"] = "relative_bias"
    num_buckets: int = Field(
        default=32, ge=2, description="buckets of distances, half of them exact; an encoder uses half for each side"
    )
    max_distance: int = Field(default=128, ge=2, description="greater distances share the last bucket")
    is_positional: ClassVar[bool] = True

    def build(self, spec: AttentionSpec) -> nn.Module:
        sides = 1 if spec.causal else 2
        exact = self.num_buckets // sides // 2
        if not exact:
            raise UserError(f"num_buckets={self.num_buckets} must be at least 4 in a bidirectional model; increase it")
        if self.max_distance <= exact:
            raise UserError(
                f"max_distance={self.max_distance} must be at least {exact + 1}, beyond the {exact} exact buckets of "
                f"num_buckets={self.num_buckets}; increase it"
            )
        return spec.multi_head(BiasedDotProduct(self._bias(spec), dropout=spec.dropout, scaled=spec.scaled))

    def _bias(self, spec: AttentionSpec) -> RelativeBias:
        if spec.shared_with is not None:
            return cast(RelativeBias, spec.shared_with.get_submodule("kernel.bias"))
        return RelativeBias(
            spec.num_attention_heads,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
            max_position_embeddings=spec.max_position_embeddings,
            causal=spec.causal,
        )
