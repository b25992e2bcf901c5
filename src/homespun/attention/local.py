"""Local attention: each chunk of queries sees its own chunk of keys and neighbouring chunks (Kitaev et al. 2020).

LSH attention (`homespun.attention.lsh`) uses the same `Chunks` on rows sorted by bucket, once a hashing round.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.attention.full import attend
from homespun.attention.multi_head import AttentionSettings, AttentionSpec
from homespun.errors import UserError
from homespun.nn.masks import Mask


@dataclass(frozen=True)
class ChunkWindow:
    """Chunks of keys that each chunk of queries sees.

    Args:
        source: (batch or 1, rounds * chunks, slots) int64 indices of chunks.
        wrapped: (batch or 1, rounds * chunks, slots) bool, True beyond an end of the row.
        chunks: length of chunks and number of neighbours.
    """

    source: Tensor
    wrapped: Tensor
    chunks: Chunks

    def windows(self, chunked: Tensor) -> Tensor:
        """Gather (batch or 1, rounds * chunks, heads or 1, length) values for each window.

        Returns:
            (batch, rounds * chunks, heads or 1, slots * length).
        """
        batch = max(len(chunked), len(self.source))
        rows = torch.arange(batch, device=chunked.device)[:, None, None]
        found = chunked.expand(batch, -1, -1, -1)[rows, self.source.expand(batch, -1, -1)]
        return found.transpose(2, 3).flatten(3)  # (batch, rounds * chunks, heads, slots * length)


@dataclass(frozen=True)
class Chunks:
    """Chunks of ``length`` tokens that see ``before`` chunks to the left and ``after`` chunks to the right.

    Chunks of a row form a ring as in `transformers`: the first chunk sees the last one, of the previous round if there
    are several. Only chunks with real tokens are in the ring, so that results do not depend on padding.

    Raises:
        UserError: ``length`` is below 1, or ``before`` or ``after`` is negative.
    """

    length: int
    before: int = 1
    after: int = 0

    def __post_init__(self) -> None:
        if self.length < 1 or self.before < 0 or self.after < 0:
            raise UserError(
                f"chunk_length={self.length}, num_chunks_before={self.before}, num_chunks_after={self.after}: "
                f"a chunk needs at least 1 token, and neighbours must be at least 0"
            )

    def within(self, tokens: int) -> Chunks:
        """Return a copy whose chunks have at most ``tokens`` tokens, the length of a row."""
        return dataclasses.replace(self, length=max(1, min(self.length, tokens)))

    def check(self, longest: int) -> None:
        """Raise `UserError` for more neighbours than a row of ``longest`` tokens has chunks."""
        count = -(-longest // self.length)
        if max(self.before, self.after) > count:
            raise UserError(
                f"num_chunks_before={self.before}, num_chunks_after={self.after}: chunk_length={self.length} gives "
                f"{count} chunks of max_position_embeddings={longest}; set at most {count}"
            )

    @property
    def slots(self) -> int:
        """Number of chunks of keys in a window."""
        return self.before + 1 + self.after

    def neighbours(self, real: Tensor, tokens: int, rounds: int = 1) -> ChunkWindow:
        """Find the windows of rows of ``tokens`` positions with ``real`` real tokens, (batch or 1,) int64."""
        count = -(-tokens // self.length)
        device = real.device
        size = (-(-real // self.length)).clamp(min=1)[:, None, None, None]  # chunks in the ring of a row
        index = torch.arange(rounds, device=device)[:, None, None]
        chunk = torch.arange(count, device=device)[:, None]
        neighbour = chunk + torch.arange(-self.before, self.after + 1, device=device)  # (chunks, slots)
        ring = (index * size + neighbour) % (rounds * size)  # (batch, rounds, chunks, slots)
        source = ring // size * count + ring % size
        source = torch.where(chunk < size, source, index * count + chunk)  # chunks of padding see themselves
        wrapped = ((chunk < size) & ((neighbour < 0) | (neighbour >= size))).expand_as(source)
        return ChunkWindow(source.flatten(1, 2), wrapped.flatten(1, 2), self)

    def split(self, values: Tensor, fill: int) -> Tensor:
        """Map (batch or 1, rounds, heads or 1, tokens) to (batch or 1, rounds * chunks, heads or 1, length).

        The last chunk of a round is padded with ``fill``.
        """
        padded = F.pad(values, (0, -values.shape[-1] % self.length), value=fill)
        chunked = padded.view(*padded.shape[:-1], -1, self.length).transpose(2, 3)
        return chunked.flatten(1, 2)  # (batch, rounds * chunks, heads, length)

    def result_index(self, inverse: Tensor, batch: int, heads: int) -> Tensor:
        """Compute the index of each token's result in the flattened results of all chunks.

        Args:
            inverse: (batch or 1, rounds, heads or 1, tokens) int64 position of each token in the round.

        Returns:
            (batch, tokens, heads, rounds) int64 into ``batch * rounds * chunks * heads * length``.
        """
        rounds, tokens = inverse.shape[1], inverse.shape[-1]
        count, device = -(-tokens // self.length), inverse.device
        first = torch.arange(batch * rounds, device=device).view(batch, rounds, 1, 1) * count
        chunk = first + inverse // self.length
        head = torch.arange(heads, device=device)[:, None]
        index = (chunk * heads + head) * self.length + inverse % self.length  # (batch, rounds, heads, tokens)
        return index.permute(0, 3, 2, 1)


def as_rows(vectors: Tensor) -> Tensor:
    """Map (batch, heads, tokens, head_dim) to (batch * tokens * heads, head_dim), a view of a projection."""
    return vectors.transpose(1, 2).reshape(-1, vectors.shape[-1])


def row_index(positions: Tensor, vectors: Tensor) -> Tensor:
    """Return (batch * n, heads, m) int64 indices of positions in ``as_rows(vectors)``.

    Args:
        positions: (batch or 1, n, heads or 1, m) int64. Positions beyond the row get the last index; mask them.
        vectors: (batch, heads, tokens, head_dim).
    """
    batch, heads, tokens, _ = vectors.shape
    row = torch.arange(batch, device=positions.device)[:, None, None, None]
    head = torch.arange(heads, device=positions.device)[:, None]
    return ((row * tokens + positions.clamp(max=tokens - 1)) * heads + head).flatten(0, 1)


def take(rows: Tensor, index: Tensor) -> Tensor:
    """Select rows of a (n, head_dim) table; returns (*index.shape, head_dim)."""
    return rows.index_select(0, index.flatten()).view(*index.shape, rows.shape[-1])


def _lookup(table: Tensor, positions: Tensor, default: int) -> Tensor:
    """Look up (batch, tokens) values at ``positions`` (batch or 1, ...); ``default`` beyond the end."""
    padded = F.pad(table, (0, 1), value=default)
    rows = torch.arange(len(table), device=table.device).view(-1, *[1] * (positions.dim() - 1))
    return padded[rows, positions]


def allowed(query: Tensor, key: Tensor, mask: Mask, *, tokens: int) -> Tensor:
    """Build the mask of the keys of each window by padding, causality and documents.

    Args:
        query: (batch or 1, n, heads or 1, length) int64 positions; ``tokens`` in empty slots.
        key: (batch or 1, n, heads or 1, slots * length) int64 positions; ``tokens`` in empty slots.

    Returns:
        bool, broadcasts to (batch or 1, n, heads or 1, length, slots * length).
    """
    is_real = key < tokens if mask.keep is None else _lookup(mask.keep, key, False)
    table = is_real[..., None, :].expand(*is_real.shape[:-1], query.shape[-1], -1)
    if mask.causal:
        table = table & (key[..., None, :] <= query[..., :, None])
    if mask.documents is not None:
        query_documents, key_documents = (_lookup(mask.documents, part, -1) for part in (query, key))
        table = table & (query_documents[..., :, None] == key_documents[..., None, :])
    return table


def bias(table: Tensor, itself: Tensor, self_bias: float, *, batch: int, dtype: torch.dtype) -> Tensor:
    """Build a (batch * n, heads or 1, length, slots * length) bias from a mask.

    The bias is ``self_bias`` at the token itself, 0 at other keys of ``table`` and -inf elsewhere. Every row has a
    finite value, which avoids NaN.
    """
    scores = torch.zeros(table.shape, dtype=dtype, device=table.device).masked_fill_(~table, -torch.inf)
    scores.masked_fill_(itself, self_bias)
    return scores.expand(batch, *scores.shape[1:]).flatten(0, 1)


class LocalAttention(nn.Module):
    """Softmax attention over a chunk and its neighbours (local layers of Reformer, Kitaev et al. 2020).

    Chunks form a ring (see `Chunks`), except under a causal mask.

    Args:
        chunks: length and neighbours.
        dropout: dropout probability of the attention probabilities, in training.
    """

    def __init__(self, chunks: Chunks, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.chunks = chunks
        self.dropout = dropout

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """Attend from queries to keys and values, (batch, heads, seq, head_dim) each.

        Raises:
            UserError: queries and keys have different lengths, or there is a cache.
        """
        mask.refuse_cache("local attention")
        if query.shape != key.shape:
            raise UserError(
                f"local attention needs equally many queries and keys, not {query.shape[-2]} queries and "
                f"{key.shape[-2]} keys; use full attention for cross-attention"
            )
        batch, heads, tokens, head_dim = query.shape
        positions, windows, scores = mask.once(("local", self.chunks, query.dtype), lambda: self._table(query, mask))
        key_index = row_index(windows, key)
        values = attend(
            take(as_rows(query), row_index(positions, query)),
            take(as_rows(key), key_index),
            take(as_rows(value), key_index),
            table=scores,
            dropout=self.dropout if self.training else 0.0,
        )  # (batch * chunks, heads, length, head_dim)
        values = values.transpose(1, 2).reshape(batch, -1, heads, head_dim)  # (batch, chunks * length, heads, head_dim)
        return values[:, :tokens].transpose(1, 2)  # (batch, heads, seq, head_dim)

    def _table(self, query: Tensor, mask: Mask) -> tuple[Tensor, Tensor, Tensor]:
        tokens = query.shape[-2]
        chunks = self.chunks.within(tokens)
        position = torch.arange(tokens, device=query.device)
        # position of the last real token, plus 1
        real = (position[None] if mask.keep is None else torch.where(mask.keep, position, -1)).amax(-1) + 1
        neighbours = chunks.neighbours(real, tokens)
        positions = chunks.split(position[None, None, None], tokens)
        windows = neighbours.windows(positions)
        table = allowed(positions, windows, mask, tokens=tokens)
        itself = positions[..., :, None] == windows[..., None, :]
        if mask.causal:
            # in a ring of few chunks, a chunk can be its own neighbour depending on the length of the row
            inside = ~neighbours.wrapped.repeat_interleave(chunks.length, -1)[:, :, None, None, :]
            table, itself = table & inside, itself & inside
        return positions, windows, bias(table, itself, 0.0, batch=len(query), dtype=query.dtype)

    def extra_repr(self) -> str:
        return f"{self.chunks}, dropout={self.dropout}"


class LocalAttentionConfig(AttentionSettings):
    """Config of local attention to a chunk and its neighbours; bidirectional chunks form a ring (see `Chunks`)."""

    kind: Literal["local"] = "local"
    chunk_length: int = Field(default=64, ge=1, description="tokens a chunk")
    num_chunks_before: int = Field(default=1, ge=0, description="chunks seen to the left")
    num_chunks_after: int = Field(default=0, ge=0, description="chunks seen to the right; 0 in causal attention")

    def build(self, spec: AttentionSpec) -> nn.Module:
        spec.check_scaled("local")
        chunks = Chunks(self.chunk_length, self.num_chunks_before, 0 if spec.causal else self.num_chunks_after)
        chunks.check(spec.max_position_embeddings)
        return spec.multi_head(LocalAttention(chunks, dropout=spec.dropout), bias=False)
