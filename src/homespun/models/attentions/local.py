"""Local attention in chunks: Reformer's other layers."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from homespun.config import Config
from homespun.models.attentions.shape import AttentionShape
from homespun.nn.kernels.chunks import Chunks, LocalAttention


class LocalAttentionConfig(Config):
    """A token sees its own chunk and the chunks around it; any length is filled up to whole chunks inside.

    As in `transformers`, the chunks of a row close to a ring where attention is not causal: the first looks back to the
    last (Kitaev et al. 2020).
    """

    kind: Literal["local"] = "local"
    chunk_length: int = Field(default=64, ge=1, description="tokens in a chunk")
    num_chunks_before: int = Field(default=1, ge=0, description="chunks seen on the left")
    num_chunks_after: int = Field(
        default=0, ge=0, description="chunks seen on the right, where attention is not causal"
    )
    separates_documents: ClassVar[bool] = True

    def build(self, shape: AttentionShape) -> nn.Module:
        shape.check_scaled("local")
        chunks = Chunks(self.chunk_length, self.num_chunks_before, 0 if shape.causal else self.num_chunks_after)
        chunks.check(shape.max_position_embeddings)
        kernel = LocalAttention(chunks, dropout=shape.dropout)
        return shape.multi_head(kernel, bias=False)
