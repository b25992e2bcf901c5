"""The head over texts that are read in chunks: small transformer layers between what is found in each and the classes.

After ToBERT (Pappagari et al. 2019). Here each chunk gives the features of a head of
`homespun.models.sequence_heads`, the layers are pre-norm, and what they leave is averaged over the chunks: untrained,
they change little, and training begins near the mean of the chunks.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from homespun.attention.full import DotProduct
from homespun.attention.multi_head import MultiHeadAttention
from homespun.errors import UserError
from homespun.models.heads import HeadSettings
from homespun.models.sequence_heads import (
    FeedForwardHeadConfig,
    HasHiddenSize,
    SequenceHead,
    SequenceHeadConfig,
    gather_chunks,
)
from homespun.nn.elementwise import Dropout
from homespun.nn.feedforward import FeedForward
from homespun.nn.masks import Mask
from homespun.nn.residual import Layer, PreNorm

_MOST_HEADS = 8


class ChunkPoolHead(nn.Module):
    """Features of every chunk, with its place -> layers over the chunks of a text -> mean -> classifier.

    Args:
        head: gives the features of a chunk, and the classifier of what comes of them.
        chunks: the greatest number of chunks in a text.
        layers: how many transformer layers.
    """

    def __init__(self, head: SequenceHead, *, chunks: int, layers: int) -> None:
        super().__init__()
        width, dropout = head.classifier.in_features, head.dropout.p

        def wire(sublayer: nn.Module) -> PreNorm:
            return PreNorm(sublayer, nn.LayerNorm(width), Dropout(dropout))

        self.head = head
        self.places = nn.Embedding(chunks, width)
        self.layers = nn.ModuleList(
            Layer(
                wire(MultiHeadAttention(width, math.gcd(width, _MOST_HEADS), DotProduct())),
                wire(FeedForward(width, 4 * width, nn.GELU())),
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None, chunks: Tensor | None = None) -> Tensor:
        """(texts, labels) logits; every sequence is a text of one chunk where ``chunks`` is None.

        Raises:
            UserError: a text in more chunks than there are places.
        """
        features = self.head.features(hidden, attention_mask)  # (batch, width)
        if chunks is None:
            chunks = torch.arange(len(features), device=features.device)[:, None]
        if chunks.shape[1] > self.places.num_embeddings:
            raise UserError(
                f"a text in {chunks.shape[1]} chunks, where the model was made for {self.places.num_embeddings}; "
                f"give it that many at most"
            )
        values, keep = gather_chunks(features, chunks)  # (texts, chunks, width)
        values = values + self.places.weight[: chunks.shape[1]]
        mask = Mask(keep)
        for layer in self.layers:
            values = layer(values, mask)
        values = self.norm(values).masked_fill(~keep[..., None], 0.0)
        pooled = values.sum(dim=1) / keep.sum(dim=1, keepdim=True)  # (texts, width)
        logits: Tensor = self.head.classifier(self.head.dropout(pooled))
        return logits


class ChunkPoolHeadConfig(HeadSettings):
    """`ChunkPoolHead`; fine-tuning makes it of `data.truncation.kind=chunk_pool` and the head that was asked for."""

    kind: Literal["chunk_pool"] = "chunk_pool"
    head: SequenceHeadConfig = FeedForwardHeadConfig()
    chunks: Annotated[int, Field(ge=1)] = 8
    layers: Annotated[int, Field(ge=1)] = 1

    def build(self, backbone: HasHiddenSize) -> ChunkPoolHead:
        return ChunkPoolHead(self.head.build(backbone), chunks=self.chunks, layers=self.layers)
