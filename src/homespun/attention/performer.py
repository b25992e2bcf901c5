"""Performer: attention through random features, linear in the length (Choromanski et al. 2021)."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.attention.multi_head import AttentionSpec
from homespun.config import Config
from homespun.errors import UserError
from homespun.nn.masks import Mask

FeatureMap = Literal["softmax", "relu"]

# Tokens worked on at once: their features then stay in a CPU's cache, which more than halves the time of a step
# against whole sequences. A causal chunk also holds a table of chunk x chunk.
_CHUNK = 512
_CAUSAL_CHUNK = 128


@dataclass(frozen=True)
class _State:
    """Sums over the keys so far; a column of ones in the values sums to the normalisers.

    Features are ``e + epsilon``; the part of epsilon is a product with ``values``, so it is never added to each.
    """

    products: Tensor  # (batch, heads, features, head_dim + 1): sum of e x value, in units of exp(largest)
    values: Tensor  # (batch, heads, 1, head_dim + 1): sum of the values
    largest: Tensor  # (batch, heads, 1, 1): the stabiliser


class Performer(nn.Module):
    """FAVOR+: ``softmax(query key^T)`` estimated by positive orthogonal random features (sections 2.2 to 2.4).

    Queries and keys become ``exp(w x - |x|^2 / 2 - largest) + epsilon`` over random directions ``w``, or ``relu(w x) +
    epsilon`` (generalised attention). ``largest`` keeps the exponentials from overflowing: for a query its own ``w x``,
    for keys that of all keys which the query may see, so that neither padding nor, under a causal mask, later tokens
    count. Computes in float32 at least. A query that sees no key gives zeros.

    Args:
        head_dim: width of a head.
        num_features: random directions, the same for all heads.
        feature_map: ``softmax`` or ``relu``.
        redraw_interval: training steps between new directions; 0: never. If not 0 they are saved with the model.
        seed, layer: what the directions are drawn from.

    Raises:
        UserError: when called with packed documents: the sums over keys are of all of them.
    """

    projection: Tensor

    def __init__(
        self,
        head_dim: int,
        num_features: int,
        *,
        feature_map: FeatureMap = "softmax",
        redraw_interval: int = 0,
        seed: int = 0,
        layer: int = 0,
    ) -> None:
        super().__init__()
        self.num_features, self.feature_map, self.redraw_interval = num_features, feature_map, redraw_interval
        self.epsilon = 1e-4 if feature_map == "softmax" else 1e-3  # those of the authors' code
        self._seed, self._layer, self._drawn = seed, layer, 0
        directions = orthogonal_directions(num_features, head_dim, _generator(seed, layer, 0))
        self.register_buffer("projection", directions, persistent=redraw_interval > 0)  # (features, head_dim)

    def redraw(self, step: int) -> None:
        """New directions if ``step`` of training has passed the next multiple of ``redraw_interval``.

        Draw ``n`` is a function of (seed, layer, n), so that a resumed run has the same ones.
        """
        number = step // self.redraw_interval if self.redraw_interval else 0
        if number != self._drawn:
            generator = _generator(self._seed, self._layer, number)
            count, width = self.projection.shape
            self.projection.copy_(orthogonal_directions(count, width, generator))
            self._drawn = number

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """(batch, heads, queries, head_dim) from queries, and (batch, heads, keys, head_dim) keys and values."""
        if mask.documents is not None:
            raise UserError("Performer cannot keep packed documents apart: its sums are over all keys of a row")
        with torch.autocast(query.device.type, enabled=False):
            dtype = torch.promote_types(query.dtype, torch.float32)
            attend = self._causal if mask.causal else self._bidirectional
            values = attend(query.to(dtype), key.to(dtype), value.to(dtype), mask)
        return values.to(value.dtype)

    def _bidirectional(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        state = self._read(self._nothing(value), key, value, mask.keep)
        products = state.products + self.epsilon * state.values
        rest = self.epsilon * products.sum(-2, keepdim=True)
        chunks = [self._queries(chunk) @ products + rest for chunk in torch.split(query, _CHUNK, 2)]
        return torch.cat([_normalised(chunk) for chunk in chunks], 2)

    def _causal(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        before = mask.start  # keys of a cache, which every query may see
        keep = mask.keep
        state = self._read(
            self._nothing(value), key[:, :, :before], value[:, :, :before], None if keep is None else keep[:, :before]
        )
        chunks = []
        for first in range(0, query.shape[2], _CAUSAL_CHUNK):
            queries = query[:, :, first : first + _CAUSAL_CHUNK]
            here = slice(before + first, before + first + queries.shape[2])
            kept = None if keep is None else keep[:, here]
            chunk, state = self._causal_chunk(state, queries, key[:, :, here], value[:, :, here], kept)
            chunks.append(chunk)
        return torch.cat(chunks, 2)

    def _causal_chunk(
        self, state: _State, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None
    ) -> tuple[Tensor, _State]:
        """The values of a chunk of queries, whose keys are those of ``state`` and of their own chunk up to each."""
        value = _with_ones(value, keep)
        features = self._queries(query)  # (batch, heads, chunk, features)
        scores, norm, own = self._key_scores(key, keep)
        largest = torch.maximum(own.cummax(2).values, state.largest)  # the stabiliser up to each key
        keys = self._keys(scores, norm + own)
        # each query's sums are in units of its own stabiliser, so that no later key, however large, is in them
        each = self.epsilon * (features.sum(-1, True) + self.epsilon * self.num_features)
        weights = features @ keys.transpose(-1, -2) + self.epsilon * keys.sum(-1)[:, :, None, :]
        weights = (weights * (own.transpose(-1, -2) - largest).clamp(max=0).exp() + each).tril()
        before = features @ state.products + self.epsilon * state.products.sum(-2, keepdim=True)
        values = weights @ value + before * (state.largest - largest).exp() + each * state.values
        last = largest[:, :, -1:]
        products = (keys * (own - last).exp()).transpose(-1, -2) @ value
        products = products + state.products * (state.largest - last).exp()
        return _normalised(values), _State(products, state.values + value.sum(-2, keepdim=True), last)

    def _nothing(self, value: Tensor) -> _State:
        batch, heads, _, width = value.shape
        products = value.new_zeros(batch, heads, self.num_features, width + 1)
        # not minus infinity, whose difference with itself is NaN
        largest = value.new_full((batch, heads, 1, 1), torch.finfo(value.dtype).min)
        return _State(products, value.new_zeros(batch, heads, 1, width + 1), largest)

    def _read(self, state: _State, key: Tensor, value: Tensor, keep: Tensor | None) -> _State:
        """``state`` with these keys and values in it."""
        for first in range(0, key.shape[2], _CHUNK):
            here = slice(first, first + _CHUNK)
            kept = None if keep is None else keep[:, here]
            values = _with_ones(value[:, :, here], kept)
            scores, norm, own = self._key_scores(key[:, :, here], kept)
            last = torch.maximum(own.amax(2, keepdim=True), state.largest)
            keys = self._keys(scores, norm + last)
            products = state.products * (state.largest - last).exp() + keys.transpose(-1, -2) @ values
            state = _State(products, state.values + values.sum(-2, keepdim=True), last)
        return state

    def _queries(self, query: Tensor) -> Tensor:
        """(batch, heads, seq, head_dim) -> the features e, (batch, heads, seq, features)."""
        scores, norm = self._scores(query)
        if self.feature_map == "relu":
            return scores.relu_()
        return scores.sub_(norm + scores.detach().amax(-1, keepdim=True)).exp_()

    def _key_scores(self, key: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of keys (batch, heads, seq, features), norms and stabilisers (batch, heads, seq, 1), zeros for
        relu.
        """
        scores, norm = self._scores(key)
        if self.feature_map == "relu":
            return scores, norm, torch.zeros_like(norm)
        own = scores.detach().amax(-1, keepdim=True)
        if keep is not None:
            padding = ~keep[:, None, :, None]
            own = own.masked_fill(padding, torch.finfo(own.dtype).min)
            norm = norm.masked_fill(padding, torch.inf)
        return scores, norm, own

    def _keys(self, scores: Tensor, units: Tensor) -> Tensor:
        """(batch, heads, seq, features): the features e of keys with these scores, in units of a stabiliser."""
        return scores.relu_() if self.feature_map == "relu" else scores.sub_(units).exp_()

    def _scores(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """``w x`` and ``|x|^2 / 2`` of x = token / head_dim^(1/4): (batch, heads, seq, features) and (..., seq, 1)."""
        width = tokens.shape[-1]
        scores = tokens @ (self.projection.to(tokens.dtype).t() * width**-0.25)
        norm: Tensor = tokens.square().sum(-1, keepdim=True) * (0.5 * width**-0.5)
        return scores, norm

    def extra_repr(self) -> str:
        return f"{self.num_features} features, {self.feature_map}, redraw_interval={self.redraw_interval}"


def redraw(model: nn.Module, step: int) -> None:
    """Call `Performer.redraw` of every module in training mode at the start of ``step`` (from 0)."""
    for module in model.modules():
        if isinstance(module, Performer) and module.training:
            module.redraw(step)


def orthogonal_directions(count: int, width: int, generator: torch.Generator) -> Tensor:
    """(count, width) float32: orthogonal in groups of ``width``, each as long as a Gaussian vector (section 2.4)."""
    groups = -(-count // width)
    # in float64, so that rounding to float32 hides in which order a machine's LAPACK adds
    gaussian = torch.randn(groups, width, width, generator=generator, dtype=torch.float64)
    orthogonal, upper = torch.linalg.qr(gaussian)
    # without the signs the result would depend on LAPACK's habits, and not be uniform over rotations
    orthogonal = orthogonal * upper.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]
    lengths = torch.randn(count, width, generator=generator, dtype=torch.float64).norm(dim=1, keepdim=True)
    directions: Tensor = orthogonal.transpose(-1, -2).flatten(0, 1)[:count] * lengths
    return directions.float()


def _generator(seed: int, layer: int, number: int) -> torch.Generator:
    digest = hashlib.blake2b(f"{seed}/{layer}/{number}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


def _with_ones(value: Tensor, keep: Tensor | None) -> Tensor:
    """(batch, heads, seq, head_dim) -> (..., head_dim + 1) with a column of ones; padding is zeros throughout."""
    value = F.pad(value, (0, 1), value=1.0)
    return value if keep is None else torch.where(keep[:, None, :, None], value, 0.0)


def _normalised(values: Tensor) -> Tensor:
    """Divide by the last column; zeros where it is zero."""
    total = values[..., -1:]
    return values[..., :-1] / torch.where(total > 0, total, 1.0)


class PerformerAttentionConfig(Config):
    """Every token sees every token, through random features (Choromanski et al. 2021). Keeps no documents apart."""

    kind: Literal["performer"] = "performer"
    num_features: int | None = Field(
        default=None, ge=1, description="random features of a head; head_dim * log(head_dim) where not given"
    )
    feature_map: FeatureMap = Field(
        default="softmax", description="softmax: an estimate of exact attention; relu: generalised attention"
    )
    redraw_interval: int = Field(
        default=0, ge=0, description="steps of training between new draws of the features; 0: never"
    )
    supports_packing: ClassVar[bool] = False
    is_positional: ClassVar[bool] = False

    def build(self, spec: AttentionSpec) -> nn.Module:
        spec.check_plain("performer")
        if spec.dropout:
            raise UserError(
                f"performer has no attention probabilities to drop (attention_probs_dropout_prob={spec.dropout}); "
                f"set attention_probs_dropout_prob: 0"
            )
        head_dim = spec.hidden_size // spec.num_attention_heads
        kernel = Performer(
            head_dim,
            self.num_features or max(1, int(head_dim * math.log(head_dim))),
            feature_map=self.feature_map,
            redraw_interval=self.redraw_interval,
            seed=spec.seed,
            layer=spec.layer,
        )
        return spec.multi_head(kernel)
