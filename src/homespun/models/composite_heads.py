"""Heads that wrap another head: over chunks of a long text, concatenated layers, or a learned sum of layers."""

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
    mean_token,
)
from homespun.nn.layers import Dropout, FeedForward, Layer, PreNorm
from homespun.nn.masks import Mask

_MAX_HEADS = 8


class ChunkPoolHead(nn.Module):
    """Transformer layers over the features of the chunks of a text, then mean and classifier.

    After ToBERT (Pappagari et al. 2019), with position embeddings of chunks, pre-norm layers and the features of a
    sequence head.

    Args:
        head: features of a chunk, and classifier.
        chunks: maximum number of chunks of a text.
        layers: number of transformer layers.
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
                wire(MultiHeadAttention(width, math.gcd(width, _MAX_HEADS), DotProduct())),
                wire(FeedForward(width, 4 * width, nn.GELU())),
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None, chunks: Tensor | None = None) -> Tensor:
        """Compute (texts, labels) logits; without ``chunks`` every sequence is a text of one chunk.

        Raises:
            UserError: a text has too many chunks.
        """
        features = self.head.features(hidden, attention_mask)  # (batch, width)
        if chunks is None:
            chunks = torch.arange(features.shape[0], device=features.device)[:, None]  # len() is fixed by export
        if chunks.shape[1] > self.places.num_embeddings:
            raise UserError(
                f"a text has {chunks.shape[1]} chunks, but the head has at most {self.places.num_embeddings}"
            )
        values, keep = gather_chunks(features, chunks)  # (texts, chunks, width)
        values = values + self.places.weight[: chunks.shape[1]]
        mask = Mask(keep)
        for layer in self.layers:
            values = layer(values, mask)
        pooled = mean_token(self.norm(values), keep)  # (texts, width)
        return self.head.classifier(self.head.dropout(pooled))


class ChunkPoolHeadConfig(HeadSettings):
    """Config of `ChunkPoolHead`, made in fine-tuning from `data.truncation.kind=chunk_pool` and its head."""

    kind: Literal["chunk_pool"] = "chunk_pool"
    head: SequenceHeadConfig = FeedForwardHeadConfig()
    chunks: Annotated[int, Field(ge=1)] = 8
    layers: Annotated[int, Field(ge=1)] = 1

    @property
    def pipeline(self) -> str:
        return self.head.pipeline

    def build(self, backbone: HasHiddenSize) -> ChunkPoolHead:
        return ChunkPoolHead(self.head.build(backbone), chunks=self.chunks, layers=self.layers)


LayerCount = Annotated[
    int, Field(ge=1, description="number of last layers whose hidden states are concatenated for the head")
]
Layers = Annotated[
    Literal["last", "mix", "normalised_mix"],
    Field(description="the head reads the last layer or a learned sum of all layers, optionally normalised"),
]


def _one_stack(backbone: Backbone, setting: str, remedy: str) -> Encoder:
    if backbone.has_decoder:
        raise UserError(f"{setting} needs a model of one stack, not an encoder-decoder; set {remedy}")
    return backbone.stacks[0]


def _checked_stack(backbone: Backbone, layers: int) -> Encoder:
    stack = _one_stack(backbone, f"last_layers={layers}", "objective.last_layers=1")
    if layers > len(stack.layers):
        raise UserError(f"last_layers={layers} must be at most the model's {len(stack.layers)} layers")
    return stack


@dataclass(frozen=True)
class ConcatLastLayers:
    """`Reader` of the last layers, (batch, seq, layers * hidden)."""

    layers: int

    def __call__(self, backbone: Backbone, input_ids: Tensor, **context: Tensor) -> Tensor:
        return _checked_stack(backbone, self.layers).last_layers(self.layers, input_ids, **context)


def all_layers(backbone: Backbone, input_ids: Tensor, **context: Tensor) -> Tensor:
    """`Reader` of the input of the layers and all layers, (batch, seq, count * hidden).

    The input is excluded if its width differs from the layers, as in some recurrent stacks.
    """
    return backbone.stacks[0].last_layers(num_mixed_layers(backbone), input_ids, **context)


def num_mixed_layers(backbone: Backbone) -> int:
    """Number of hidden states that `all_layers` concatenates. Raises `UserError` for an encoder-decoder."""
    stack = _one_stack(backbone, "a mix of layers", "objective.layers=last")
    return len(stack.layers) + (stack.entering_size == stack.hidden_size)


@dataclass(frozen=True)
class ConcatenatedWidth:
    """Width and norm settings that a sequence head is built from."""

    hidden_size: int
    layer_norm_eps: float


class LastLayersHeadConfig(HeadSettings):
    """Config of a head on concatenated layers, made in fine-tuning from `objective.last_layers` and its head."""

    kind: Literal["last_layers"] = "last_layers"
    layers: LayerCount = 4
    head: Annotated[SequenceHeadConfig | ChunkPoolHeadConfig, Field(discriminator="kind")] = FeedForwardHeadConfig()

    @property
    def reader(self) -> Reader:
        return ConcatLastLayers(self.layers)

    @property
    def pipeline(self) -> str:
        return self.head.pipeline

    def build(self, backbone: Backbone) -> nn.Module:
        """Build the sequence head.

        Raises:
            UserError: the backbone has fewer layers, or is an encoder-decoder.
        """
        encoder = _checked_stack(backbone, self.layers)
        return self.head.build(ConcatenatedWidth(self.layers * encoder.hidden_size, encoder.layer_norm_eps))


class ScalarMix(nn.Module):
    """Learned sum of layers ``gamma * sum_j softmax(s)_j h_j`` (Peters et al. 2018, equation 1).

    The weights belong to the head, so that they train on a frozen backbone whose layers are cached.

    Args:
        count: number of layers.
        norm: norm of each layer.
    """

    def __init__(self, count: int, norm: nn.Module) -> None:
        super().__init__()
        self.scalars, self.gamma = nn.Parameter(torch.zeros(count)), nn.Parameter(torch.ones(()))
        self.norm = norm

    @property
    def weights(self) -> Tensor:
        """(count,) weights with sum 1."""
        return self.scalars.softmax(0)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (..., count * size) to (..., size)."""
        layers = self.norm(hidden.view(*hidden.shape[:-1], len(self.scalars), -1))
        return self.gamma * torch.einsum("j,...jh->...h", self.weights.to(layers.dtype), layers)


class MixedHead(nn.Module):
    """Head on a `ScalarMix` of layers."""

    def __init__(self, mix: ScalarMix, head: nn.Module) -> None:
        super().__init__()
        self.mix, self.head = mix, head

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None, *chunks: Tensor | None) -> Tensor:
        """Apply the head to the mix of (..., count * size) hidden states."""
        return self.head(self.mix(hidden), attention_mask, *chunks)


class ScalarMixHeadConfig(HeadSettings):
    """Config of `MixedHead`, made in fine-tuning from `objective.layers` and the configured head."""

    kind: Literal["scalar_mix"] = "scalar_mix"
    normalised: bool = Field(default=False, description="normalise each layer first, without weights")
    head: Annotated[SequenceHeadConfig | ChunkPoolHeadConfig | TokenTaskHeadConfig, Field(discriminator="kind")] = (
        FeedForwardHeadConfig()
    )

    @property
    def reader(self) -> Reader:
        return all_layers

    @property
    def task_kind(self) -> str:
        return self.head.kind

    @property
    def pipeline(self) -> str | None:
        return self.head.pipeline

    def build(self, backbone: Backbone) -> MixedHead:
        """Build the mix and its head; raises `UserError` for an encoder-decoder."""
        size, eps = backbone.hidden_size, backbone.layer_norm_eps
        norm = nn.LayerNorm(size, eps=eps, elementwise_affine=False) if self.normalised else nn.Identity()
        return MixedHead(ScalarMix(num_mixed_layers(backbone), norm), self.head.build(backbone))


def on_layers(head: HeadSettings, layers: Layers, last_layers: int = 1) -> HeadSettings:
    """Build the config of a head on the configured layers.

    Raises:
        UserError: both ``layers`` and ``last_layers`` are set.
    """
    if layers == "last":
        if last_layers == 1:
            return head
        return LastLayersHeadConfig.model_validate({"layers": last_layers, "head": head})
    if last_layers > 1:
        raise UserError(
            f"objective.layers={layers} and objective.last_layers={last_layers} exclude each other; remove one of them"
        )
    return ScalarMixHeadConfig.model_validate({"normalised": layers == "normalised_mix", "head": head})


def summarize_mix(head: nn.Module | None) -> Tree:
    """Return ``layers`` of ``result.json``: weights and gamma of a `MixedHead`; empty for other heads."""
    if not isinstance(head, MixedHead):
        return {}
    return {"layers": {"weights": head.mix.weights.tolist(), "gamma": head.mix.gamma.item()}}
