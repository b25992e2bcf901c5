"""Configs of parts of layers: activation, positions, residual connections."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import AfterValidator, Field, PositiveInt
from torch import nn

from homespun.config import Config
from homespun.errors import UserError, nearest
from homespun.nn.layers import ACTIVATIONS, Dropout, Layer, LayerStack, PostNorm, PreNorm, SequentialStack
from homespun.nn.positions import AxialPositions, LearnedPositions, NoPositions, Rotary, SinusoidalPositions
from homespun.nn.reversible import ReversibleLayer, ReversibleStack, ReversibleSublayer


def _known(name: str) -> str:
    if name not in ACTIVATIONS:
        raise ValueError(f"unknown activation {name!r}{nearest(name, ACTIVATIONS)}")
    return name


Activation = Annotated[str, AfterValidator(_known)]
Theta = Annotated[float, Field(gt=1)]
Rotation = Callable[[int], Rotary]
"""Width of a head -> the module that rotates its queries and keys."""


class PositionSettings(Config):
    """Base of the configs of positions.

    Attributes:
        projectable: a projection of the embeddings can be applied in advance to what is added to them.
        is_positional: the output depends on the order of the tokens.
    """

    projectable: ClassVar[bool] = False
    is_positional: ClassVar[bool] = True

    @property
    def rows_before(self) -> int:
        """Unused rows of the table before position 0."""
        return 0

    def build(self, max_position_embeddings: int, embedding_size: int) -> nn.Module:
        return NoPositions(max_position_embeddings)

    def rotations(self, layers: int, max_position_embeddings: int) -> Sequence[Rotation | None]:
        """Rotation of each layer; None: its queries and keys are not rotated."""
        return [None] * layers


class LearnedPositionsConfig(PositionSettings):
    """One learned vector a position; ``offset`` unused rows come first (RoBERTa: padding id + 1)."""

    kind: Literal["learned"] = "learned"
    projectable: ClassVar[bool] = True
    offset: int = Field(default=0, ge=0)

    @property
    def rows_before(self) -> int:
        return self.offset

    def build(self, max_position_embeddings: int, embedding_size: int) -> nn.Module:
        return LearnedPositions(max_position_embeddings, embedding_size, offset=self.offset)


class SinusoidalPositionsConfig(PositionSettings):
    """Fixed sines and cosines (Vaswani et al. 2017)."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    halves: bool = Field(default=False, description="all sines before all cosines (PEGASUS), not by turns")

    def build(self, max_position_embeddings: int, embedding_size: int) -> nn.Module:
        return SinusoidalPositions(max_position_embeddings, embedding_size, halves=self.halves)


class AxialPositionsConfig(PositionSettings):
    """Learned vectors of the rows and columns of a grid, for long inputs (Reformer)."""

    kind: Literal["axial"] = "axial"
    shape: tuple[PositiveInt, PositiveInt] = Field(
        description="rows and columns; their product is at least max_position_embeddings"
    )
    sizes: tuple[PositiveInt, PositiveInt] = Field(
        description="widths of their vectors; they sum to the width of the embeddings"
    )

    def build(self, max_position_embeddings: int, embedding_size: int) -> nn.Module:
        return AxialPositions(max_position_embeddings, embedding_size, shape=self.shape, sizes=self.sizes)


class NoPositionsConfig(PositionSettings):
    """No position embeddings, for attention with relative positions (T5, DeBERTa)."""

    kind: Literal["none"] = "none"
    projectable: ClassVar[bool] = True
    is_positional: ClassVar[bool] = False


class RotaryPositionsConfig(PositionSettings):
    """Rotary positions: queries and keys are rotated, nothing is added to embeddings (Su et al. 2021)."""

    kind: Literal["rotary"] = "rotary"
    projectable: ClassVar[bool] = True
    theta: Theta | list[Theta] = Field(
        default=10_000.0, description="base of the wavelengths; one number, or one a layer (ModernBERT)"
    )

    def rotations(self, layers: int, max_position_embeddings: int) -> Sequence[Rotation]:
        """Rotation of each layer; layers of one base share a table.

        Raises:
            UserError: fewer bases than layers; when called, heads of an odd size.
        """
        given = self.theta if isinstance(self.theta, list) else [self.theta] * layers
        if len(given) < layers:
            raise UserError(f"positions.theta has {len(given)} numbers for {layers} layers; give one a layer, or one")

        @cache
        def table(theta: float, head_size: int) -> Rotary:
            if head_size % 2:
                raise UserError(f"rotary positions need heads of an even size, not {head_size}; set model.head_size")
            return Rotary(head_size, max_position_embeddings, theta=theta)

        return [partial(table, theta) for theta in given[:layers]]


PositionsConfig = Annotated[
    LearnedPositionsConfig
    | SinusoidalPositionsConfig
    | AxialPositionsConfig
    | NoPositionsConfig
    | RotaryPositionsConfig,
    Field(discriminator="kind"),
]

_WRITING = ("sublayer.output.weight", "sublayer.outer.weight")  # what writes to the stream: attention, feed-forward


def output_weights(layers: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Weights of the last projection of each sublayer: what is added to the residual stream."""
    return [weight for layer in layers for name, weight in layer.named_parameters() if name.endswith(_WRITING)]


class ResidualSettings(Config):
    """Base of the configs of residual connections; defaults of layers that run one after the other.

    Attributes:
        wire: ``(sublayer, norm, dropout)`` -> the sublayer with its residual connection.
        layer: ``(attention, feedforward, cross_attention)`` -> a layer.
    """

    wire: ClassVar[type[nn.Module]]
    layer: ClassVar[type[nn.Module]] = Layer

    def layer_size(self, hidden_size: int) -> int:
        """The width that layers work at."""
        return hidden_size

    def enters_unnormed(self, layer: int) -> bool:
        """True if the attention of a layer, counted from 0, reads the stream without a norm."""
        return False

    def initialise(self, layers: Sequence[nn.Module]) -> None:
        """Change the initial weights of the layers of a new stack; by default nothing."""

    def build_layer_stack(self) -> LayerStack:
        return SequentialStack()

    def final_norm(self, norm: nn.Module, dropout: float) -> nn.Module:
        """Module after the last layer."""
        return nn.Identity()


class PostResidualConfig(ResidualSettings):
    """Normalise after the sum (BERT)."""

    kind: Literal["post"] = "post"
    wire: ClassVar[type[nn.Module]] = PostNorm


class PreResidualConfig(ResidualSettings):
    """Normalise before the sublayer, and once more at the end of the stack (GPT-2)."""

    kind: Literal["pre"] = "pre"
    wire: ClassVar[type[nn.Module]] = PreNorm
    first_norm: bool = Field(default=True, description="normalise before the first attention too; ModernBERT does not")
    final_dropout: bool = Field(default=False, description="drop out after the last norm too (T5)")
    scaled_initialisation: bool = Field(
        default=False,
        description="what the sublayers add begins smaller, by the root of how many they are (GPT-2)",
    )

    def enters_unnormed(self, layer: int) -> bool:
        return not (layer or self.first_norm)

    def initialise(self, layers: Sequence[nn.Module]) -> None:
        """Scale what the sublayers add (Radford et al. 2019, section 2.3)."""
        if not self.scaled_initialisation:
            return
        writing = output_weights(layers)
        with torch.no_grad():
            for weight in set(writing):  # layers that share their weights are there several times
                weight.div_(math.sqrt(len(writing)))

    def final_norm(self, norm: nn.Module, dropout: float) -> nn.Module:
        return nn.Sequential(norm, Dropout(dropout)) if self.final_dropout else norm


class ReversibleResidualConfig(ResidualSettings):
    """Two streams whose activations the backward pass recomputes: memory does not grow with depth, a third more time.

    ``streams: split`` gives each stream half of ``hidden_size`` (Bierling 2024, section 4.3.3); ``copy`` gives each all
    of it, and heads twice that (Reformer). Normalised before the sublayer and once more at the end.
    """

    kind: Literal["reversible"] = "reversible"
    wire: ClassVar[type[nn.Module]] = ReversibleSublayer
    layer: ClassVar[type[nn.Module]] = ReversibleLayer
    streams: Literal["split", "copy"] = "split"

    def layer_size(self, hidden_size: int) -> int:
        if self.streams == "copy":
            return hidden_size
        if hidden_size % 2:
            raise UserError(f"hidden_size={hidden_size} has no half for reversible streams; choose an even number")
        return hidden_size // 2

    def build_layer_stack(self) -> LayerStack:
        return ReversibleStack(copies=2 if self.streams == "copy" else 1)

    def final_norm(self, norm: nn.Module, dropout: float) -> nn.Module:
        return nn.Sequential(norm, Dropout(dropout))


ResidualConfig = Annotated[
    PostResidualConfig | PreResidualConfig | ReversibleResidualConfig, Field(discriminator="kind")
]
