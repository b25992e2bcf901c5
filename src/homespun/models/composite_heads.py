"""Heads around another head: over chunks of a long text, concatenated layers or a learned sum of layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from homespun.attention.full import DotProduct
from homespun.attention.multi_head import MultiHeadAttention
from homespun.config import Tree
from homespun.errors import UserError
from homespun.models.backbone import Backbone, Encoder
from homespun.models.heads import HeadSettings, Reader, TokenTaskHeadConfig
from homespun.models.sequence_heads import (
    FeedForwardHeadConfig,
    HasHiddenSize,
    SequenceHead,
    SequenceHeadConfig,
    gather_chunks,
)
from homespun.nn.layers import Dropout, FeedForward, Layer, PreNorm
from homespun.nn.masks import Mask

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


LayerCount = Annotated[int, Field(ge=1, description="layers, from the last, whose vectors the head reads side by side")]
Layers = Annotated[
    Literal["last", "mix", "normalised_mix"],
    Field(description="the head reads the last layer, or a sum of all whose weights it learns; normalised before that"),
]


def _one_stack(backbone: Backbone, setting: str, remedy: str) -> Encoder:
    if backbone.has_decoder:
        raise UserError(
            f"{setting} reads the layers of one stack, and this model is an encoder with a decoder; set {remedy}"
        )
    return backbone.stacks[0]


def _checked_stack(backbone: Backbone, layers: int) -> Encoder:
    stack = _one_stack(backbone, f"last_layers={layers}", "objective.last_layers=1")
    if layers > len(stack.layers):
        raise UserError(f"last_layers={layers}, but the model has {len(stack.layers)} layers; give that many at most")
    return stack


@dataclass(frozen=True)
class ConcatLastLayers:
    """A `Reader`: (batch, seq, layers * hidden), the last layer's vectors at the end."""

    layers: int

    def __call__(self, backbone: Backbone, input_ids: Tensor, **context: Tensor) -> Tensor:
        return _checked_stack(backbone, self.layers).last_layers(self.layers, input_ids, **context)


@dataclass(frozen=True)
class AllLayers:
    """A `Reader`: (batch, seq, count * hidden), what enters the layers first.

    That is left out where it has another width: a recurrent stack may have narrower words.
    """

    def __call__(self, backbone: Backbone, input_ids: Tensor, **context: Tensor) -> Tensor:
        count = num_mixed_layers(backbone)
        return backbone.stacks[0].last_layers(count, input_ids, **context)


def num_mixed_layers(backbone: Backbone) -> int:
    """Number of layer outputs that are mixed.

    Raises:
        UserError: the backbone is not one stack.
    """
    stack = _one_stack(backbone, "a mix of layers", "objective.layers=last")
    return len(stack.layers) + (stack.entering_size == stack.hidden_size)


@dataclass(frozen=True)
class ConcatenatedWidth:
    """Width and norm settings that a sequence head is built from."""

    hidden_size: int
    layer_norm_eps: float


class LastLayersHeadConfig(HeadSettings):
    """A head on wider vectors; fine-tuning makes it of `objective.last_layers` and the configured head."""

    kind: Literal["last_layers"] = "last_layers"
    layers: LayerCount = 4
    head: Annotated[SequenceHeadConfig | ChunkPoolHeadConfig, Field(discriminator="kind")] = FeedForwardHeadConfig()

    @property
    def reader(self) -> Reader:
        """The last layers."""
        return ConcatLastLayers(self.layers)

    def build(self, backbone: Backbone) -> nn.Module:
        """The head alone.

        Raises:
            UserError: the backbone has fewer layers, or is not one stack.
        """
        encoder = _checked_stack(backbone, self.layers)
        return self.head.build(ConcatenatedWidth(self.layers * encoder.hidden_size, encoder.layer_norm_eps))


class ScalarMix(nn.Module):
    """``gamma * sum_j softmax(s)_j h_j``; all weights are the same at first, and gamma is 1.

    Args:
        count: vectors that are mixed.
        norm: of each vector before.
    """

    def __init__(self, count: int, norm: nn.Module) -> None:
        super().__init__()
        self.scalars, self.gamma = nn.Parameter(torch.zeros(count)), nn.Parameter(torch.ones(()))
        self.norm = norm

    @property
    def weights(self) -> Tensor:
        """(count,), which sum to 1."""
        return self.scalars.softmax(0)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., count * size), concatenated -> (..., size)."""
        layers = self.norm(hidden.view(*hidden.shape[:-1], len(self.scalars), -1))
        return self.gamma * torch.einsum("j,...jh->...h", self.weights.to(layers.dtype), layers)


class MixedHead(nn.Module):
    """A head on the mixed layers."""

    def __init__(self, mix: ScalarMix, head: nn.Module) -> None:
        super().__init__()
        self.mix, self.head = mix, head

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None, *chunks: Tensor | None) -> Tensor:
        """(..., count * size) -> the output of the head for (..., size)."""
        result: Tensor = self.head(self.mix(hidden), attention_mask, *chunks)
        return result


class ScalarMixHeadConfig(HeadSettings):
    """A head on mixed layers; fine-tuning makes it of `objective.layers` and the configured head."""

    kind: Literal["scalar_mix"] = "scalar_mix"
    normalised: bool = Field(default=False, description="each layer's vectors are normalised first, without weights")
    head: Annotated[SequenceHeadConfig | ChunkPoolHeadConfig | TokenTaskHeadConfig, Field(discriminator="kind")] = (
        FeedForwardHeadConfig()
    )

    @property
    def reader(self) -> Reader:
        """All layers."""
        return AllLayers()

    @property
    def task_kind(self) -> str:
        """Kind of the head that reads the mix."""
        return self.head.kind

    def build(self, backbone: Backbone) -> MixedHead:
        """The mix and its head.

        Raises:
            UserError: the backbone is not one stack.
        """
        size, eps = backbone.hidden_size, backbone.layer_norm_eps
        norm = nn.LayerNorm(size, eps=eps, elementwise_affine=False) if self.normalised else nn.Identity()
        return MixedHead(ScalarMix(num_mixed_layers(backbone), norm), self.head.build(backbone))


def on_layers(head: HeadSettings, layers: Layers, last_layers: int = 1) -> HeadSettings:
    """The config of a head that reads the layers of an objective.

    Raises:
        UserError: both a mix and the last layers are configured.
    """
    if layers == "last":
        if last_layers == 1:
            return head
        return LastLayersHeadConfig.model_validate({"layers": last_layers, "head": head})
    if last_layers > 1:
        raise UserError(
            f"objective.layers={layers} reads all layers as a sum, and objective.last_layers={last_layers} some of "
            f"them side by side; leave one of them out"
        )
    return ScalarMixHeadConfig.model_validate({"normalised": layers == "normalised_mix", "head": head})


def summarize_mix(head: nn.Module | None) -> Tree:
    """For result files: ``layers`` {weights, gamma} of a head that reads a mix, else nothing."""
    if not isinstance(head, MixedHead):
        return {}
    return {"layers": {"weights": head.mix.weights.tolist(), "gamma": head.mix.gamma.item()}}
