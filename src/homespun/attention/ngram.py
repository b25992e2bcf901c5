"""ProphetNet's self-attention: a main stream, and prediction streams that no other stream sees (Qi et al. 2020)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from homespun.attention.multi_head import AttentionSpec, inner_size, split_heads
from homespun.attention.relative_bias import bucket_of
from homespun.config import Config
from homespun.errors import UserError
from homespun.nn.layers import Dropout
from homespun.nn.masks import Mask
from homespun.nn.patterns import FULL


class NgramAttention(nn.Module):
    """A causal main stream with biases of distance, and any number of prediction streams (Qi et al. 2020, section 3.2).

    Prediction stream ``s`` sees, at position ``t``, the main stream up to ``t - s`` (and its first token), and itself
    at ``t``. The bias of a distance is a linear function of the query's vector, one for each bucket and head. The main
    stream alone is an ordinary decoder.

    Args:
        num_buckets: of distances, half of which are exact and half grow with the logarithm.
        relative_max_distance: distances from here on share the last bucket.
        scaled: scores are divided by ``sqrt(head_size)``; the biases of distance are not.

    Others are those of `MultiHeadAttention`.

    Raises:
        ValueError: in `forward`, for a mask that is not causal.
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
        """(batch, streams, seq, hidden) -> the same, the main stream first; (batch, seq, hidden) is that one alone."""
        if not mask.causal:
            raise ValueError("n-gram attention without a causal mask: its distances are to earlier tokens")
        if hidden.dim() == 3:
            return self._attend(hidden[:, None], mask)[:, 0]
        return self._attend(hidden, mask)

    def _attend(self, hidden: Tensor, mask: Mask) -> Tensor:
        streams, queries = hidden.shape[1:3]
        query, key, value = (self._heads(part(hidden)) for part in (self.query, self.key, self.value))
        query = query * self.scale
        biases = self.relative(hidden).view(*hidden.shape[:3], self.num_buckets, self.num_attention_heads)
        biases = biases.permute(0, 4, 1, 2, 3)  # (batch, heads, streams, seq, buckets)
        keys, values = key[:, :, 0], value[:, :, 0]  # (batch, heads, keys, head_dim), which all streams see
        if mask.cache is not None:
            keys, values = mask.cache.extend(self, keys, values)
        seen = self._seen(mask, queries, keys)

        scores = query[:, :, 0] @ keys.mT + self._of_distances(biases[:, :, 0], mask, keys.shape[2], ahead=0)
        weights = self.dropout(_masked(scores, seen).softmax(-1))
        # a token that may see nothing gives zeros
        mixed = [torch.where(seen.any(-1, keepdim=True), weights @ values, 0.0)[:, :, None]]
        if streams > 1:
            mixed.append(
                self._predict(query[:, :, 1:], key[:, :, 1:], value[:, :, 1:], biases[:, :, 1:], keys, values, mask)
            )
        together = torch.cat(mixed, 2)  # (batch, heads, streams, seq, head_dim)
        result: Tensor = self.output(together.permute(0, 2, 3, 1, 4).flatten(3))  # (batch, streams, seq, hidden)
        return result

    def _predict(
        self, query: Tensor, key: Tensor, value: Tensor, biases: Tensor, keys: Tensor, values: Tensor, mask: Mask
    ) -> Tensor:
        """(batch, heads, streams, seq, head_dim) of the prediction streams.

        ``query``, ``key`` and ``value`` are their own, ``keys`` and ``values`` those of the main stream.
        """
        streams, queries, main = query.shape[2], query.shape[3], keys.shape[2]

        def build() -> Tensor:
            asking = torch.arange(mask.start, mask.start + queries, device=keys.device)[:, None]
            place = torch.arange(main, device=keys.device)
            behind = torch.arange(streams, device=keys.device)[:, None, None]
            return self._seen(mask, queries, keys)[:, :, None] & ((place <= asking - behind) | (place == 0))

        seen = mask.once(("n-gram streams", streams, queries, main), build)  # (batch or 1, 1, streams, seq, keys)
        scores = (query.flatten(2, 3) @ keys.mT).view(*query.shape[:-1], main)
        scores = _masked(scores + self._of_distances(biases, mask, main, ahead=1), seen)
        own = (query * key).sum(-1, keepdim=True) + biases[..., :1]  # at its own place the distance is 0
        weights = self.dropout(torch.cat([scores, own], -1).softmax(-1))
        of_main = weights[..., :-1].flatten(2, 3) @ values
        result: Tensor = of_main.view_as(value) + weights[..., -1:] * value
        return result

    def _of_distances(self, biases: Tensor, mask: Mask, keys: int, *, ahead: int) -> Tensor:
        """(..., seq, buckets) -> (..., seq, keys), for queries that stand ``ahead`` of their places."""
        queries = biases.shape[-2]

        def build() -> Tensor:
            place = torch.arange(mask.start + ahead, mask.start + ahead + queries, device=biases.device)
            distance = torch.arange(keys, device=biases.device) - place[:, None]
            return bucket_of(
                distance, num_buckets=self.num_buckets, max_distance=self.relative_max_distance, causal=True
            )

        name = "distance buckets", self.num_buckets, self.relative_max_distance, queries, keys, ahead
        buckets = mask.once(name, build)  # (seq, keys)
        return biases.gather(-1, buckets.expand(*biases.shape[:-1], keys))

    def _seen(self, mask: Mask, queries: int, keys: Tensor) -> Tensor:
        """(batch or 1, 1, seq, keys) bool: what the main stream sees of itself."""
        seen = mask.dense(self.sparse, queries, keys.shape[2], keys.device)
        if seen is None:  # the newest token sees all
            return torch.ones(1, 1, queries, keys.shape[2], dtype=torch.bool, device=keys.device)
        return seen

    def _heads(self, vectors: Tensor) -> Tensor:
        """(batch, streams, seq, width) -> (batch, heads, streams, seq, head_dim)."""
        batch, streams, seq = vectors.shape[:3]
        heads = split_heads(vectors.flatten(1, 2), self.num_attention_heads)
        return heads.reshape(batch, self.num_attention_heads, streams, seq, -1)

    def extra_repr(self) -> str:
        return f"num_buckets={self.num_buckets}, relative_max_distance={self.relative_max_distance}"


def _masked(scores: Tensor, seen: Tensor) -> Tensor:
    # the least number and not -inf: a row of those would be NaN
    return scores.masked_fill(~seen, torch.finfo(scores.dtype).min)


class NgramAttentionConfig(Config):
    """Every token sees the earlier ones, with a bias of distance made from its vector (Qi et al. 2020). Causal only.

    `EncoderDecoderConfig.ngram` adds prediction streams.
    """

    kind: Literal["ngram"] = "ngram"
    num_buckets: int = Field(default=32, ge=2, description="of distances; the first half of them one distance each")
    relative_max_distance: int = Field(default=128, ge=2, description="from here on all distances are one")
    supports_packing: ClassVar[bool] = True
    is_positional: ClassVar[bool] = True

    @model_validator(mode="after")
    def _reaches(self) -> NgramAttentionConfig:
        if self.relative_max_distance <= self.num_buckets // 2:
            raise ValueError(
                f"relative_max_distance={self.relative_max_distance} lies within the {self.num_buckets // 2} exact "
                f"buckets of num_buckets={self.num_buckets}; give more distance or fewer buckets"
            )
        return self

    def build(self, spec: AttentionSpec) -> nn.Module:
        if not spec.causal:
            raise UserError("ngram attention is causal only: its distances are to earlier tokens; set causal: true")
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
