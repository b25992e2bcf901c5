"""N-gram attention: a causal main stream and prediction streams (ProphetNet, Qi et al. 2020)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from homespun.attention.multi_head import AttentionSettings, AttentionSpec, inner_size, split_heads
from homespun.attention.relative_bias import bucket_of
from homespun.errors import UserError
from homespun.nn.layers import Dropout
from homespun.nn.masks import Mask, additive_mask
from homespun.nn.patterns import FULL


class NgramAttention(nn.Module):
    """Causal main stream and prediction streams with relative position biases (Qi et al. 2020, section 3.2).

    At position ``t``, prediction stream ``s`` attends to the main stream up to ``t - s``, to the first token, and to
    itself.
    Biases of distance buckets are a linear function of the query's hidden state. The main stream alone is an
    ordinary decoder.

    Args:
        num_buckets: number of distance buckets, half of them exact and half logarithmic.
        relative_max_distance: greater distances share the last bucket.
        scaled: divide scores, but not biases, by ``sqrt(head_size)``.

    Other arguments as in `MultiHeadAttention`.

    Raises:
        ValueError: `forward` with a mask that is not causal.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        *,
        num_buckets: int,
        relative_max_distance: int,
        dropout: float = 0.0,
        head_size: int = 0,
        bias: bool = True,
        scaled: bool = True,
    ) -> None:
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.num_buckets, self.relative_max_distance = num_buckets, relative_max_distance
        self.sparse = FULL
        width = inner_size(hidden_size, num_attention_heads, head_size)
        self.scale = (width // num_attention_heads) ** -0.5 if scaled else 1.0
        self.query = nn.Linear(hidden_size, width, bias=bias)
        self.key = nn.Linear(hidden_size, width, bias=bias)
        self.value = nn.Linear(hidden_size, width, bias=bias)
        self.output = nn.Linear(width, hidden_size, bias=bias)
        self.relative = nn.Linear(hidden_size, num_buckets * num_attention_heads, bias=bias)
        self.dropout = Dropout(dropout)

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """Transform (batch, streams, seq, hidden), main stream first, or (batch, seq, hidden) of the main stream."""
        if not mask.causal:
            raise ValueError("n-gram attention needs a causal mask")
        if hidden.dim() == 3:
            return self._attend(hidden[:, None], mask)[:, 0]
        return self._attend(hidden, mask)

    def _attend(self, hidden: Tensor, mask: Mask) -> Tensor:
        streams, queries = hidden.shape[1:3]
        query, key, value = (self._heads(part(hidden)) for part in (self.query, self.key, self.value))
        query = query * self.scale
        biases = self.relative(hidden).view(*hidden.shape[:3], self.num_buckets, self.num_attention_heads)
        biases = biases.permute(0, 4, 1, 2, 3)  # (batch, heads, streams, seq, buckets)
        keys, values = key[:, :, 0], value[:, :, 0]  # (batch, heads, keys, head_dim) of the main stream
        if mask.cache is not None:
            keys, values = mask.cache.extend(self, keys, values)
        allowed = self._allowed(mask, queries, keys)
        scores = query[:, :, 0] @ keys.mT + self._distance_bias(biases[:, :, 0], mask, keys.shape[2], ahead=0)
        weights = self.dropout((scores + additive_mask(allowed, scores.dtype)).softmax(-1))
        # zeros for queries that see no key
        outputs = [torch.where(allowed.any(-1, keepdim=True), weights @ values, 0.0)[:, :, None]]
        if streams > 1:
            query, key, value, biases = (part[:, :, 1:] for part in (query, key, value, biases))
            outputs.append(self._predict(query, key, value, biases, keys, values, mask))
        concatenated = torch.cat(outputs, 2)  # (batch, heads, streams, seq, head_dim)
        return self.output(concatenated.permute(0, 2, 3, 1, 4).flatten(3))  # (batch, streams, seq, hidden)

    def _predict(
        self, query: Tensor, key: Tensor, value: Tensor, biases: Tensor, keys: Tensor, values: Tensor, mask: Mask
    ) -> Tensor:
        """Compute the attention of the prediction streams, (batch, heads, streams, seq, head_dim).

        ``query``, ``key``, ``value`` are of the prediction streams, ``keys`` and ``values`` of the main stream.
        """
        streams, queries, main = query.shape[2], query.shape[3], keys.shape[2]

        def build() -> Tensor:
            query_position = torch.arange(mask.start, mask.start + queries, device=keys.device)[:, None]
            position = torch.arange(main, device=keys.device)
            stream = torch.arange(streams, device=keys.device)[:, None, None]
            visible = (position <= query_position - stream) | (position == 0)
            return self._allowed(mask, queries, keys)[:, :, None] & visible

        allowed = mask.once(("n-gram streams", streams, queries, main), build)  # (batch or 1, 1, streams, seq, keys)
        scores = (query.flatten(2, 3) @ keys.mT).view(*query.shape[:-1], main)
        scores = scores + self._distance_bias(biases, mask, main, ahead=1) + additive_mask(allowed, scores.dtype)
        self_score = (query * key).sum(-1, keepdim=True) + biases[..., :1]  # distance 0
        weights = self.dropout(torch.cat([scores, self_score], -1).softmax(-1))
        from_main = weights[..., :-1].flatten(2, 3) @ values
        return from_main.view_as(value) + weights[..., -1:] * value

    def _distance_bias(self, biases: Tensor, mask: Mask, keys: int, *, ahead: int) -> Tensor:
        """Map (..., seq, buckets) to (..., seq, keys), with ``ahead`` added to the positions of queries."""
        queries = biases.shape[-2]

        def build() -> Tensor:
            position = torch.arange(mask.start + ahead, mask.start + ahead + queries, device=biases.device)
            distance = torch.arange(keys, device=biases.device) - position[:, None]
            return bucket_of(
                distance, num_buckets=self.num_buckets, max_distance=self.relative_max_distance, causal=True
            )

        name = "distance buckets", self.num_buckets, self.relative_max_distance, queries, keys, ahead
        buckets = mask.once(name, build)  # (seq, keys)
        return biases.gather(-1, buckets.expand(*biases.shape[:-1], keys))

    def _allowed(self, mask: Mask, queries: int, keys: Tensor) -> Tensor:
        """Return (batch or 1, 1, seq, keys) bool mask of the main stream."""
        allowed = mask.dense(self.sparse, queries, keys.shape[2], keys.device)
        if allowed is None:
            return torch.ones(1, 1, queries, keys.shape[2], dtype=torch.bool, device=keys.device)
        return allowed

    def _heads(self, vectors: Tensor) -> Tensor:
        """Map (batch, streams, seq, width) to (batch, heads, streams, seq, head_dim)."""
        batch, streams, seq = vectors.shape[:3]
        heads = split_heads(vectors.flatten(1, 2), self.num_attention_heads)
        return heads.reshape(batch, self.num_attention_heads, streams, seq, -1)

    def extra_repr(self) -> str:
        return f"num_buckets={self.num_buckets}, relative_max_distance={self.relative_max_distance}"


class NgramAttentionConfig(AttentionSettings):
    """Config of causal attention with relative position biases from the query's hidden state (Qi et al. 2020).

    `EncoderDecoderConfig.ngram` adds prediction streams.
    """

    kind: Literal["ngram"] = "ngram"
    num_buckets: int = Field(default=32, ge=2, description="distance buckets; the first half has one distance each")
    relative_max_distance: int = Field(default=128, ge=2, description="greater distances share the last bucket")
    is_positional: ClassVar[bool] = True

    @model_validator(mode="after")
    def _check_distances(self) -> NgramAttentionConfig:
        if self.relative_max_distance <= self.num_buckets // 2:
            raise ValueError(
                f"relative_max_distance={self.relative_max_distance} must be greater than the "
                f"{self.num_buckets // 2} exact buckets of num_buckets={self.num_buckets}; change one of them"
            )
        return self

    def build(self, spec: AttentionSpec) -> nn.Module:
        if not spec.causal:
            raise UserError("ngram attention does not support causal=false; set causal: true")
        spec.check_own_projections("ngram")
        return NgramAttention(
            spec.hidden_size,
            spec.num_attention_heads,
            num_buckets=self.num_buckets,
            relative_max_distance=self.relative_max_distance,
            dropout=spec.dropout,
            head_size=spec.head_size,
            bias=spec.bias,
            scaled=spec.scaled,
        )
