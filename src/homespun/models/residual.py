"""The configs of residual wiring: how sublayers join the stream, and how a stack of layers is entered and run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import nn

from homespun.config import Config
from homespun.errors import UserError
from homespun.nn.dropout import Dropout
from homespun.nn.residual import Layer, LayerStack, PostNorm, PreNorm, SequentialStack
from homespun.nn.reversible import ReversibleLayer, ReversibleStack, ReversibleSublayer

_WRITING = ("sublayer.output.weight", "sublayer.outer.weight")  # what writes to the stream: attention, feed-forward


def output_weights(layers: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Weights of the last projection of each sublayer: what is added to the residual stream."""
    return [weight for layer in layers for name, weight in layer.named_parameters() if name.endswith(_WRITING)]


class PostResidualConfig(Config):
    """Normalise after the sum (BERT)."""

    kind: Literal["post"] = "post"

    def layer_size(self, hidden_size: int) -> int:
        """The width that layers work at."""
        return hidden_size

    def enters_unnormed(self, layer: int) -> bool:
        """True if the attention of a layer, counted from 0, reads the stream without a norm."""
        return False

    def wire(self, sublayer: nn.Module, norm: nn.Module, dropout: nn.Module) -> nn.Module:
        return PostNorm(sublayer, norm, dropout)

    def layer(self, attention: nn.Module, feedforward: nn.Module, cross_attention: nn.Module | None) -> nn.Module:
        return Layer(attention, feedforward, cross_attention)

    def initialise(self, layers: Sequence[nn.Module]) -> None:
        """Change what the layers of a new stack begin as: nothing."""

    def build_layer_stack(self) -> LayerStack:
        return SequentialStack()

    def final_norm(self, norm: nn.Module, dropout: float) -> nn.Module:
        return nn.Identity()


class PreResidualConfig(Config):
    """Normalise before the sublayer, and once more at the end of the stack (GPT-2)."""

    kind: Literal["pre"] = "pre"
    first_norm: bool = Field(default=True, description="normalise before the first attention too; ModernBERT does not")
    final_dropout: bool = Field(default=False, description="drop out after the last norm too (T5)")
    scaled_initialisation: bool = Field(
        default=False,
        description="what the sublayers add begins smaller, by the root of how many they are (GPT-2)",
    )

    def layer_size(self, hidden_size: int) -> int:
        """The width that layers work at."""
        return hidden_size

    def enters_unnormed(self, layer: int) -> bool:
        """True if the attention of a layer, counted from 0, reads the stream without a norm."""
        return not (layer or self.first_norm)

    def wire(self, sublayer: nn.Module, norm: nn.Module, dropout: nn.Module) -> nn.Module:
        return PreNorm(sublayer, norm, dropout)

    def layer(self, attention: nn.Module, feedforward: nn.Module, cross_attention: nn.Module | None) -> nn.Module:
        return Layer(attention, feedforward, cross_attention)

    def initialise(self, layers: Sequence[nn.Module]) -> None:
        """Change what the layers of a new stack begin as (Radford et al. 2019, section 2.3)."""
        if not self.scaled_initialisation:
            return
        writing = output_weights(layers)
        with torch.no_grad():
            for weight in set(writing):  # layers that share their weights are there several times
                weight.div_(math.sqrt(len(writing)))

    def build_layer_stack(self) -> LayerStack:
        return SequentialStack()

    def final_norm(self, norm: nn.Module, dropout: float) -> nn.Module:
        return nn.Sequential(norm, Dropout(dropout)) if self.final_dropout else norm


class ReversibleResidualConfig(Config):
    """Two streams whose activations the backward pass recomputes: memory does not grow with depth, a third more time.

    ``streams: split`` gives each stream half of ``hidden_size`` (Bierling 2024, section 4.3.3); ``copy`` gives each all
    of it, and heads twice that (Reformer). Normalised before the sublayer and once more at the end.
    """

    kind: Literal["reversible"] = "reversible"
    streams: Literal["split", "copy"] = "split"

    def layer_size(self, hidden_size: int) -> int:
        """The width that layers work at."""
        if self.streams == "copy":
            return hidden_size
        if hidden_size % 2:
            raise UserError(f"hidden_size={hidden_size} has no half for reversible streams; choose an even number")
        return hidden_size // 2

    def enters_unnormed(self, layer: int) -> bool:
        """True if the attention of a layer, counted from 0, reads the stream without a norm."""
        return False

    def wire(self, sublayer: nn.Module, norm: nn.Module, dropout: nn.Module) -> nn.Module:
        return ReversibleSublayer(sublayer, norm, dropout)

    def layer(self, attention: nn.Module, feedforward: nn.Module, cross_attention: nn.Module | None) -> nn.Module:
        return ReversibleLayer(attention, feedforward, cross_attention)

    def initialise(self, layers: Sequence[nn.Module]) -> None:
        """Change what the layers of a new stack begin as: nothing."""

    def build_layer_stack(self) -> LayerStack:
        return ReversibleStack(copies=2 if self.streams == "copy" else 1)

    def final_norm(self, norm: nn.Module, dropout: float) -> nn.Module:
        return nn.Sequential(norm, Dropout(dropout))


ResidualConfig = Annotated[
    PostResidualConfig | PreResidualConfig | ReversibleResidualConfig, Field(discriminator="kind")
]
