"""The configs of positions: where a token stands, and how its vector is told.

``projectable``: a projection of the embeddings can be applied in advance to what they add: a learned table, or nothing.
``is_positional``: they tell positions apart.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt
from torch import nn

from homespun.config import Config
from homespun.errors import UserError
from homespun.nn.positions import AxialPositions, LearnedPositions, NoPositions, SinusoidalPositions
from homespun.nn.rotary import Rotary

Theta = Annotated[float, Field(gt=1)]


class LearnedPositionsConfig(Config):
    """One learned vector a position; ``offset`` unused rows come first (RoBERTa: padding id + 1)."""

    kind: Literal["learned"] = "learned"
    projectable: ClassVar[bool] = True
    is_positional: ClassVar[bool] = True
    offset: int = Field(default=0, ge=0)

    def build(self, max_position_embeddings: int, embedding_size: int) -> nn.Module:
        return LearnedPositions(max_position_embeddings, embedding_size, offset=self.offset)


class SinusoidalPositionsConfig(Config):
    """Fixed sines and cosines (Vaswani et al. 2017)."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    projectable: ClassVar[bool] = False
    is_positional: ClassVar[bool] = True
    halves: bool = Field(default=False, description="all sines before all cosines (PEGASUS), not by turns")

    def build(self, max_position_embeddings: int, embedding_size: int) -> nn.Module:
        return SinusoidalPositions(max_position_embeddings, embedding_size, halves=self.halves)


class AxialPositionsConfig(Config):
    """Learned vectors of the rows and columns of a grid, for long inputs (Reformer)."""

    kind: Literal["axial"] = "axial"
    projectable: ClassVar[bool] = False
    is_positional: ClassVar[bool] = True
    shape: tuple[PositiveInt, PositiveInt] = Field(
        description="rows and columns; their product is at least max_position_embeddings"
    )
    sizes: tuple[PositiveInt, PositiveInt] = Field(
        description="widths of their vectors; they sum to the width of the embeddings"
    )

    def build(self, max_position_embeddings: int, embedding_size: int) -> nn.Module:
        return AxialPositions(max_position_embeddings, embedding_size, shape=self.shape, sizes=self.sizes)


class NoPositionsConfig(Config):
    """No position embeddings, for attention with relative positions (T5, DeBERTa)."""

    kind: Literal["none"] = "none"
    projectable: ClassVar[bool] = True
    is_positional: ClassVar[bool] = False

    def build(self, max_position_embeddings: int, embedding_size: int) -> nn.Module:
        return NoPositions(max_position_embeddings)


class RotaryPositionsConfig(Config):
    """Rotary positions: queries and keys are rotated, nothing is added to embeddings (Su et al. 2021)."""

    kind: Literal["rotary"] = "rotary"
    projectable: ClassVar[bool] = True
    is_positional: ClassVar[bool] = True
    theta: Theta | list[Theta] = Field(
        default=10_000.0, description="base of the wavelengths; one number, or one a layer (ModernBERT)"
    )

    def build(self, max_position_embeddings: int, embedding_size: int) -> nn.Module:
        return NoPositions(max_position_embeddings)

    def rotations(self, layers: int, max_position_embeddings: int) -> list[Callable[[int], Rotary]]:
        """For each layer, width of a head -> what rotates its queries and keys; layers of one base share a table.

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
