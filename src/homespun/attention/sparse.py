"""Sparse attention: unions of window, band and block patterns, global tokens, and separate global projections."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from homespun.attention.blocked import Blocked, attend_from_global
from homespun.attention.multi_head import MAX_DRAWN, AttentionSettings, AttentionSpec, of_layer, of_layers, split_heads
from homespun.config import Config
from homespun.errors import UserError
from homespun.nn.masks import GlobalTokens, Mask, zero_fully_masked
from homespun.nn.patterns import Band, Blocks, BlockTable, Global, Pattern, Sparse, Window


class GlobalAttention(nn.Module):
    """Sparse multi-head attention with separate projections of global tokens (Beltagy et al. 2020, section 3.1).

    All tokens attend to their patterns and to global tokens through ``query``, ``key`` and ``value``; global tokens
    attend to all tokens through ``query_global``, ``key_global`` and ``value_global``. Does not support a cache.

    Args:
        sparse: patterns and global tokens.
        dropout: dropout probability of the attention probabilities, in training.
    """

    def __init__(self, hidden_size: int, num_attention_heads: int, sparse: Sparse, *, dropout: float = 0.0) -> None:
        super().__init__()
        if sparse.global_tokens is None:
            raise ValueError("GlobalAttention needs sparse.global_tokens")
        self.num_attention_heads = num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.query_global = nn.Linear(hidden_size, hidden_size)
        self.key_global = nn.Linear(hidden_size, hidden_size)
        self.value_global = nn.Linear(hidden_size, hidden_size)
        self.output = nn.Linear(hidden_size, hidden_size)
        local = dataclasses.replace(sparse, global_tokens=dataclasses.replace(sparse.global_tokens, queries=False))
        self.sparse = sparse
        self.kernel = Blocked(local, dropout=dropout)

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """Map (batch, seq, hidden) to (batch, seq, hidden)."""
        mask.refuse_cache("attention with global projections")
        query, key, value = (self._heads(part(hidden)) for part in (self.query, self.key, self.value))
        values: Tensor = self.kernel(query, key, value, mask).transpose(1, 2).flatten(2)  # (batch, seq, hidden)
        batch, length, width = hidden.shape
        global_tokens = mask.find_global_tokens(self.sparse.global_tokens, batch, length, hidden.device)
        if global_tokens is not None:
            index = global_tokens.index[..., None].expand(-1, -1, width)
            query = self._heads(self.query_global(hidden.gather(1, index)))  # (batch, heads, n, head_dim)
            found = self._attend_from_global(query, hidden, mask, global_tokens).transpose(1, 2).flatten(2)
            if global_tokens.real is not None:
                found = torch.where(global_tokens.real[..., None], found, values.gather(1, index))
            values = values.scatter(1, index, found.to(values.dtype))
        return self.output(values)

    def _attend_from_global(self, query: Tensor, hidden: Tensor, mask: Mask, global_tokens: GlobalTokens) -> Tensor:
        """Transform (batch, heads, n, head_dim) queries of global tokens, keeping the shape, over all keys."""
        dropout = self.kernel.dropout if self.training else 0.0
        batch, heads, count, head_dim = query.shape
        if dropout or count >= head_dim:
            key, value = (self._heads(part(hidden)) for part in (self.key_global, self.value_global))
            return attend_from_global(query, key, value, mask, global_tokens, dropout)
        # q (x W) = (q W) x and p (x W) = (p x) W: project a few global tokens instead of all tokens, which saves two of
        # the fourteen matrix products of a layer
        keys, values = (part.weight.view(heads, head_dim, -1) for part in (self.key_global, self.value_global))
        projected = (query @ keys * head_dim**-0.5).flatten(1, 2)  # (batch, heads * n, hidden)
        scores = (projected @ hidden.transpose(1, 2)).view(batch, heads, count, -1)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        scores = scores + (query @ self.key_global.bias.view(heads, head_dim, 1)) * head_dim**-0.5
        table = mask.global_token_table(global_tokens, hidden.shape[1])
        if table is not None:
            scores = scores.masked_fill(~table, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1).to(hidden.dtype).flatten(1, 2)
        mixed = (weights @ hidden).view(batch, heads, count, -1) @ values.transpose(-1, -2)
        mixed = mixed + self.value_global.bias.view(heads, 1, head_dim)
        return zero_fully_masked(mixed, table)

    def _heads(self, hidden: Tensor) -> Tensor:
        return split_heads(hidden, self.num_attention_heads)


class PatternSettings(Config):
    """Base of the configs of patterns."""

    def of_layers(self, layers: Sequence[int]) -> PatternSettings:
        """Return the settings of a stack of these layers."""
        return self


class WindowConfig(PatternSettings):
    """Config of windows of ``radius`` tokens on each side, ``dilation`` positions apart.

    ``radius`` is half of Longformer's window size.
    """

    kind: Literal["window"] = "window"
    radius: int | list[int] = Field(default=64, description="tokens seen on each side; one number, or one a layer")
    dilation: int | list[int | list[int]] = Field(
        default=1, description="distance between seen tokens; one number, one a layer, or lists with one a head"
    )

    def of_layers(self, layers: Sequence[int]) -> WindowConfig:
        changed = {"radius": of_layers(self.radius, layers), "dilation": of_layers(self.dilation, layers)}
        return self.model_copy(update=changed)

    def build(self, spec: AttentionSpec) -> Pattern:
        radius = of_layer(self.radius, spec.layer, "radius")
        steps = self._dilation(spec)
        if radius < 1 or min(steps) < 1:
            raise UserError(f"radius={radius} and dilation={min(steps)} of a window must be at least 1")
        longest = spec.max_position_embeddings
        if max(steps) >= max(longest, 2):
            raise UserError(
                f"dilation={max(steps)} must be less than max_position_embeddings={longest}, or tokens see only "
                f"themselves; decrease it"
            )
        return Window(min(radius, longest), steps if len(set(steps)) > 1 else steps[:1])

    def _dilation(self, spec: AttentionSpec) -> tuple[int, ...]:
        entry = of_layer(self.dilation, spec.layer, "dilation")
        steps = (entry,) if isinstance(entry, int) else tuple(entry)
        heads = spec.num_attention_heads
        if len(steps) > 1 and len(steps) % heads == 0:  # ELECTRA's generator has fewer heads
            steps = steps[:: len(steps) // heads]
        if len(steps) not in (1, heads):
            raise UserError(
                f"dilation has {len(steps)} numbers in layer {spec.layer + 1} for "
                f"num_attention_heads={heads}; give one a head, or one number"
            )
        return steps


class BandConfig(PatternSettings):
    """Config of bands: the token itself and ``width - 1`` tokens before it (GPT-3)."""

    kind: Literal["band"] = "band"
    width: int = Field(default=128, ge=1)

    def build(self, spec: AttentionSpec) -> Pattern:
        return Band(min(self.width, spec.max_position_embeddings))


class BlocksConfig(PatternSettings):
    """Config of blocks: own block of ``size`` tokens, and neighbours ``before`` and ``after`` it (BigBird: 1 each)."""

    kind: Literal["blocks"] = "blocks"
    size: int = Field(default=64, ge=1)
    before: int = Field(default=1, ge=0)
    after: int = Field(default=1, ge=0)

    def build(self, spec: AttentionSpec) -> Pattern:
        return Blocks(*(min(number, spec.max_position_embeddings) for number in (self.size, self.before, self.after)))


class RandomBlocksConfig(PatternSettings):
    """Config of ``count`` random blocks of ``size`` tokens for each block and head (BigBird).

    Drawn from the model's seed among blocks that are not neighbours; fewer if there are not enough.
    """

    kind: Literal["random_blocks"] = "random_blocks"
    size: int = Field(default=64, ge=1)
    count: int = Field(default=3, ge=1)

    def build(self, spec: AttentionSpec) -> Pattern:
        longest = spec.max_position_embeddings
        size = min(self.size, longest)
        blocks = -(-longest // size)
        if spec.num_attention_heads * blocks**2 > MAX_DRAWN:
            raise UserError(
                f"random_blocks of size={size} need more than {MAX_DRAWN} random numbers for "
                f"max_position_embeddings={longest}; increase size"
            )
        return BlockTable.draw(
            size=size,
            count=min(self.count, blocks),
            blocks=blocks,
            heads=spec.num_attention_heads,
            away=2,
            seed=spec.layer_seed,
        )


class PermutedBlocksConfig(PatternSettings):
    """Config of ``blocks`` equal blocks, each of which sees one block a head (BlockBERT, Qiu et al. 2020, section 3).

    ``shifts`` has the distance of that block for each group of heads: with [0, 1] half of the heads see their own block
    and the others the next one.
    """

    kind: Literal["permuted_blocks"] = "permuted_blocks"
    blocks: int = Field(default=2, ge=1)
    shifts: list[int] = Field(default=[0, 1], min_length=1)

    def build(self, spec: AttentionSpec) -> Pattern:
        heads, longest = spec.num_attention_heads, spec.max_position_embeddings
        if self.blocks > longest:
            raise UserError(
                f"blocks={self.blocks} of permuted_blocks must be at most {longest}, max_position_embeddings"
            )
        shifts = [self.shifts[head * len(self.shifts) // heads] for head in range(heads)]
        table = tuple(tuple(((i + shift) % self.blocks,) for i in range(self.blocks)) for shift in shifts)
        return BlockTable(-(-longest // self.blocks), table)


PatternConfig = Annotated[
    WindowConfig | BandConfig | BlocksConfig | RandomBlocksConfig | PermutedBlocksConfig, Field(discriminator="kind")
]


class GlobalConfig(Config):
    """Config of tokens that see and are seen by all tokens, in addition to global tokens of the data."""

    first: int = Field(default=1, ge=0, description="tokens at the start of a document")
    positions: list[Annotated[int, Field(ge=0)]] = Field(
        default=[], description="positions of further tokens in a document, from 0"
    )
    block: int = Field(default=0, ge=0, description="size of the global first and last blocks (BigBird); 0: none")
    projections: bool = Field(default=False, description="separate projections of global tokens (Longformer)")

    def build(self, spec: AttentionSpec) -> Global:
        longest = spec.max_position_embeddings
        if self.first > longest:
            raise UserError(f"global_tokens.first={self.first} must be at most {longest}, max_position_embeddings")
        if outside := [position for position in self.positions if position >= longest]:
            raise UserError(
                f"global_tokens.positions={outside} exceed max_position_embeddings={longest}; they must be at most "
                f"{longest - 1}"
            )
        return Global(self.first, min(self.block, longest), positions=tuple(self.positions))


class SparseAttentionConfig(AttentionSettings):
    """Config of softmax attention over the union of ``patterns`` and ``global_tokens``.

    Windows, bands and blocks are limited to ``max_position_embeddings``.
    """

    kind: Literal["sparse"] = "sparse"
    patterns: list[PatternConfig] = Field(default=[WindowConfig()], min_length=1)
    global_tokens: GlobalConfig | None = None

    @property
    def num_global_tokens(self) -> int:
        return 0 if self.global_tokens is None else self.global_tokens.first

    def of_layers(self, layers: Sequence[int]) -> SparseAttentionConfig:
        return self.model_copy(update={"patterns": [pattern.of_layers(layers) for pattern in self.patterns]})

    def build(self, spec: AttentionSpec) -> nn.Module:
        spec.check_plain("sparse")
        patterns = tuple(pattern.build(spec) for pattern in self.patterns)
        global_tokens = None if self.global_tokens is None else self.global_tokens.build(spec)
        if global_tokens is None and all(pattern.is_empty for pattern in patterns):
            longest = spec.max_position_embeddings
            raise UserError(
                f"random_blocks are empty: all blocks of max_position_embeddings={longest} are neighbours; set size "
                f"to {(longest - 1) // 2} or less, or add another pattern"
            )
        sparse = Sparse(patterns, global_tokens)
        if self.global_tokens is not None and self.global_tokens.projections:
            spec.check_own_projections("sparse (global_tokens.projections)")
            return GlobalAttention(spec.hidden_size, spec.num_attention_heads, sparse, dropout=spec.dropout)
        return spec.multi_head(Blocked(sparse, dropout=spec.dropout))
