"""LSH attention: Reformer's layers that see what hashes alike."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from homespun.config import Config
from homespun.errors import UserError
from homespun.models.attentions.shape import MOST_DRAWN, AttentionShape
from homespun.nn.attention import inner_size
from homespun.nn.kernels.chunks import Chunks
from homespun.nn.kernels.lsh import LSH, default_num_buckets, draw_rotations
from homespun.nn.shared_attention import SharedQueryKeyAttention


class LSHAttentionConfig(Config):
    """Queries and keys are one, and a token sees those whose hash is near its own (Kitaev et al. 2020).

    The hash of each layer is drawn once from the model's seed. Self-attention only: shared queries and keys have no
    meaning across two sequences. Where attention is causal, a token sees earlier ones of its own bucket only: across
    buckets, as `transformers` has it, later tokens decide which earlier ones it sees, which only a model that was
    trained so should have.
    """

    kind: Literal["lsh"] = "lsh"
    chunk_length: int = Field(default=64, ge=1, description="tokens in a chunk of the row sorted by bucket")
    num_chunks_before: int = Field(default=1, ge=0, description="chunks seen on the left")
    num_chunks_after: int = Field(
        default=0, ge=0, description="chunks seen on the right, where tokens see other buckets"
    )
    across_buckets: bool = Field(
        default=False,
        description="where attention is causal, tokens see earlier ones of other buckets too (checkpoints of Reformer)",
    )
    num_hashes: int = Field(default=1, ge=1, description="rounds of hashing; more find more, and cost as much each")
    num_buckets: int | list[int] | None = Field(
        default=None, description="even, or even factors; not given: two a chunk of max_position_embeddings"
    )
    separates_documents: ClassVar[bool] = True

    def build(self, shape: AttentionShape) -> nn.Module:
        shape.check_scaled("LSH")
        shape.check_own_projections("LSH")
        if self.across_buckets and not shape.causal:
            raise UserError("across_buckets is for causal models, the tokens of others always see so; leave it out")
        across = self.across_buckets or not shape.causal
        chunks = Chunks(self.chunk_length, self.num_chunks_before, self.num_chunks_after if across else 0)
        chunks.check(shape.max_position_embeddings)
        factors = self._factors(shape.max_position_embeddings)
        heads = shape.num_attention_heads
        size = inner_size(shape.hidden_size, heads, shape.head_size) // heads
        if heads * size * self.num_hashes * (sum(factors) // 2) > MOST_DRAWN:
            raise UserError(
                f"num_hashes={self.num_hashes} with num_buckets={list(factors)[:4]} want too many numbers to be drawn; "
                f"give fewer of either, or num_buckets as two factors"
            )
        rotations = draw_rotations(heads, size, self.num_hashes, factors, seed=shape.draw)
        kernel = LSH(
            rotations,
            num_buckets=factors,
            chunks=chunks,
            attend_across_buckets=across,
            dropout=shape.dropout,
        )
        return SharedQueryKeyAttention(shape.hidden_size, heads, kernel, head_size=shape.head_size)

    def _factors(self, max_position_embeddings: int) -> tuple[int, ...]:
        if self.num_buckets is None:
            return default_num_buckets(max_position_embeddings, self.chunk_length)
        return (self.num_buckets,) if isinstance(self.num_buckets, int) else tuple(self.num_buckets)
