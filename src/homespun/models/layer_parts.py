"""Configs of activation, positions and residual connections."""

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


def _check_activation(name: str) -> str:
    if name not in ACTIVATIONS:
        raise ValueError(f"unknown activation {name!r}{nearest(name, ACTIVATIONS)}")
    return name


Activation = Annotated[str, AfterValidator(_check_activation)]
Theta = Annotated[float, Field(gt=1)]
Rotation = Callable[[int], Rotary]
"""Width of a head -> `Rotary`."""


class PositionSettings(Config):
    """Base of the configs of positions.

    Attributes:
        projectable: a projection of the embeddings can be merged into the position embeddings.
        is_positional: the output depends on the order of tokens.
    """

    projectable: ClassVar[bool] = False
    is_positional: ClassVar[bool] = True

    @property
    def rows_before(self) -> int:
        """Number of unused rows before position 0."""
        return 0

    def build(self, max_position_embeddings: int, embedding_size: int) -> nn.Module:
        return NoPositions(max_position_embeddings)

    def of_layers(self, layers: Sequence[int]) -> PositionSettings:
        """Return the settings of a stack of these layers."""
        return self

    def rotations(self, layers: int, max_position_embeddings: int) -> Sequence[Rotation | None]:
        """Return the rotation of each layer; None: no rotation."""
        return [None] * layers


class LearnedPositionsConfig(PositionSettings):
    """Config of learned position embeddings after ``offset`` unused rows (RoBERTa: padding id + 1)."""

    kind: Literal["learned"] = "learned"
    projectable: ClassVar[bool] = True
    offset: int = Field(default=0, ge=0)

    @property
    def rows_before(self) -> int:
        return self.offset

    def build(self, max_position_embeddings: int, embedding_size: int) -> nn.Module:
        return LearnedPositions(max_position_embeddings, embedding_size, offset=self.offset)


class SinusoidalPositionsConfig(PositionSettings):
    """Config of sinusoidal position embeddings (Vaswani et al. 2017)."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    halves: bool = Field(default=False, description="all sines before all cosines (PEGASUS), not interleaved")
    ascending: bool = Field(
        default=False, description="lowest frequency first; for reversible layers of half the width"
    )

    def build(self, max_position_embeddings: int, embedding_size: int) -> nn.Module:
        return SinusoidalPositions(
            max_position_embeddings, embedding_size, halves=self.halves, ascending=self.ascending
        )


class AxialPositionsConfig(PositionSettings):
    """Config of axial position embeddings: learned rows and columns of a grid (Reformer)."""

    kind: Literal["axial"] = "axial"
    shape: tuple[PositiveInt, PositiveInt] = Field(
        description="rows and columns of the grid, at least max_position_embeddings positions"
    )
    sizes: tuple[PositiveInt, PositiveInt] = Field(
        description="widths of row and column embeddings, which sum to embedding_size"
    )

    def build(self, max_position_embeddings: int, embedding_size: int) -> nn.Module:
        return AxialPositions(max_position_embeddings, embedding_size, shape=self.shape, sizes=self.sizes)


class NoPositionsConfig(PositionSettings):
    """Config without position embeddings, for attention with relative positions (T5, DeBERTa)."""

    kind: Literal["none"] = "none"
    projectable: ClassVar[bool] = True
    is_positional: ClassVar[bool] = False


class RotaryPositionsConfig(PositionSettings):
    """Config of rotary positions of queries and keys (Su et al. 2021)."""

    kind: Literal["rotary"] = "rotary"
    projectable: ClassVar[bool] = True
    theta: Theta | list[Theta] = Field(
        default=10_000.0, description="base of the wavelengths; one number, or one a layer (ModernBERT)"
    )

    def of_layers(self, layers: Sequence[int]) -> RotaryPositionsConfig:
        theta = [self.theta[layer] for layer in layers] if isinstance(self.theta, list) else self.theta
        return self.model_copy(update={"theta": theta})

    def rotations(self, layers: int, max_position_embeddings: int) -> Sequence[Rotation]:
        """Return the rotation of each layer; layers with the same base share a table.

        Raises:
            UserError: fewer bases than layers, or an odd head size.
        """
        thetas = self.theta if isinstance(self.theta, list) else [self.theta] * layers
        if len(thetas) < layers:
            raise UserError(f"positions.theta has {len(thetas)} numbers for {layers} layers; give one a layer, or one")

        @cache
        def table(theta: float, head_size: int) -> Rotary:
            if head_size % 2:
                raise UserError(f"rotary positions need an even head size, not {head_size}; set model.head_size")
            return Rotary(head_size, max_position_embeddings, theta=theta)

        return [partial(table, theta) for theta in thetas[:layers]]


PositionsConfig = Annotated[
    LearnedPositionsConfig
    | SinusoidalPositionsConfig
    | AxialPositionsConfig
    | NoPositionsConfig
    | RotaryPositionsConfig,
    Field(discriminator="kind"),
]

_OUTPUTS = ("sublayer.output.weight", "sublayer.outer.weight")  # attention, feed-forward


def output_weights(layers: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Return the weights of the output projection of each sublayer."""
    return [weight for layer in layers for name, weight in layer.named_parameters() if name.endswith(_OUTPUTS)]


class ResidualSettings(Config):
    """Base of the configs of residual connections.

    Attributes:
        wire: ``(sublayer, norm, dropout)`` -> sublayer with residual connection.
        layer: ``(attention, feedforward, cross_attention)`` -> layer.
        reads_context: `Mask.context` is the input of keys and values as it is, without a norm.
    """

    wire: ClassVar[type[nn.Module]]
    layer: ClassVar[type[nn.Module]] = Layer
    reads_context: ClassVar[bool] = False

    def layer_size(self, hidden_size: int) -> int:
        """Return the width of the layers."""
        return hidden_size

    def enters_unnormed(self, layer: int) -> bool:
        """True if the attention of a layer (from 0) has no norm before it."""
        return False

    def initialise(self, layers: Sequence[nn.Module]) -> None:
        """Change the initial weights of the layers of a new stack."""

    def build_layer_stack(self) -> LayerStack:
        return SequentialStack()

    def final_norm(self, norm: nn.Module, dropout: float) -> nn.Module:
        """Return the module after the last layer."""
        return nn.Identity()


class PostResidualConfig(ResidualSettings):
    """Config of post-norm (BERT)."""

    kind: Literal["post"] = "post"
    wire: ClassVar[type[nn.Module]] = PostNorm
    reads_context: ClassVar[bool] = True


class PreResidualConfig(ResidualSettings):
    """Config of pre-norm with a final norm (GPT-2)."""

    kind: Literal["pre"] = "pre"
    wire: ClassVar[type[nn.Module]] = PreNorm
    first_norm: bool = Field(default=True, description="norm before the first attention (not in ModernBERT)")
    final_dropout: bool = Field(default=False, description="dropout after the final norm (T5)")
    scaled_initialisation: bool = Field(
        default=False, description="divide output projections by the root of their number (GPT-2)"
    )

    def enters_unnormed(self, layer: int) -> bool:
        return not (layer or self.first_norm)

    def initialise(self, layers: Sequence[nn.Module]) -> None:
        """Scale the output projections (Radford et al. 2019, section 2.3)."""
        if not self.scaled_initialisation:
            return
        weights = output_weights(layers)
        with torch.no_grad():
            for weight in set(weights):  # layers may share weights
                weight.div_(math.sqrt(len(weights)))

    def final_norm(self, norm: nn.Module, dropout: float) -> nn.Module:
        return nn.Sequential(norm, Dropout(dropout)) if self.final_dropout else norm


class ReversibleResidualConfig(ResidualSettings):
    """Config of reversible pre-norm layers: memory does not grow with depth, time grows by a third.

    ``streams: split``: each stream has half of ``hidden_size`` (Bierling 2024, section 4.3.3); ``copy``: each stream
    has ``hidden_size`` and heads read both (Reformer).
    """

    kind: Literal["reversible"] = "reversible"
    wire: ClassVar[type[nn.Module]] = ReversibleSublayer
    layer: ClassVar[type[nn.Module]] = ReversibleLayer
    streams: Literal["split", "copy"] = "split"

    def layer_size(self, hidden_size: int) -> int:
        if self.streams == "copy":
            return hidden_size
        if hidden_size % 2:
            raise UserError(f"hidden_size={hidden_size} must be even for reversible streams")
        return hidden_size // 2

    def build_layer_stack(self) -> LayerStack:
        return ReversibleStack(copies=2 if self.streams == "copy" else 1)

    def final_norm(self, norm: nn.Module, dropout: float) -> nn.Module:
        return nn.Sequential(norm, Dropout(dropout))


ResidualConfig = Annotated[
    PostResidualConfig | PreResidualConfig | ReversibleResidualConfig, Field(discriminator="kind")
]
