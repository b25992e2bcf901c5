"""LSH attention: Reformer's layers that see what hashes alike."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from homespun.config import Config
from homespun.models.attentions.shape import AttentionShape
from homespun.nn.kernels.chunks import Chunks
from homespun.nn.kernels.lsh import LSH, default_num_buckets, draw_rotations
from homespun.nn.shared_attention import SharedQueryKeyAttention


class LSHAttentionConfig(Config):
    """Queries and keys are one, and a token sees those whose hash is near its own (Kitaev et al. 2020).

    The hash of each layer is drawn once from the model's seed. Self-attention only: shared queries and keys have no
    meaning across two sequences. Where attention is causal, a token sees earlier ones of its own bucket only: across
    buckets, as `transformers` has it, later tokens would decide which earlier ones it sees.
    """

    kind: Literal["lsh"] = "lsh"
    chunk_length: int = Field(default=64, ge=1, description="tokens in a chunk of the row sorted by bucket")
    num_chunks_before: int = Field(default=1, ge=0, description="chunks seen on the left")
    num_chunks_after: int = Field(
        default=0, ge=0, description="chunks seen on the right, where attention is not causal"
    )
    num_hashes: int = Field(default=1, ge=1, description="rounds of hashing; more find more, and cost as much each")
    num_buckets: int | list[int] | None = Field(
        default=None, description="even, or even factors; not given: two a chunk of max_position_embeddings"
    )
    separates_documents: ClassVar[bool] = True

    def build(self, shape: AttentionShape) -> nn.Module:
        shape.check_plain("LSH")
        factors = self._factors(shape.max_position_embeddings)
        heads = shape.num_attention_heads
        rotations = draw_rotations(
            heads, shape.hidden_size // heads, self.num_hashes, factors, seed=shape.seed * 1009 + shape.layer
        )
        kernel = LSH(
            rotations,
            num_buckets=factors,
            chunks=Chunks(self.chunk_length, self.num_chunks_before, 0 if shape.causal else self.num_chunks_after),
            attend_across_buckets=not shape.causal,
            dropout=shape.dropout,
        )
        return SharedQueryKeyAttention(shape.hidden_size, heads, kernel)

    def _factors(self, max_position_embeddings: int) -> tuple[int, ...]:
        if self.num_buckets is None:
            return default_num_buckets(max_position_embeddings, self.chunk_length)
        return (self.num_buckets,) if isinstance(self.num_buckets, int) else tuple(self.num_buckets)
