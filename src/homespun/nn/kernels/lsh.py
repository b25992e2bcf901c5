"""LSH attention: tokens see those that fall into the same bucket of a random hash (Kitaev et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.errors import UserError
from homespun.nn.kernels.chunks import Chunks, Neighbours, allowed, bias
from homespun.nn.masks import Mask

# added to a token's score with itself: far below any other score (at most the length of a query), so that it counts
# only where there is no other, and within the range of every float type
_LAST_RESORT = -3e4


def default_num_buckets(max_position_embeddings: int, chunk_length: int) -> tuple[int, ...]:
    """About two buckets a chunk of the longest input, as a power of two, in two factors where that is many.

    The rule of `transformers`, which however takes the length of the first batch that it meets for the longest one.
    """
    chunks = max_position_embeddings // chunk_length
    power = max((2 * chunks).bit_length() - 1, 1)
    if 2**power > 2 * max(math.isqrt(chunks), chunk_length):
        return 2 ** (power // 2), 2 ** (power - power // 2)
    return (2**power,)


def draw_rotations(heads: int, head_dim: int, num_hashes: int, num_buckets: Sequence[int], *, seed: int) -> Tensor:
    """(heads, head_dim, num_hashes, sum(num_buckets) / 2) normal numbers: the same as `transformers` from this seed.

    Raises:
        UserError: a factor of the number of buckets that is not even.
    """
    factors = _even(num_buckets)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(heads, head_dim, num_hashes, sum(factors) // 2, generator=generator)


def _even(num_buckets: Sequence[int]) -> tuple[int, ...]:
    if not num_buckets or any(factor < 2 or factor % 2 for factor in num_buckets):
        raise UserError(
            f"num_buckets={list(num_buckets)}: a bucket has an opposite, so every factor must be even, and 2 or more, "
            f"such as 32"
        )
    return tuple(num_buckets)


class LSH(nn.Module):
    """Attention among the tokens of a bucket, over shared queries and keys.

    Every round hashes the tokens to buckets, sorts them by bucket, and cuts the sorted row into chunks; a chunk sees
    itself and its neighbours. Keys are queries of unit length. A token sees itself only where it sees nothing else. The
    rounds are joined as one softmax over the keys of all of them. Self-attention only: queries and keys are one.

    Args:
        rotations: (heads, head_dim, rounds, sum(num_buckets) / 2): the bucket of a vector is the nearest of the rotated
            axes and their opposites (Andoni et al. 2015).
        num_buckets: even factors of the number of buckets; each has its own axes.
        chunks: of the sorted row.
        attend_across_buckets: a token sees all of its window, as in `transformers`. How the sorted row is cut, and so
            what is in a window, depends on all tokens, also on later ones. Without it, a token sees the
            ``chunks.before * chunks.length`` places before it, or as many of them as are in its bucket: under a causal
            mask later tokens then change nothing. Not for other masks.
        dropout: of the attention probabilities, in training.

    Raises:
        UserError: a number of buckets that is not even, rotations of another shape, or no neighbours before where only
            those are seen.
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
        batch, heads, tokens, head_dim = query_key.shape
        chunks, last = self.chunks, tokens - 1
        buckets = self.buckets(query_key, mask)  # (batch, rounds, heads, seq)
        order = buckets.argsort(dim=-1, stable=True)
        rounds = order.shape[1]
        neighbours = mask.once(
            ("lsh", chunks, rounds), lambda: chunks.neighbours(_real(query_key, mask), tokens, rounds)
        )
        places = chunks.split(order, tokens)  # (batch, rounds * chunks, heads, length)
        windows = neighbours.windows(places)  # (batch, rounds * chunks, heads, slots * length)
        scores = self._bias(query_key, buckets.gather(-1, order), places, windows, neighbours, mask)
        key = F.rms_norm(query_key, (head_dim,), eps=1e-6)  # of length sqrt(head_dim), which the attention divides by
        # any token will do where there is none: what comes of it is never read
        window = windows.clamp(max=last)
        values, total = _attend(
            chunks.take(query_key, places.clamp(max=last)),
            chunks.take(key, window),
            chunks.take(value, window),
            scores,
            rounds=rounds,
            dropout=self.dropout if self.training else 0.0,
        )
        found = chunks.place_of(order.argsort(-1), batch, heads)  # (batch, seq, heads, rounds)
        values = values.reshape(-1, head_dim).index_select(0, found.flatten())
        if total is None:
            return values.view(batch, tokens, heads, head_dim).transpose(1, 2)
        weights = total.flatten().index_select(0, found.flatten()).view_as(found).softmax(-1).to(values.dtype)
        joined = (weights[..., None] * values.view(*found.shape, head_dim)).sum(-2)  # (batch, seq, heads, head_dim)
        return joined.transpose(1, 2)

    @torch.no_grad()
    def buckets(self, vectors: Tensor, mask: Mask) -> Tensor:
        """(batch, heads, seq, head_dim) -> (batch, rounds, heads, seq) int64; padding is in a bucket behind all."""
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
        self, vectors: Tensor, buckets: Tensor, places: Tensor, windows: Tensor, neighbours: Neighbours, mask: Mask
    ) -> Tensor:
        """What is added to the scores, (batch * rounds * chunks, heads or 1, length, slots * length)."""
        tokens, rounds = buckets.shape[-1], buckets.shape[1]
        if not self.attend_across_buckets:
            return self._within_buckets(vectors, buckets, places, windows, neighbours, mask)
        if rounds == 1 and not mask.causal and mask.documents is None:
            # whatever the order, padding is at its end and a token is at one place: all heads and layers have one table
            def build() -> Tensor:
                order = torch.arange(tokens, device=vectors.device)[None, None, None]
                own = self.chunks.split(order, tokens)
                other = neighbours.windows(own)
                keep = None if mask.keep is None else order[0, 0] < _real(vectors, mask)[:, None]
                return _table(own, other, Mask(keep), tokens, vectors)

            return mask.once(("lsh bias", self.chunks, vectors.dtype), build)
        return _table(places, windows, mask, tokens, vectors)

    def _within_buckets(
        self, vectors: Tensor, buckets: Tensor, places: Tensor, windows: Tensor, neighbours: Neighbours, mask: Mask
    ) -> Tensor:
        """A token sees those of its bucket that stand at most ``before * length`` places before it."""
        length, before = self.chunks.length, self.chunks.before
        step = torch.arange(length, device=places.device)
        away = step[:, None] + before * length - torch.arange(length * self.chunks.slots, device=places.device)
        own = self.chunks.split(buckets, -1)
        # other rounds have other buckets, and there is nothing before the start of a round
        other = neighbours.windows(own).masked_fill(
            neighbours.wrapped.repeat_interleave(length, -1)[:, :, None, :], -2
        )  # (batch, rounds * chunks, heads, slots * length)
        table = (own[..., :, None] == other[..., None, :]) & (away > 0) & (away <= before * length)
        if mask.documents is not None:
            table = table & allowed(places, windows, Mask(documents=mask.documents), tokens=vectors.shape[-2])
        return bias(table, (away == 0).expand_as(table), _LAST_RESORT, vectors)

    def extra_repr(self) -> str:
        rounds = self.rotations.shape[2]
        return (
            f"num_buckets={list(self.num_buckets)}, num_hashes={rounds}, {self.chunks}, "
            f"attend_across_buckets={self.attend_across_buckets}, dropout={self.dropout}"
        )


def _real(vectors: Tensor, mask: Mask) -> Tensor:
    """(batch or 1,) int64: tokens of each row that take part."""
    if mask.keep is None:
        return torch.full((1,), vectors.shape[-2], device=vectors.device)
    return mask.keep.sum(-1)


def _table(places: Tensor, windows: Tensor, mask: Mask, tokens: int, vectors: Tensor) -> Tensor:
    itself = places[..., :, None] == windows[..., None, :]
    return bias(allowed(places, windows, mask, tokens=tokens), itself, _LAST_RESORT, vectors)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, scores: Tensor, *, rounds: int, dropout: float
) -> tuple[Tensor, Tensor | None]:
    """The values of each chunk, and in several rounds the logarithm of what their weights were divided by."""
    if rounds == 1:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=scores, dropout_p=dropout), None
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + scores
    # half precision is too coarse for the totals, whose differences weigh the rounds
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    weights = F.dropout(scores.softmax(-1), dropout)
    return weights.to(value.dtype) @ value, scores.logsumexp(-1, keepdim=True)
