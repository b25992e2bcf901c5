"""Attention in chunks: a chunk of queries sees its own chunk of keys and neighbouring ones.

Reformer's local attention cuts a row into chunks as it is, its LSH attention (`homespun.attention.lsh`) sorted by
bucket, once for each round of hashing. `Chunks` is shared by both.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.attention.full import attend
from homespun.attention.multi_head import AttentionSpec
from homespun.config import Config
from homespun.errors import UserError
from homespun.nn.masks import Mask


@dataclass(frozen=True)
class ChunkWindow:
    """Chunks of keys in the slots of each chunk's window.

    Args:
        source: (batch or 1, rounds * chunks, slots) int64: the chunk.
        wrapped: the same shape, bool: reached past an end of the row.
        chunks: lengths and neighbours.
    """

    source: Tensor
    wrapped: Tensor
    chunks: Chunks

    def windows(self, chunked: Tensor) -> Tensor:
        """(batch or 1, rounds * chunks, heads or 1, length) -> the same for keys: (..., slots * length)."""
        batch = max(len(chunked), len(self.source))
        rows = torch.arange(batch, device=chunked.device)[:, None, None]
        found = chunked.expand(batch, -1, -1, -1)[rows, self.source.expand(batch, -1, -1)]
        return found.transpose(2, 3).flatten(3)  # (batch, rounds * chunks, heads, slots * length)


@dataclass(frozen=True)
class Chunks:
    """Chunks of ``length`` tokens that see ``before`` chunks on their left and ``after`` on their right.

    As in `transformers` the chunks of a row form a ring: the first looks back to the last one, in several rounds to the
    last one of the round before. Only chunks with real tokens are in the ring, so that results do not depend on
    padding.

    Raises:
        UserError: a length below 1, or a negative number of neighbours.
    """

    length: int
    before: int = 1
    after: int = 0

    def __post_init__(self) -> None:
        if self.length < 1 or self.before < 0 or self.after < 0:
            raise UserError(
                f"chunk_length={self.length}, num_chunks_before={self.before}, num_chunks_after={self.after}: "
                f"a chunk needs 1 token or more, and 0 neighbours or more on each side"
            )

    def within(self, tokens: int) -> Chunks:
        """The same for rows of ``tokens`` positions: a chunk is at most as long as a row."""
        return dataclasses.replace(self, length=max(1, min(self.length, tokens)))

    def check(self, longest: int) -> None:
        """Refuse more neighbours than rows of at most ``longest`` tokens have chunks.

        Raises:
            UserError: there are more.
        """
        count = -(-longest // self.length)
        if max(self.before, self.after) > count:
            raise UserError(
                f"num_chunks_before={self.before}, num_chunks_after={self.after}: chunk_length={self.length} makes "
                f"{count} chunks of max_position_embeddings={longest}; give {count} or less"
            )

    @property
    def slots(self) -> int:
        """Chunks of keys in a window."""
        return self.before + 1 + self.after

    def neighbours(self, real: Tensor, tokens: int, rounds: int = 1) -> ChunkWindow:
        """Windows of rows of ``tokens`` positions, of which the first ``real`` (batch or 1,) are real."""
        count = -(-tokens // self.length)
        device = real.device
        own = (-(-real // self.length)).clamp(min=1)[:, None, None, None]  # chunks in the row's ring
        turn = torch.arange(rounds, device=device)[:, None, None]
        chunk = torch.arange(count, device=device)[:, None]
        other = chunk + torch.arange(-self.before, self.after + 1, device=device)  # (chunks, slots)
        ring = (turn * own + other) % (rounds * own)  # (batch, rounds, chunks, slots)
        source = ring // own * count + ring % own
        source = torch.where(chunk < own, source, turn * count + chunk)  # chunks of padding keep to themselves
        wrapped = ((chunk < own) & ((other < 0) | (other >= own))).expand_as(source)
        return ChunkWindow(source.flatten(1, 2), wrapped.flatten(1, 2), self)

    def split(self, places: Tensor, fill: int) -> Tensor:
        """(batch or 1, rounds, heads or 1, tokens) -> (batch or 1, rounds * chunks, heads or 1, length).

        The last chunk of a round is filled up with ``fill``.
        """
        filled = F.pad(places, (0, -places.shape[-1] % self.length), value=fill)
        chunked = filled.view(*filled.shape[:-1], -1, self.length).transpose(2, 3)
        return chunked.flatten(1, 2)  # (batch, rounds * chunks, heads, length)

    def place_of(self, inverse: Tensor, batch: int, heads: int) -> Tensor:
        """Index of each token's result among those of all chunks.

        Args:
            inverse: (batch or 1, rounds, heads or 1, tokens) int64: its position in the round.

        Returns:
            (batch, tokens, heads, rounds) int64 into ``batch * rounds * chunks * heads * length``.
        """
        rounds, tokens = inverse.shape[1], inverse.shape[-1]
        count, device = -(-tokens // self.length), inverse.device
        turn = torch.arange(batch * rounds, device=device).view(batch, rounds, 1, 1)
        chunk = turn * count + inverse // self.length
        head = torch.arange(heads, device=device)[:, None]
        place = (chunk * heads + head) * self.length + inverse % self.length  # (batch, rounds, heads, tokens)
        return place.permute(0, 3, 2, 1)


def as_rows(vectors: Tensor) -> Tensor:
    """(batch, heads, tokens, head_dim) -> (batch * tokens * heads, head_dim), without a copy of a projection."""
    return vectors.transpose(1, 2).reshape(-1, vectors.shape[-1])


def row_index(places: Tensor, vectors: Tensor) -> Tensor:
    """Indices in ``as_rows(vectors)`` of the vectors at these positions, (batch * n, heads, m) int64.

    Args:
        places: (batch or 1, n, heads or 1, m) int64. Positions past the last token get its index: mask their results.
        vectors: (batch, heads, tokens, head_dim).
    """
    batch, heads, tokens, _ = vectors.shape
    row = torch.arange(batch, device=places.device)[:, None, None, None]
    head = torch.arange(heads, device=places.device)[:, None]
    return ((row * tokens + places.clamp(max=tokens - 1)) * heads + head).flatten(0, 1)


def take(rows: Tensor, index: Tensor) -> Tensor:
    """(n, head_dim) rows at an index of any shape -> (*index.shape, head_dim)."""
    return rows.index_select(0, index.flatten()).view(*index.shape, rows.shape[-1])


def lookup(table: Tensor, tokens: Tensor, beyond: int) -> Tensor:
    """Look up ``table`` (batch, tokens) at ``tokens`` (batch or 1, ...); ``beyond`` is the value past its end."""
    longer = F.pad(table, (0, 1), value=beyond)
    rows = torch.arange(len(table), device=table.device).view(-1, *[1] * (tokens.dim() - 1))
    return longer[rows, tokens]


def allowed(query: Tensor, key: Tensor, mask: Mask, *, tokens: int) -> Tensor:
    """Mask of the keys in its window that each token of a chunk may see, by padding, causality and documents.

    Args:
        query: (batch or 1, n, heads or 1, length) int64; ``tokens`` itself stands for no token.
        key: (batch or 1, n, heads or 1, slots * length), likewise.

    Returns:
        bool, broadcast to (batch or 1, n, heads or 1, length, slots * length).
    """
    key_real = key < tokens if mask.keep is None else lookup(mask.keep, key, False)
    table = key_real[..., None, :].expand(*key_real.shape[:-1], query.shape[-1], -1)
    if mask.causal:
        table = table & (key[..., None, :] <= query[..., :, None])
    if mask.documents is not None:
        own, other = (lookup(mask.documents, part, -1) for part in (query, key))
        table = table & (own[..., :, None] == other[..., None, :])
    return table


def bias(table: Tensor, itself: Tensor, own: float, *, batch: int, dtype: torch.dtype) -> Tensor:
    """(batch * n, heads or 1, length, slots * length) added to scores: 0 where ``table`` is true, ``own`` at the token
    itself, else minus infinity. Every row has a finite value, so that none gives NaN.
    """
    scores = torch.zeros(table.shape, dtype=dtype, device=table.device).masked_fill_(~table, -torch.inf)
    scores.masked_fill_(itself, own)
    return scores.expand(batch, *scores.shape[1:]).flatten(0, 1)


class LocalAttention(nn.Module):
    """Exact attention inside chunks and their neighbours (Reformer's local layers; Kitaev et al. 2020).

    Causal attention does not close the ring. ``dropout`` is of the attention probabilities, in training.
    """

    def __init__(self, chunks: Chunks, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.chunks = chunks
        self.dropout = dropout

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """(batch, heads, seq, head_dim) each, of one sequence -> the same shape.

        Raises:
            UserError: the numbers of queries and keys differ, or there is a cache.
        """
        mask.refuse_cache("local attention")
        if query.shape != key.shape:
            raise UserError(
                f"local attention is self-attention: {query.shape[-2]} queries and {key.shape[-2]} keys; "
                f"use full attention across sequences"
            )
        batch, heads, tokens, head_dim = query.shape
        places, windows, scores = mask.once(("local", self.chunks, query.dtype), lambda: self._table(query, mask))
        own, window = row_index(places, query), row_index(windows, key)
        values = attend(
            take(as_rows(query), own),
            take(as_rows(key), window),
            take(as_rows(value), window),
            table=scores,
            dropout=self.dropout if self.training else 0.0,
        )  # (batch * chunks, heads, length, head_dim)
        joined = values.transpose(1, 2).reshape(batch, -1, heads, head_dim)  # (batch, seq and filling, heads, head_dim)
        return joined[:, :tokens].transpose(1, 2)  # (batch, heads, seq, head_dim)

    def _table(self, query: Tensor, mask: Mask) -> tuple[Tensor, Tensor, Tensor]:
        tokens = query.shape[-2]
        chunks = self.chunks.within(tokens)
        place = torch.arange(tokens, device=query.device)
        # up to the last real token
        real = (place[None] if mask.keep is None else torch.where(mask.keep, place, -1)).amax(-1) + 1
        neighbours = chunks.neighbours(real, tokens)
        places = chunks.split(place[None, None, None], tokens)
        windows = neighbours.windows(places)
        table = allowed(places, windows, mask, tokens=tokens)
        itself = places[..., :, None] == windows[..., None, :]
        if mask.causal:
            # in a ring of few chunks a chunk may stand before itself, or not, as the length of the row has it
            inside = ~neighbours.wrapped.repeat_interleave(chunks.length, -1)[:, :, None, None, :]
            table, itself = table & inside, itself & inside
        return places, windows, bias(table, itself, 0.0, batch=len(query), dtype=query.dtype)

    def extra_repr(self) -> str:
        return f"{self.chunks}, dropout={self.dropout}"


class LocalAttentionConfig(Config):
    """A token sees its own chunk and neighbouring ones; without causality they form a ring, see `Chunks`."""

    kind: Literal["local"] = "local"
    chunk_length: int = Field(default=64, ge=1, description="tokens in a chunk")
    num_chunks_before: int = Field(default=1, ge=0, description="chunks seen on the left")
    num_chunks_after: int = Field(
        default=0, ge=0, description="chunks seen on the right, where attention is not causal"
    )
    supports_packing: ClassVar[bool] = True
    is_positional: ClassVar[bool] = False

    def build(self, spec: AttentionSpec) -> nn.Module:
        spec.check_scaled("local")
        chunks = Chunks(self.chunk_length, self.num_chunks_before, 0 if spec.causal else self.num_chunks_after)
        chunks.check(spec.max_position_embeddings)
        kernel = LocalAttention(chunks, dropout=spec.dropout)
        return spec.multi_head(kernel, bias=False)
