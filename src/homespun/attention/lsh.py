"""LSH attention: tokens see tokens in the same bucket of a random hash (Kitaev et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from homespun.attention.local import Chunks, ChunkWindow, allowed, as_rows, bias, row_index, take
from homespun.attention.multi_head import MAX_DRAWN, AttentionSettings, AttentionSpec, inner_size, split_heads
from homespun.errors import UserError
from homespun.nn.masks import Mask
from homespun.nn.reversible import record_choice
from homespun.nn.torch_private import FunctionContext

_SELF_BIAS = -3e4  # bias of a token's score with itself: counts only without other keys; in the range of float16
_SCORES = 2**20  # scores computed at once on a CPU, so that they stay in its cache
_GPU_SCORES = 2**25  # on a GPU, which smaller parts leave waiting for the CPU


def default_num_buckets(max_position_embeddings: int, chunk_length: int) -> tuple[int, ...]:
    """Return a power of two near two buckets a chunk, in two factors if large, as in `transformers`."""
    chunks = max_position_embeddings // chunk_length
    power = max((2 * chunks).bit_length() - 1, 1)
    if 2**power > 2 * max(math.isqrt(chunks), chunk_length):
        return 2 ** (power // 2), 2 ** (power - power // 2)
    return (2**power,)


def draw_rotations(heads: int, head_dim: int, num_hashes: int, num_buckets: Sequence[int], *, seed: int) -> Tensor:
    """Draw (heads, head_dim, num_hashes, sum(num_buckets) / 2) normal numbers, equal to `transformers` for a seed."""
    factors = _even(num_buckets)
    generator = torch.Generator().manual_seed(seed)
    # use the CPU even if the model is built on another device or on meta
    return torch.randn(heads, head_dim, num_hashes, sum(factors) // 2, generator=generator, device="cpu")


def _even(num_buckets: Sequence[int]) -> tuple[int, ...]:
    if not num_buckets or any(factor < 2 or factor % 2 for factor in num_buckets):
        raise UserError(
            f"num_buckets={list(num_buckets)}: every factor must be even and at least 2, since buckets come in "
            f"opposite pairs; set for example num_buckets=32"
        )
    return tuple(num_buckets)


class HashedAttention(Function):
    """Attention inside chunks of gathered rows, a few chunks at a time.

    The backward pass recomputes gathered rows and scores. SDPA stores them: for a layer of 12 heads and 2,048 tokens it
    needs 2.6 times the memory and 5 % less time.
    """

    @staticmethod
    def forward(
        ctx: FunctionContext,
        query_key: Tensor,
        value: Tensor,
        rows: Tensor,
        window: Tensor,
        scores: Tensor,
        dropout: float,
    ) -> tuple[Tensor, Tensor]:
        """Compute attention values and the logsumexp of the scores.

        Args:
            query_key, value: (rows, head_dim).
            rows: (chunks, heads, length) int64 rows of the queries.
            window: (chunks, heads, slots * length) int64 rows of the keys.
            scores: (chunks, heads or 1, length, slots * length) bias of the scores.
            dropout: dropout probability of the weights.

        Returns:
            (chunks, heads, length, head_dim), and (chunks, heads, length) in float32 or wider.
        """
        ctx.save_for_backward(query_key, value, rows, window, scores)
        ctx.dropout, ctx.seed = dropout, int(torch.randint(2**62, ())) if dropout else 0
        values = value.new_empty(*rows.shape, value.shape[-1])
        total = value.new_empty(rows.shape, dtype=torch.promote_types(value.dtype, torch.float32))
        with torch.autocast(value.device.type, enabled=False):  # the backward pass also disables autocast
            keys, _ = _normalise(query_key)
            for part, dropout_mask in parts(rows, scores.shape[-1], dropout=ctx.dropout, seed=ctx.seed):
                part_scores = _scores(take(query_key, rows[part]), take(keys, window[part]), scores[part])
                weights = part_scores.softmax(-1)
                total[part] = part_scores.amax(-1) - weights.amax(-1).log()
                weights = weights if dropout_mask is None else weights * dropout_mask
                values[part] = weights.to(value.dtype) @ take(value, window[part])
        return values, total

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, d_values: Tensor, d_total: Tensor) -> tuple[Tensor | None, ...]:
        query_key, value, rows, window, scores = ctx.saved_tensors
        keys, inverse = _normalise(query_key)
        d_query, d_keys, d_value = (torch.zeros_like(tensor) for tensor in (query_key, keys, value))
        for part, dropout_mask in parts(rows, scores.shape[-1], dropout=ctx.dropout, seed=ctx.seed):
            query, key, upstream = take(query_key, rows[part]), take(keys, window[part]), d_values[part]
            weights = _scores(query, key, scores[part]).softmax(-1)
            dropped = weights if dropout_mask is None else weights * dropout_mask
            d_weights = (upstream @ take(value, window[part]).transpose(-1, -2)).to(weights.dtype)
            d_weights = d_weights if dropout_mask is None else d_weights * dropout_mask
            mean = (weights * d_weights).sum(-1, keepdim=True)
            d_scores = d_weights.sub_(mean - d_total[part][..., None]).mul_(weights).to(query.dtype)
            key_rows = window[part].flatten()
            d_value.index_add_(0, key_rows, (dropped.to(value.dtype).transpose(-1, -2) @ upstream).flatten(0, -2))
            d_query.index_add_(0, rows[part].flatten(), (d_scores @ key).flatten(0, -2))
            d_keys.index_add_(0, key_rows, (d_scores.transpose(-1, -2) @ query).flatten(0, -2))
        d_query += inverse * (d_keys - keys * (d_keys * keys).sum(-1, keepdim=True))
        return d_query, d_value, None, None, None, None


def _normalise(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Normalise (n, head_dim) rows, with the epsilon of `transformers`; returns rows and factors (n, 1)."""
    inverse = (rows.square().mean(-1, keepdim=True) + 1e-6).rsqrt() / math.sqrt(rows.shape[-1])
    return rows * inverse, inverse


def _scores(query: Tensor, key: Tensor, added: Tensor) -> Tensor:
    # float32 at least: differences of totals weight the rounds
    products = query @ key.transpose(-1, -2)
    return products.to(torch.promote_types(products.dtype, torch.float32)).add_(added)


def parts(rows: Tensor, width: int, *, dropout: float, seed: int) -> Iterator[tuple[slice, Tensor | None]]:
    """Yield slices of chunks whose scores are computed at once, with the dropout mask of the weights, equal for a seed.

    Args:
        rows: (chunks, heads, length) rows of the queries.
        width: keys of a query.
        dropout: dropout probability of the weights; without it the masks are None.
        seed: random seed of the masks.
    """
    generator = torch.Generator(rows.device).manual_seed(seed) if dropout else None
    scores = _SCORES if rows.device.type == "cpu" else _GPU_SCORES
    step = max(scores // (rows[0].numel() * width), 1)
    for first in range(0, len(rows), step):
        part, dropout_mask = slice(first, first + step), None
        if generator is not None:
            uniforms = torch.rand(*rows[part].shape, width, device=rows.device, generator=generator)
            dropout_mask = (uniforms >= dropout) / (1 - dropout)
        yield part, dropout_mask


class LSH(nn.Module):
    """LSH attention over shared queries and keys (Kitaev et al. 2020, section 2).

    Each round hashes tokens to buckets, sorts them by bucket and splits the sorted row into chunks; a chunk sees itself
    and its neighbours. Keys are normalised queries. A token sees itself only if it sees no other key. Rounds are
    combined as one softmax over the keys of all rounds.

    Args:
        rotations: (heads, head_dim, rounds, sum(num_buckets) / 2) random axes; the bucket of a vector is its nearest
            axis or opposite axis (Andoni et al. 2015).
        num_buckets: even factors of the number of buckets, each with its own axes.
        chunks: chunks of the sorted row.
        attend_across_buckets: see all keys of the window as in `transformers`, where later tokens change the window of
            earlier ones. False: see only keys of the same bucket among the ``chunks.before * chunks.length`` positions
            before; results do not depend on later tokens.
        dropout: dropout probability of the attention probabilities, in training.

    Raises:
        UserError: odd ``num_buckets``, ``rotations`` of the wrong shape, or ``chunks.before`` 0 inside buckets.
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
                f"rotations have {rotations.shape[2]} rounds and {rotations.shape[3]} axes, but "
                f"num_buckets={list(num_buckets)} needs at least 1 round of {sum(num_buckets) // 2} axes"
            )
        if not attend_across_buckets and chunks.before < 1:
            raise UserError("num_chunks_before=0 must be at least 1 for causal LSH attention")
        self.chunks = chunks
        self.attend_across_buckets = attend_across_buckets
        self.dropout = dropout
        self.register_buffer("rotations", rotations, persistent=False)

    def forward(self, query_key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """Attend from queries to keys and values, (batch, heads, seq, head_dim) each."""
        batch, heads, tokens, _ = query_key.shape
        chunks = self.chunks.within(tokens)
        # recomputed vectors of reversible layers differ by rounding, which would change some buckets
        buckets = record_choice(lambda: self.buckets(query_key, mask))  # (batch, rounds, heads, seq)
        order = buckets.argsort(dim=-1, stable=True)
        rounds = order.shape[1]
        neighbours = mask.once(
            ("lsh", chunks, rounds), lambda: chunks.neighbours(_real(query_key, mask), tokens, rounds)
        )
        positions = chunks.split(order, tokens)  # (batch, rounds * chunks, heads, length)
        windows = neighbours.windows(positions)  # (batch, rounds * chunks, heads, slots * length)
        scores = self._bias(query_key, buckets.gather(-1, order), positions, windows, neighbours, mask)
        values, total = HashedAttention.apply(
            as_rows(query_key),
            as_rows(value),
            row_index(positions, query_key),
            row_index(windows, value),
            scores,
            self.dropout if self.training else 0.0,
        )
        index = chunks.result_index(order.argsort(-1), batch, heads)  # (batch, seq, heads, rounds)
        values = take(values.flatten(0, -2), index)  # (batch, seq, heads, rounds, head_dim)
        if rounds > 1:
            values = values * take(total.flatten()[:, None], index).softmax(-2).to(values.dtype)
        return values.sum(-2).transpose(1, 2)

    @torch.no_grad()
    def buckets(self, vectors: Tensor, mask: Mask) -> Tensor:
        """Map (batch, heads, seq, head_dim) to (batch, rounds, heads, seq) int64; padding is in the last bucket."""
        rotated = vectors @ self.rotations.flatten(2).to(vectors.dtype)
        rotated = rotated.reshape(*vectors.shape[:-1], *self.rotations.shape[2:])  # (batch, heads, seq, rounds, axes)
        buckets, product = torch.zeros_like(rotated[..., 0], dtype=torch.int64), 1
        sizes = [factor // 2 for factor in self.num_buckets]
        for factor, axes in zip(self.num_buckets, torch.split(rotated, sizes, -1), strict=True):
            nearest = axes.abs().argmax(-1, keepdim=True)
            opposite = axes.gather(-1, nearest) < 0
            buckets += product * (nearest + opposite * (factor // 2)).squeeze(-1)
            product *= factor
        buckets = buckets.permute(0, 3, 1, 2)
        return buckets if mask.keep is None else buckets.masked_fill(~mask.keep[:, None, None], product)

    def hash_order(self, vectors: Tensor, mask: Mask) -> Tensor:
        """Return the (heads, seq) order of (1, heads, seq, head_dim) vectors in the first round of hashing."""
        return self.buckets(vectors, mask)[0, 0].argsort(dim=-1, stable=True)

    def _bias(
        self, vectors: Tensor, buckets: Tensor, positions: Tensor, windows: Tensor, neighbours: ChunkWindow, mask: Mask
    ) -> Tensor:
        """Build the bias of the scores, (batch * rounds * chunks, heads or 1, length, slots * length)."""
        tokens, rounds, chunks = buckets.shape[-1], buckets.shape[1], neighbours.chunks
        if not self.attend_across_buckets:
            return self._bias_in_buckets(vectors, buckets, positions, windows, neighbours, mask)
        if rounds == 1 and not mask.causal and mask.documents is None:
            # in any order padding is last and each token occurs once: one table for all heads and layers
            def build() -> Tensor:
                order = torch.arange(tokens, device=vectors.device)[None, None, None]
                queries = chunks.split(order, tokens)
                keep = None if mask.keep is None else order[0, 0] < _real(vectors, mask)[:, None]
                return _table(queries, neighbours.windows(queries), Mask(keep), tokens, vectors)

            return mask.once(("lsh bias", chunks, vectors.dtype), build)
        return _table(positions, windows, mask, tokens, vectors)

    def _bias_in_buckets(
        self, vectors: Tensor, buckets: Tensor, positions: Tensor, windows: Tensor, neighbours: ChunkWindow, mask: Mask
    ) -> Tensor:
        """Build a bias that allows keys of the same bucket.

        These are at most ``before * length`` sorted positions before the query.
        """
        chunks = neighbours.chunks
        length, before = chunks.length, chunks.before
        offset = torch.arange(length, device=positions.device)
        distance = offset[:, None] + before * length - torch.arange(length * chunks.slots, device=positions.device)
        query_buckets = chunks.split(buckets, -1)
        # wrapped chunks belong to another round, whose buckets do not count
        key_buckets = neighbours.windows(query_buckets).masked_fill(
            neighbours.wrapped.repeat_interleave(length, -1)[:, :, None, :], -2
        )  # (batch, rounds * chunks, heads, slots * length)
        table = query_buckets[..., :, None] == key_buckets[..., None, :]
        table = table & (distance > 0) & (distance <= before * length)
        if mask.documents is not None:
            table = table & allowed(positions, windows, Mask(documents=mask.documents), tokens=vectors.shape[-2])
        return bias(table, (distance == 0).expand_as(table), _SELF_BIAS, batch=len(vectors), dtype=torch.float16)

    def extra_repr(self) -> str:
        rounds = self.rotations.shape[2]
        return (
            f"num_buckets={list(self.num_buckets)}, num_hashes={rounds}, {self.chunks}, "
            f"attend_across_buckets={self.attend_across_buckets}, dropout={self.dropout}"
        )


def _real(vectors: Tensor, mask: Mask) -> Tensor:
    """Return (batch or 1,) int64 number of real tokens."""
    if mask.keep is None:
        return torch.full((1,), vectors.shape[-2], device=vectors.device)
    return mask.keep.sum(-1)


def _table(positions: Tensor, windows: Tensor, mask: Mask, tokens: int, vectors: Tensor) -> Tensor:
    itself = positions[..., :, None] == windows[..., None, :]
    table = allowed(positions, windows, mask, tokens=tokens)
    return bias(table, itself, _SELF_BIAS, batch=len(vectors), dtype=torch.float16)


class SharedQueryKeyAttention(nn.Module):
    """Multi-head attention with shared queries and keys, without biases (Reformer).

    Args:
        kernel: ``(query_key, value, mask) -> values``, each (batch, heads, seq, head_dim).

    Other arguments as in `homespun.attention.multi_head.MultiHeadAttention`. Does not support a cache.
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
        """Map (batch, seq, hidden) to (batch, seq, hidden)."""
        mask.refuse_cache("LSH attention")
        query_key, value = (
            split_heads(part(hidden), self.num_attention_heads) for part in (self.query_key, self.value)
        )
        values: Tensor = self.kernel(query_key, value, mask)  # (batch, heads, seq, head_dim)
        return self.output(values.transpose(1, 2).flatten(2))  # (batch, seq, hidden)


class LSHAttentionConfig(AttentionSettings):
    """Config of LSH attention over shared queries and keys (Kitaev et al. 2020).

    Hashes of each layer are drawn from the model's seed. Causal attention sees only earlier tokens of the same bucket;
    across buckets, as in `transformers`, later tokens would change the attention of earlier tokens.
    """

    kind: Literal["lsh"] = "lsh"
    chunk_length: int = Field(default=64, ge=1, description="tokens a chunk of the row sorted by bucket")
    num_chunks_before: int = Field(default=1, ge=0, description="chunks seen to the left")
    num_chunks_after: int = Field(default=0, ge=0, description="chunks seen to the right if tokens see other buckets")
    across_buckets: bool = Field(
        default=False, description="causal attention sees earlier tokens of other buckets too (Reformer checkpoints)"
    )
    num_hashes: int = Field(default=1, ge=1, description="rounds of hashing; cost is proportional")
    num_buckets: int | list[int] | None = Field(
        default=None, description="even number or even factors; null: two a chunk of max_position_embeddings"
    )

    def build(self, spec: AttentionSpec) -> nn.Module:
        spec.check_scaled("LSH")
        spec.check_own_projections("LSH")
        if self.across_buckets and not spec.causal:
            raise UserError("across_buckets=true is for causal models, others always see all buckets; remove it")
        across = self.across_buckets or not spec.causal
        chunks = Chunks(self.chunk_length, self.num_chunks_before, self.num_chunks_after if across else 0)
        chunks.check(spec.max_position_embeddings)
        factors = self._factors(spec.max_position_embeddings)
        heads = spec.num_attention_heads
        size = inner_size(spec.hidden_size, heads, spec.head_size) // heads
        if heads * size * self.num_hashes * (sum(factors) // 2) > MAX_DRAWN:
            raise UserError(
                f"num_hashes={self.num_hashes} with num_buckets={list(factors)[:4]} need more than {MAX_DRAWN} random "
                f"numbers; decrease either, or give num_buckets as two factors"
            )
        rotations = draw_rotations(heads, size, self.num_hashes, factors, seed=spec.layer_seed)
        kernel = LSH(rotations, num_buckets=factors, chunks=chunks, attend_across_buckets=across, dropout=spec.dropout)
        return SharedQueryKeyAttention(spec.hidden_size, heads, kernel, head_size=spec.head_size)

    def _factors(self, max_position_embeddings: int) -> tuple[int, ...]:
        if self.num_buckets is None:
            return default_num_buckets(max_position_embeddings, self.chunk_length)
        return (self.num_buckets,) if isinstance(self.num_buckets, int) else tuple(self.num_buckets)
