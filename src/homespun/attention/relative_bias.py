"""Full attention with a learned bias for each bucket of relative position (T5)."""

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
from homespun.attention.multi_head import AttentionSpec
from homespun.config import Config
from homespun.errors import UserError
from homespun.nn.masks import Mask, zero_fully_masked
from homespun.nn.patterns import FULL
from homespun.nn.torch_private import FunctionContext

_SCORES = 2**19  # that the backward pass holds at once


def bucket_of(distance: Tensor, *, num_buckets: int, max_distance: int, causal: bool) -> Tensor:
    """The bucket of each relative position, key minus query (Raffel et al. 2020, section 2.1).

    The nearer half of the buckets has one position each, the others grow with the logarithm up to ``max_distance``, and
    the last has all beyond. Without causality half of all buckets are for later keys.
    """
    later = torch.zeros_like(distance)
    if not causal:
        num_buckets //= 2
        later = (distance > 0) * num_buckets
        distance = -distance.abs()
    distance = (-distance).clamp(min=0)
    exact = num_buckets // 2
    # rounded as in their implementation, since at its edges a bucket is a matter of the last bit
    ratio = torch.log(distance.clamp(min=exact).float() / exact) / math.log(max_distance / exact)
    far = (exact + (ratio * (num_buckets - exact)).long()).clamp(max=num_buckets - 1)
    return later + torch.where(distance < exact, distance, far)


class RelativeBias(nn.Module):
    """Bias of the scores of each head: (1, heads, queries, keys), constant along every diagonal, shared by all layers.

    Args:
        num_attention_heads: heads.
        num_buckets: numbers of each head.
        max_distance: positions beyond share the last bucket.
        max_position_embeddings: longest input.
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
        """(queries + keys - 1,) int64: the buckets of all distances, from the smallest."""
        return self.buckets[self.longest - mask.start - queries : self.longest - 1 - mask.start + keys]

    def table(self, mask: Mask, query: Tensor, keys: int) -> Tensor:
        """(batch or 1, heads, queries, keys) in the type of ``query``: the biases, -inf where masked.

        It has no graph, and is made once for all layers. A query that sees no key has zeros.
        """
        queries = query.shape[-2]
        name = ("relative_bias", self, str(queries), str(keys), query.dtype)  # sizes may be symbols, without a hash
        return mask.once(name, lambda: self._table(mask, query, keys))

    @torch.no_grad()
    def _table(self, mask: Mask, query: Tensor, keys: int) -> Tensor:
        queries = query.shape[-2]
        numbers = self.embedding.weight[self.between(mask, queries, keys)].to(query.dtype)  # (distances, heads)
        # not by `unfold`, which would fix the sizes of an exported graph
        first = torch.arange(queries, device=query.device)[:, None]
        places = torch.arange(keys, device=query.device) + (queries - 1 - first)
        table = numbers.T[None, :, places]  # (1, heads, queries, keys)
        allowed = mask.dense(FULL, queries, keys, query.device)
        if allowed is None:
            return table
        return table.masked_fill(~allowed & allowed.any(-1, keepdim=True), -torch.inf)


class BiasedDotProduct(nn.Module):
    """``softmax(query key^T + bias) value`` over the allowed keys; zeros for a query that sees none.

    Args:
        bias: shared by the layers of a stack.
        dropout: of the attention probabilities, in training; with it the table of probabilities is held.
        scaled: divide the products by ``sqrt(head_dim)``; T5 does not.
    """

    def __init__(self, bias: RelativeBias, *, dropout: float = 0.0, scaled: bool = False) -> None:
        super().__init__()
        self.bias = bias
        self.sparse = FULL
        self.dropout = dropout
        self.scaled = scaled

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """(batch, heads, queries, head_dim) from queries, and (batch, heads, keys, head_dim) keys and values."""
        queries, keys = query.shape[-2], key.shape[-2]
        dropout = self.dropout if self.training else 0.0
        scale = query.shape[-1] ** -0.5 if self.scaled else 1.0
        table, weight = self.bias.table(mask, query, keys), self.bias.embedding.weight
        learns = torch.is_grad_enabled() and weight.requires_grad
        if learns and not dropout and query.device.type == "cpu":
            buckets = self.bias.between(mask, queries, keys)
            values: Tensor = _Attend.apply(query, key, value, weight, table, buckets, scale)  # type: ignore[no-untyped-call]
        else:
            if learns:
                table = _Learned.apply(weight, table, self.bias.between(mask, queries, keys))  # type: ignore[no-untyped-call]
            values = attend(query, key, value, table=table, dropout=dropout, scale=scale)
        return zero_fully_masked(values, mask.dense(self.sparse, queries, keys, query.device))

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}, scaled={self.scaled}"


class _Learned(torch.autograd.Function):
    """The table, with a gradient for the biases.

    Nothing is saved that a backward pass would free, so that layers can be computed again.
    """

    @staticmethod
    def forward(ctx: FunctionContext, weight: Tensor, table: Tensor, buckets: Tensor) -> Tensor:
        ctx.shape, ctx.dtype, ctx.buckets = weight.shape, weight.dtype, buckets
        return table.view_as(table)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, gradient: Tensor) -> tuple[Tensor | None, ...]:
        found = _by_distance(gradient.sum(0, dtype=ctx.dtype))
        return found.new_zeros(ctx.shape).index_add_(0, ctx.buckets, found.T), None, None


class _Attend(torch.autograd.Function):
    """Attention under a learned table, without holding the probabilities of all queries.

    PyTorch on a CPU keeps scores and probabilities of every layer if the table needs a gradient. Here both passes
    compute them, as flash attention does (Dao et al. 2022), some queries at a time.
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
        found_query = torch.empty_like(query)
        found_key, found_value = torch.zeros_like(key), torch.zeros_like(value)
        heads, queries, keys = query.shape[1], query.shape[2], key.shape[2]
        by_distance = torch.zeros(heads, queries + keys - 1, dtype=ctx.dtype, device=query.device)
        wide = torch.promote_types(query.dtype, torch.float32)
        for rows, chunk in _parts(query.shape, keys):
            bias = table[rows if len(table) > 1 else slice(None), :, chunk]
            scores = (query[rows, :, chunk] @ key[rows].mT).to(wide).mul_(ctx.scale).add_(bias)
            shares = scores.softmax(-1)
            out = gradient[rows, :, chunk]
            found_value[rows] += shares.to(out.dtype).mT @ out
            through = (out @ value[rows].mT).to(wide)
            through -= (out * values[rows, :, chunk]).sum(-1, keepdim=True, dtype=wide)
            through *= shares
            narrow = through.to(query.dtype)
            found_query[rows, :, chunk] = (narrow @ key[rows]).mul_(ctx.scale)
            found_key[rows] += (narrow.mT @ query[rows, :, chunk]).mul_(ctx.scale)
            last = queries - chunk.start  # the smallest distances are those of the last query
            count = through.shape[2]
            by_distance[:, last - count : last - 1 + keys] += _by_distance(through.sum(0, dtype=ctx.dtype))
        weight = by_distance.new_zeros(ctx.shape).index_add_(0, ctx.buckets, by_distance.T)
        return found_query, found_key, found_value, weight, None, None, None


def _parts(shape: torch.Size, keys: int) -> Iterator[tuple[slice, slice]]:
    """Rows of the batch, and queries of them, with about `_SCORES` scores."""
    batch, heads, queries, _ = shape
    rows = max(1, _SCORES // (heads * queries * keys))
    count = queries if rows > 1 else max(1, min(queries, _SCORES // (heads * keys)))
    for row in range(0, batch, rows):
        for first in range(0, queries, count):
            yield slice(row, row + rows), slice(first, first + count)


def _by_distance(table: Tensor) -> Tensor:
    """(heads, queries, keys) -> (heads, queries + keys - 1): the sums along the diagonals, smallest distance first."""
    heads, queries, keys = table.shape
    # each row one place further to the right than the one above it: what was a diagonal is a column
    skewed = F.pad(table.flip(1), (0, queries)).flatten(1)[:, :-queries]
    return skewed.view(heads, queries, queries + keys - 1).sum(1)


class RelativeBiasAttentionConfig(Config):
    """Every token sees every token, with learned biases of distance added to the scores (Raffel et al. 2020).

    Each head learns one number a bucket, the same in all layers; set positions to ``none``.
    """

    kind: Literal["relative_bias"] = "relative_bias"
    num_buckets: int = Field(
        default=32, ge=2, description="the near half of one position each; in an encoder half of them for each side"
    )
    max_distance: int = Field(default=128, ge=2, description="tokens; what is further off is in the last bucket")
    supports_packing: ClassVar[bool] = True
    is_positional: ClassVar[bool] = True

    def build(self, spec: AttentionSpec) -> nn.Module:
        sides = 1 if spec.causal else 2
        exact = self.num_buckets // sides // 2
        if not exact:
            raise UserError(f"num_buckets={self.num_buckets} are too few for both sides; give at least 4")
        if self.max_distance <= exact:
            raise UserError(
                f"max_distance={self.max_distance} is not beyond the {exact} buckets of one position that "
                f"num_buckets={self.num_buckets} has; give at least {exact + 1}"
            )
        kernel = BiasedDotProduct(self._bias(spec), dropout=spec.dropout, scaled=spec.scaled)
        return spec.multi_head(kernel)

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
