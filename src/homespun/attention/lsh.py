"""LSH attention: tokens see those that fall into the same bucket of a random hash (Kitaev et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from homespun.attention.local import Chunks, ChunkWindow, allowed, as_rows, bias, row_index, take
from homespun.attention.multi_head import MAX_DRAWN, AttentionSpec, inner_size, split_heads
from homespun.config import Config
from homespun.errors import UserError
from homespun.nn.masks import Mask
from homespun.nn.reversible import record_choice
from homespun.nn.torch_private import FunctionContext

# added to a token's score with itself: far below any other score (at most the length of a query), so that it counts
# only where there is no other, and within the range of every float type
_LAST_RESORT = -3e4
_AT_ONCE = 2**20  # scores that are made at once, so that they stay in the cache


def default_num_buckets(max_position_embeddings: int, chunk_length: int) -> tuple[int, ...]:
    """About two buckets a chunk of the longest input, as a power of two, in two factors if many: the rule of
    `transformers`.
    """
    chunks = max_position_embeddings // chunk_length
    power = max((2 * chunks).bit_length() - 1, 1)
    if 2**power > 2 * max(math.isqrt(chunks), chunk_length):
        return 2 ** (power // 2), 2 ** (power - power // 2)
    return (2**power,)


def draw_rotations(heads: int, head_dim: int, num_hashes: int, num_buckets: Sequence[int], *, seed: int) -> Tensor:
    """(heads, head_dim, num_hashes, sum(num_buckets) / 2) normal numbers, those of `transformers` for this seed."""
    factors = _even(num_buckets)
    generator = torch.Generator().manual_seed(seed)
    # on the CPU also where the model is built on another device, or on none
    return torch.randn(heads, head_dim, num_hashes, sum(factors) // 2, generator=generator, device="cpu")


def _even(num_buckets: Sequence[int]) -> tuple[int, ...]:
    if not num_buckets or any(factor < 2 or factor % 2 for factor in num_buckets):
        raise UserError(
            f"num_buckets={list(num_buckets)}: a bucket has an opposite, so every factor must be even, and 2 or more, "
            f"such as 32"
        )
    return tuple(num_buckets)


class HashedAttention(Function):
    """Attention inside chunks of gathered rows, some chunks at a time.

    Gathered rows and scores are computed again in the backward pass. SDPA keeps them: with it, a layer of 12 heads and
    2,048 tokens held 2.6 times as much, and took 5 % less time.
    """

    @staticmethod
    def forward(
        ctx: FunctionContext,
        query_key: Tensor,
        value: Tensor,
        own: Tensor,
        window: Tensor,
        scores: Tensor,
        dropout: float,
    ) -> tuple[Tensor, Tensor]:
        """Values, and the logarithm of the sum that the weights were divided by.

        Args:
            query_key, value: (rows, head_dim).
            own: (chunks, heads, length) int64: rows of the queries.
            window: (chunks, heads, slots * length) int64: rows that they may see.
            scores: (chunks, heads or 1, length, slots * length): added to the scores.
            dropout: of the weights.

        Returns:
            (chunks, heads, length, head_dim), and (chunks, heads, length) in float32 or finer.
        """
        ctx.save_for_backward(query_key, value, own, window, scores)
        ctx.dropout, ctx.seed = dropout, int(torch.randint(2**62, ())) if dropout else 0
        values = value.new_empty(*own.shape, value.shape[-1])
        total = value.new_empty(own.shape, dtype=torch.promote_types(value.dtype, torch.float32))
        # the types of what is given decide, here as in the backward pass
        with torch.autocast(value.device.type, enabled=False):
            keys, _ = _unit(query_key)
            for part, kept in _parts(ctx, own, scores.shape[-1]):
                found = _scores(take(query_key, own[part]), take(keys, window[part]), scores[part])
                weights = found.softmax(-1)
                total[part] = found.amax(-1) - weights.amax(-1).log()
                weights = weights if kept is None else weights * kept
                values[part] = weights.to(value.dtype) @ take(value, window[part])
        return values, total

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, d_values: Tensor, d_total: Tensor) -> tuple[Tensor | None, ...]:
        query_key, value, own, window, scores = ctx.saved_tensors
        keys, inverse = _unit(query_key)
        d_query, d_keys, d_value = (torch.zeros_like(rows) for rows in (query_key, keys, value))
        for part, kept in _parts(ctx, own, scores.shape[-1]):
            query, key, upstream = take(query_key, own[part]), take(keys, window[part]), d_values[part]
            weights = _scores(query, key, scores[part]).softmax(-1)
            dropped = weights if kept is None else weights * kept
            d_weights = (upstream @ take(value, window[part]).transpose(-1, -2)).to(weights.dtype)
            d_weights = d_weights if kept is None else d_weights * kept
            mean = (weights * d_weights).sum(-1, keepdim=True)
            d_scores = d_weights.sub_(mean - d_total[part][..., None]).mul_(weights).to(query.dtype)
            d_value.index_add_(0, window[part].flatten(), _rows(dropped.to(value.dtype).transpose(-1, -2) @ upstream))
            d_query.index_add_(0, own[part].flatten(), _rows(d_scores @ key))
            d_keys.index_add_(0, window[part].flatten(), _rows(d_scores.transpose(-1, -2) @ query))
        d_query += inverse * (d_keys - keys * (d_keys * keys).sum(-1, keepdim=True))
        return d_query, d_value, None, None, None, None


def _unit(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(n, head_dim) rows of length 1, and what they were multiplied by, (n, 1), with the epsilon of `transformers`."""
    inverse = (rows.square().mean(-1, keepdim=True) + 1e-6).rsqrt() / math.sqrt(rows.shape[-1])
    return rows * inverse, inverse


def _scores(query: Tensor, key: Tensor, added: Tensor) -> Tensor:
    # half precision is too coarse for the totals, whose differences weigh the rounds
    products = query @ key.transpose(-1, -2)
    return products.to(torch.promote_types(products.dtype, torch.float32)).add_(added)


def _parts(ctx: FunctionContext, own: Tensor, width: int) -> Iterator[tuple[slice, Tensor | None]]:
    """Some chunks at a time, with the dropout factors of their weights, the same in both passes."""
    generator = torch.Generator(own.device).manual_seed(ctx.seed) if ctx.dropout else None
    step = max(_AT_ONCE // (own[0].numel() * width), 1)
    for first in range(0, len(own), step):
        part, kept = slice(first, first + step), None
        if generator is not None:
            drawn = torch.rand(*own[part].shape, width, device=own.device, generator=generator)
            kept = (drawn >= ctx.dropout) / (1 - ctx.dropout)
        yield part, kept


def _rows(vectors: Tensor) -> Tensor:
    return vectors.flatten(0, -2)


class LSH(nn.Module):
    """Attention among the tokens of a bucket, over shared queries and keys.

    Every round hashes the tokens to buckets, sorts them by bucket, and cuts the sorted row into chunks; a chunk sees
    itself and its neighbours. Keys are queries of unit length. A token sees itself only if it sees nothing else. The
    rounds are joined as one softmax over the keys of all of them.

    Args:
        rotations: (heads, head_dim, rounds, sum(num_buckets) / 2): the bucket of a vector is the nearest of the rotated
            axes
            and their opposites (Andoni et al. 2015).
        num_buckets: even factors of the number of buckets; each has its own axes.
        chunks: of the sorted row.
        attend_across_buckets: a token sees all of its window, as in `transformers`; the window depends on all tokens,
            later
        ones too. Without it, a token sees those of the ``chunks.before * chunks.length`` positions before it that are
            in
            its bucket, and under a causal mask later tokens change nothing.
        dropout: of the attention probabilities, in training.

    Raises:
        UserError: an odd number of buckets, rotations of another shape, or no neighbours before if only those are seen.
    """

    rotations: Tensor

    def __init__(
        self,
        rotations: Tensor,
        *,
        num_buckets: Sequence[int],
        chunks: Chunks,
        attend_across_buckets: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_buckets = _even(num_buckets)
        if rotations.shape[2] < 1 or rotations.shape[3] != sum(num_buckets) // 2:
            raise UserError(
                f"rotations of {rotations.shape[2]} rounds and {rotations.shape[3]} axes do not fit "
                f"num_buckets={list(num_buckets)}; give 1 round or more of {sum(num_buckets) // 2} axes"
            )
        if not attend_across_buckets and chunks.before < 1:
            raise UserError("causal LSH attention with num_chunks_before=0 would see nothing; give 1 or more")
        self.chunks = chunks
        self.attend_across_buckets = attend_across_buckets
        self.dropout = dropout
        self.register_buffer("rotations", rotations, persistent=False)

    def forward(self, query_key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """(batch, heads, seq, head_dim) each -> the same shape."""
        batch, heads, tokens, _ = query_key.shape
        chunks = self.chunks.within(tokens)
        # in reversible layers the vectors come back changed in their last bits, and some would change their buckets
        buckets = record_choice(lambda: self.buckets(query_key, mask))  # (batch, rounds, heads, seq)
        order = buckets.argsort(dim=-1, stable=True)
        rounds = order.shape[1]
        neighbours = mask.once(
            ("lsh", chunks, rounds), lambda: chunks.neighbours(_real(query_key, mask), tokens, rounds)
        )
        places = chunks.split(order, tokens)  # (batch, rounds * chunks, heads, length)
        windows = neighbours.windows(places)  # (batch, rounds * chunks, heads, slots * length)
        scores = self._bias(query_key, buckets.gather(-1, order), places, windows, neighbours, mask)
        values, total = HashedAttention.apply(  # type: ignore[no-untyped-call]
            as_rows(query_key),
            as_rows(value),
            row_index(places, query_key),
            row_index(windows, value),
            scores,
            self.dropout if self.training else 0.0,
        )
        found = chunks.place_of(order.argsort(-1), batch, heads)  # (batch, seq, heads, rounds)
        values = take(_rows(values), found)  # (batch, seq, heads, rounds, head_dim)
        if rounds > 1:
            values = values * take(total.flatten()[:, None], found).softmax(-2).to(values.dtype)
        return values.sum(-2).transpose(1, 2)

    @torch.no_grad()
    def buckets(self, vectors: Tensor, mask: Mask) -> Tensor:
        """(batch, heads, seq, head_dim) -> (batch, rounds, heads, seq) int64; padding is in the last bucket."""
        turned = vectors @ self.rotations.flatten(2).to(vectors.dtype)
        turned = turned.reshape(*vectors.shape[:-1], *self.rotations.shape[2:])  # (batch, heads, seq, rounds, axes)
        found, product = torch.zeros_like(turned[..., 0], dtype=torch.int64), 1
        sizes = [factor // 2 for factor in self.num_buckets]
        for factor, axes in zip(self.num_buckets, torch.split(turned, sizes, -1), strict=True):
            nearest = axes.abs().argmax(-1, keepdim=True)
            opposite = axes.gather(-1, nearest) < 0
            found += product * (nearest + opposite * (factor // 2)).squeeze(-1)
            product *= factor
        found = found.permute(0, 3, 1, 2)
        return found if mask.keep is None else found.masked_fill(~mask.keep[:, None, None], product)

    def _bias(
        self, vectors: Tensor, buckets: Tensor, places: Tensor, windows: Tensor, neighbours: ChunkWindow, mask: Mask
    ) -> Tensor:
        """Bias of the scores, (batch * rounds * chunks, heads or 1, length, slots * length)."""
        tokens, rounds, chunks = buckets.shape[-1], buckets.shape[1], neighbours.chunks
        if not self.attend_across_buckets:
            return self._within_buckets(vectors, buckets, places, windows, neighbours, mask)
        if rounds == 1 and not mask.causal and mask.documents is None:
            # whatever the order, padding is at its end and a token is at one place: all heads and layers have one table
            def build() -> Tensor:
                order = torch.arange(tokens, device=vectors.device)[None, None, None]
                own = chunks.split(order, tokens)
                other = neighbours.windows(own)
                keep = None if mask.keep is None else order[0, 0] < _real(vectors, mask)[:, None]
                return _table(own, other, Mask(keep), tokens, vectors)

            return mask.once(("lsh bias", chunks, vectors.dtype), build)
        return _table(places, windows, mask, tokens, vectors)

    def _within_buckets(
        self, vectors: Tensor, buckets: Tensor, places: Tensor, windows: Tensor, neighbours: ChunkWindow, mask: Mask
    ) -> Tensor:
        """Bias for tokens that see those of their bucket at most ``before * length`` positions before them."""
        chunks = neighbours.chunks
        length, before = chunks.length, chunks.before
        step = torch.arange(length, device=places.device)
        away = step[:, None] + before * length - torch.arange(length * chunks.slots, device=places.device)
        own = chunks.split(buckets, -1)
        # other rounds have other buckets, and there is nothing before the start of a round
        other = neighbours.windows(own).masked_fill(
            neighbours.wrapped.repeat_interleave(length, -1)[:, :, None, :], -2
        )  # (batch, rounds * chunks, heads, slots * length)
        table = (own[..., :, None] == other[..., None, :]) & (away > 0) & (away <= before * length)
        if mask.documents is not None:
            table = table & allowed(places, windows, Mask(documents=mask.documents), tokens=vectors.shape[-2])
        return bias(table, (away == 0).expand_as(table), _LAST_RESORT, batch=len(vectors), dtype=torch.float16)

    def extra_repr(self) -> str:
        rounds = self.rotations.shape[2]
        return (
            f"num_buckets={list(self.num_buckets)}, num_hashes={rounds}, {self.chunks}, "
            f"attend_across_buckets={self.attend_across_buckets}, dropout={self.dropout}"
        )


def _real(vectors: Tensor, mask: Mask) -> Tensor:
    """(batch or 1,) int64: real tokens of each row."""
    if mask.keep is None:
        return torch.full((1,), vectors.shape[-2], device=vectors.device)
    return mask.keep.sum(-1)


def _table(places: Tensor, windows: Tensor, mask: Mask, tokens: int, vectors: Tensor) -> Tensor:
    itself = places[..., :, None] == windows[..., None, :]
    return bias(
        allowed(places, windows, mask, tokens=tokens), itself, _LAST_RESORT, batch=len(vectors), dtype=torch.float16
    )


class SharedQueryKeyAttention(nn.Module):
    """Project to shared queries and keys and to values, let the kernel mix, project back, without biases (Reformer).

    Args:
        kernel: ``(query_key, value, mask) -> values``, each (batch, heads, seq, head_dim).

    Others and errors are those of `homespun.attention.multi_head.MultiHeadAttention`; a cache is refused.
    """

    def __init__(self, hidden_size: int, num_attention_heads: int, kernel: nn.Module, *, head_size: int = 0) -> None:
        super().__init__()
        width = inner_size(hidden_size, num_attention_heads, head_size)
        self.num_attention_heads = num_attention_heads
        self.query_key = nn.Linear(hidden_size, width, bias=False)
        self.value = nn.Linear(hidden_size, width, bias=False)
        self.output = nn.Linear(width, hidden_size, bias=False)
        self.kernel = kernel

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """(batch, seq, hidden) -> (batch, seq, hidden)."""
        mask.refuse_cache("LSH attention")
        query_key, value = (
            split_heads(part(hidden), self.num_attention_heads) for part in (self.query_key, self.value)
        )
        values: Tensor = self.kernel(query_key, value, mask)  # (batch, heads, seq, head_dim)
        mixed: Tensor = self.output(values.transpose(1, 2).flatten(2))  # (batch, seq, hidden)
        return mixed


class LSHAttentionConfig(Config):
    """Queries and keys are one, and a token sees those whose hash is near its own (Kitaev et al. 2020).

    The hash of each layer is drawn once from the model's seed. Causal attention sees earlier tokens of the same bucket
    only: across buckets, as in `transformers`, later tokens decide which earlier ones are seen.
    """

    kind: Literal["lsh"] = "lsh"
    chunk_length: int = Field(default=64, ge=1, description="tokens in a chunk of the row sorted by bucket")
    num_chunks_before: int = Field(default=1, ge=0, description="chunks seen on the left")
    num_chunks_after: int = Field(
        default=0, ge=0, description="chunks seen on the right, where tokens see other buckets"
    )
    across_buckets: bool = Field(
        default=False,
        description="where attention is causal, tokens see earlier ones of other buckets too (checkpoints of Reformer)",
    )
    num_hashes: int = Field(default=1, ge=1, description="rounds of hashing; more find more, and cost as much each")
    num_buckets: int | list[int] | None = Field(
        default=None, description="even, or even factors; not given: two a chunk of max_position_embeddings"
    )
    supports_packing: ClassVar[bool] = True
    is_positional: ClassVar[bool] = False

    def build(self, spec: AttentionSpec) -> nn.Module:
        spec.check_scaled("LSH")
        spec.check_own_projections("LSH")
        if self.across_buckets and not spec.causal:
            raise UserError("across_buckets is for causal models, the tokens of others always see so; leave it out")
        across = self.across_buckets or not spec.causal
        chunks = Chunks(self.chunk_length, self.num_chunks_before, self.num_chunks_after if across else 0)
        chunks.check(spec.max_position_embeddings)
        factors = self._factors(spec.max_position_embeddings)
        heads = spec.num_attention_heads
        size = inner_size(spec.hidden_size, heads, spec.head_size) // heads
        if heads * size * self.num_hashes * (sum(factors) // 2) > MAX_DRAWN:
            raise UserError(
                f"num_hashes={self.num_hashes} with num_buckets={list(factors)[:4]} want too many numbers to be drawn; "
                f"give fewer of either, or num_buckets as two factors"
            )
        rotations = draw_rotations(heads, size, self.num_hashes, factors, seed=spec.draw)
        kernel = LSH(
            rotations,
            num_buckets=factors,
            chunks=chunks,
            attend_across_buckets=across,
            dropout=spec.dropout,
        )
        return SharedQueryKeyAttention(spec.hidden_size, heads, kernel, head_size=spec.head_size)

    def _factors(self, max_position_embeddings: int) -> tuple[int, ...]:
        if self.num_buckets is None:
            return default_num_buckets(max_position_embeddings, self.chunk_length)
        return (self.num_buckets,) if isinstance(self.num_buckets, int) else tuple(self.num_buckets)
