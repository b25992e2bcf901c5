"""Exact attention under a union of patterns: Longformer, BigBird, BlockBERT, dilated BERT, GPT-3's banded layers."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import nn

from homespun.config import Config
from homespun.errors import UserError
from homespun.models.attentions.shape import MOST_DRAWN, AttentionShape, of_layer
from homespun.nn.attention import MultiHeadAttention
from homespun.nn.global_attention import GlobalAttention
from homespun.nn.kernels.blocked import Blocked
from homespun.nn.patterns import Band, Blocks, Global, Pattern, PermutedBlocks, RandomBlocks, Sparse, Window

PerLayer = int | list[int]
"""One number for all layers, or one a layer."""


class WindowConfig(Config):
    """``radius`` tokens on each side (Longformer's window is twice that), ``dilation`` places apart."""

    kind: Literal["window"] = "window"
    radius: PerLayer = Field(default=64, description="tokens seen on each side; one number, or one a layer")
    dilation: int | list[int | list[int]] = Field(
        default=1, description="places between them; one number, or one a layer, or in a layer one a head"
    )

    def build(self, shape: AttentionShape) -> Pattern:
        radius = of_layer(self.radius, shape.layer, "radius")
        steps = self._dilation(shape)
        if radius < 1 or min(steps) < 1:
            raise UserError(f"a window needs a radius and a dilation of 1 or more, not {radius} and {min(steps)}")
        return Window(radius, steps if len(set(steps)) > 1 else steps[:1])

    def _dilation(self, shape: AttentionShape) -> tuple[int, ...]:
        if isinstance(self.dilation, int):
            return (self.dilation,)
        if shape.layer >= len(self.dilation):
            raise UserError(
                f"dilation has {len(self.dilation)} entries and there is a layer {shape.layer + 1}; "
                f"give one a layer, or one number"
            )
        entry = self.dilation[shape.layer]
        steps = (entry,) if isinstance(entry, int) else tuple(entry)
        heads = shape.num_attention_heads
        if len(steps) > 1 and len(steps) % heads == 0:  # ELECTRA's generator has fewer heads, and takes them evenly
            steps = steps[:: len(steps) // heads]
        if len(steps) not in (1, heads):
            raise UserError(
                f"dilation has {len(steps)} numbers in layer {shape.layer + 1} for "
                f"num_attention_heads={heads}; give one a head, or one number"
            )
        return steps


class BandConfig(Config):
    """The token itself and the ``width - 1`` before it: GPT-3's locally banded layers."""

    kind: Literal["band"] = "band"
    width: int = Field(default=128, ge=1)

    def build(self, shape: AttentionShape) -> Pattern:
        return Band(self.width)


class BlocksConfig(Config):
    """Blocks of ``size`` tokens: a token sees its own, ``before`` and ``after`` (BigBird's window is 1 and 1)."""

    kind: Literal["blocks"] = "blocks"
    size: int = Field(default=64, ge=1)
    before: int = Field(default=1, ge=0)
    after: int = Field(default=1, ge=0)

    def build(self, shape: AttentionShape) -> Pattern:
        return Blocks(self.size, self.before, self.after)


class RandomBlocksConfig(Config):
    """``count`` random blocks of ``size`` tokens for each block in each head: BigBird's random part.

    Drawn once from the model's seed, beyond the neighbouring blocks, for training and evaluation alike.
    """

    kind: Literal["random_blocks"] = "random_blocks"
    size: int = Field(default=64, ge=1)
    count: int = Field(default=3, ge=1)

    def build(self, shape: AttentionShape) -> Pattern:
        blocks = -(-shape.max_position_embeddings // self.size)
        if shape.num_attention_heads * blocks**2 > MOST_DRAWN:
            raise UserError(
                f"{blocks:,} random blocks of size={self.size} for max_position_embeddings="
                f"{shape.max_position_embeddings} are too many to be drawn; give larger blocks"
            )
        return RandomBlocks.draw(
            size=self.size,
            count=self.count,
            blocks=blocks,
            heads=shape.num_attention_heads,
            away=2,
            seed=shape.draw,
        )


class PermutedBlocksConfig(Config):
    """The longest input in ``blocks`` equal parts; a head sees from each part one other, by its permutation.

    ``shifts`` says how many parts on, a number a group of heads: [0, 1] gives the first half of the heads their own
    part and the second half the next one (BlockBERT; Qiu et al. 2020, section 3).
    """

    kind: Literal["permuted_blocks"] = "permuted_blocks"
    blocks: int = Field(default=2, ge=1)
    shifts: list[int] = Field(default=[0, 1], min_length=1)

    def build(self, shape: AttentionShape) -> Pattern:
        heads = shape.num_attention_heads
        shifts = [self.shifts[head * len(self.shifts) // heads] for head in range(heads)]
        permutations = tuple(tuple((i + shift) % self.blocks for i in range(self.blocks)) for shift in shifts)
        return PermutedBlocks(-(-shape.max_position_embeddings // self.blocks), permutations)


PatternConfig = Annotated[
    WindowConfig | BandConfig | BlocksConfig | RandomBlocksConfig | PermutedBlocksConfig, Field(discriminator="kind")
]


class GlobalConfig(Config):
    """Tokens that see all and are seen by all; tokens that the data chooses are global besides."""

    first: int = Field(default=1, ge=0, description="tokens at the start of a document")
    block: int = Field(default=0, ge=0, description="BigBird: the first and the last block of so many tokens; 0: none")
    projections: bool = Field(default=False, description="global tokens have their own projections (Longformer)")


class SparseAttentionConfig(Config):
    """Exact attention under the union of ``patterns``, and global tokens where ``everywhere`` is given."""

    kind: Literal["sparse"] = "sparse"
    patterns: list[PatternConfig] = Field(default=[WindowConfig()], min_length=1)
    everywhere: GlobalConfig | None = None
    separates_documents: ClassVar[bool] = True

    def build(self, shape: AttentionShape) -> nn.Module:
        shape.check_plain("sparse")
        if self.everywhere is None:
            sparse = Sparse(tuple(pattern.build(shape) for pattern in self.patterns))
        else:
            everywhere = Global(self.everywhere.first, self.everywhere.block)
            sparse = Sparse(tuple(pattern.build(shape) for pattern in self.patterns), everywhere)
            if self.everywhere.projections:
                return GlobalAttention(shape.hidden_size, shape.num_attention_heads, sparse, dropout=shape.dropout)
        kernel = Blocked(sparse, dropout=shape.dropout)
        return MultiHeadAttention(shape.hidden_size, shape.num_attention_heads, kernel, bias=shape.bias)
