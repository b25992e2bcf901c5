"""Performer: linear attention by random features (Choromanski et al. 2021)."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.attention.multi_head import AttentionSettings, AttentionSpec
from homespun.errors import UserError
from homespun.nn.masks import Mask

FeatureMap = Literal["softmax", "relu"]

# Tokens computed at once, so that their features stay in the cache of a CPU: less than half the time of full sequences.
# A causal chunk also holds a table of chunk x chunk.
_CHUNK = 512
_CAUSAL_CHUNK = 128


@dataclass(frozen=True)
class _State:
    """Sums over previous keys; values have a column of ones, which sums to the normaliser.

    Features are ``e + epsilon``; the term of epsilon is computed from ``values``.
    """

    products: Tensor  # (batch, heads, features, head_dim + 1): sum of e x value, divided by exp(largest)
    values: Tensor  # (batch, heads, 1, head_dim + 1): sum of values
    largest: Tensor  # (batch, heads, 1, 1): stabiliser


class Performer(nn.Module):
    """FAVOR+ attention: positive orthogonal random features estimate ``softmax(query key^T)`` (sections 2.2 to 2.4).

    Features are ``exp(w x - |x|^2 / 2 - largest) + epsilon`` for random directions ``w``, or ``relu(w x) + epsilon``
    (generalised attention). The stabiliser ``largest`` prevents overflow: the maximum of ``w x`` of the query, or over
    all keys that the query sees, so that results do not depend on padding or, if causal, on later tokens. Computed in
    float32 or wider. Queries that see no key give zeros.

    Args:
        head_dim: width of a head.
        num_features: number of random directions, shared by all heads.
        feature_map: ``softmax`` or ``relu``.
        redraw_interval: training steps between new directions, which are then part of the state dict; 0: never.
        seed, layer: seeds of the directions.

    Raises:
        UserError: `forward` with packed documents.
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
        self.epsilon = 1e-4 if feature_map == "softmax" else 1e-3  # values of the authors' code
        self._seed, self._layer, self._drawn = seed, layer, 0
        directions = orthogonal_directions(num_features, head_dim, _generator(seed, layer, 0))
        self.register_buffer("projection", directions, persistent=redraw_interval > 0)  # (features, head_dim)

    def redraw(self, step: int) -> None:
        """Draw new directions if training ``step`` has passed a multiple of ``redraw_interval``.

        Draw ``n`` is a function of (seed, layer, n), so that resuming gives the same directions.
        """
        number = step // self.redraw_interval if self.redraw_interval else 0
        if number != self._drawn:
            generator = _generator(self._seed, self._layer, number)
            count, width = self.projection.shape
            self.projection.copy_(orthogonal_directions(count, width, generator))
            self._drawn = number

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """Attend from (batch, heads, queries, head_dim) queries to (batch, heads, keys, head_dim) keys and values."""
        if mask.documents is not None:
            raise UserError("Performer does not support packed documents: it sums over all keys of a row")
        with torch.autocast(query.device.type, enabled=False):
            dtype = torch.promote_types(query.dtype, torch.float32)
            attend = self._causal if mask.causal else self._bidirectional
            values = attend(query.to(dtype), key.to(dtype), value.to(dtype), mask)
        return values.to(value.dtype)

    def _bidirectional(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        state = self._add_keys(self._initial_state(value), key, value, mask.keep)
        products = state.products + self.epsilon * state.values
        offset = self.epsilon * products.sum(-2, keepdim=True)
        chunks = [self._query_features(chunk) @ products + offset for chunk in torch.split(query, _CHUNK, 2)]
        return torch.cat([_normalised(chunk) for chunk in chunks], 2)

    def _causal(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        before = mask.start  # cached keys, which every query sees
        keep = mask.keep
        cached_keep = None if keep is None else keep[:, :before]
        state = self._add_keys(self._initial_state(value), key[:, :, :before], value[:, :, :before], cached_keep)
        chunks = []
        for first in range(0, query.shape[2], _CAUSAL_CHUNK):
            queries = query[:, :, first : first + _CAUSAL_CHUNK]
            part = slice(before + first, before + first + queries.shape[2])
            part_keep = None if keep is None else keep[:, part]
            chunk, state = self._causal_chunk(state, queries, key[:, :, part], value[:, :, part], part_keep)
            chunks.append(chunk)
        return torch.cat(chunks, 2)

    def _causal_chunk(
        self, state: _State, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None
    ) -> tuple[Tensor, _State]:
        """Attend from a chunk of queries to the keys of ``state`` and earlier keys; returns values and next state."""
        value = _with_ones(value, keep)
        features = self._query_features(query)  # (batch, heads, chunk, features)
        scores, norm, stabiliser = self._key_scores(key, keep)
        largest = torch.maximum(stabiliser.cummax(2).values, state.largest)  # stabiliser up to each key
        keys = self._key_features(scores, norm + stabiliser)
        # sums of each query use its own stabiliser, so that they do not depend on later keys
        offset = self.epsilon * (features.sum(-1, True) + self.epsilon * self.num_features)
        weights = features @ keys.transpose(-1, -2) + self.epsilon * keys.sum(-1)[:, :, None, :]
        weights = (weights * (stabiliser.transpose(-1, -2) - largest).clamp(max=0).exp() + offset).tril()
        before = features @ state.products + self.epsilon * state.products.sum(-2, keepdim=True)
        values = weights @ value + before * (state.largest - largest).exp() + offset * state.values
        last = largest[:, :, -1:]
        products = (keys * (stabiliser - last).exp()).transpose(-1, -2) @ value
        products = products + state.products * (state.largest - last).exp()
        return _normalised(values), _State(products, state.values + value.sum(-2, keepdim=True), last)

    def _initial_state(self, value: Tensor) -> _State:
        batch, heads, _, width = value.shape
        products = value.new_zeros(batch, heads, self.num_features, width + 1)
        # the least finite number: -inf - -inf is NaN
        largest = value.new_full((batch, heads, 1, 1), torch.finfo(value.dtype).min)
        return _State(products, value.new_zeros(batch, heads, 1, width + 1), largest)

    def _add_keys(self, state: _State, key: Tensor, value: Tensor, keep: Tensor | None) -> _State:
        for first in range(0, key.shape[2], _CHUNK):
            part = slice(first, first + _CHUNK)
            part_keep = None if keep is None else keep[:, part]
            values = _with_ones(value[:, :, part], part_keep)
            scores, norm, stabiliser = self._key_scores(key[:, :, part], part_keep)
            last = torch.maximum(stabiliser.amax(2, keepdim=True), state.largest)
            keys = self._key_features(scores, norm + last)
            products = state.products * (state.largest - last).exp() + keys.transpose(-1, -2) @ values
            state = _State(products, state.values + values.sum(-2, keepdim=True), last)
        return state

    def _query_features(self, query: Tensor) -> Tensor:
        """Map (batch, heads, seq, head_dim) to features e, (batch, heads, seq, features)."""
        scores, norm = self._scores(query)
        if self.feature_map == "relu":
            return scores.relu_()
        return scores.sub_(norm + scores.detach().amax(-1, keepdim=True)).exp_()

    def _key_scores(self, key: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Compute scores (batch, heads, seq, features), norms and stabilisers (batch, heads, seq, 1) of keys."""
        scores, norm = self._scores(key)
        if self.feature_map == "relu":
            return scores, norm, torch.zeros_like(norm)
        stabiliser = scores.detach().amax(-1, keepdim=True)
        if keep is not None:
            padding = ~keep[:, None, :, None]
            stabiliser = stabiliser.masked_fill(padding, torch.finfo(stabiliser.dtype).min)
            norm = norm.masked_fill(padding, torch.inf)
        return scores, norm, stabiliser

    def _key_features(self, scores: Tensor, offset: Tensor) -> Tensor:
        return scores.relu_() if self.feature_map == "relu" else scores.sub_(offset).exp_()

    def _scores(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Compute ``w x`` (batch, heads, seq, features) and ``|x|^2 / 2`` (..., seq, 1).

        ``x`` is ``token / head_dim^(1/4)``.
        """
        width = tokens.shape[-1]
        scores = tokens @ (self.projection.to(tokens.dtype).t() * width**-0.25)
        norm: Tensor = tokens.square().sum(-1, keepdim=True) * (0.5 * width**-0.5)
        return scores, norm

    def bottleneck(self, length: int) -> str:
        """Describe the vectors that represent all keys."""
        return f"{self.num_features} random features"

    def extra_repr(self) -> str:
        return f"{self.num_features} features, {self.feature_map}, redraw_interval={self.redraw_interval}"


def redraw(model: nn.Module, step: int) -> None:
    """Call `Performer.redraw` for every module in training mode, before ``step`` (from 0)."""
    for module in model.modules():
        if isinstance(module, Performer) and module.training:
            module.redraw(step)


def orthogonal_directions(count: int, width: int, generator: torch.Generator) -> Tensor:
    """Draw (count, width) float32 rows, orthogonal in groups of ``width``, with lengths of Gaussians (section 2.4)."""
    groups = -(-count // width)
    # float64: rounding to float32 hides differences between implementations of LAPACK
    gaussian = torch.randn(groups, width, width, generator=generator, dtype=torch.float64)
    orthogonal, upper = torch.linalg.qr(gaussian)
    # signs make the distribution uniform over rotations and independent of LAPACK
    orthogonal = orthogonal * upper.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]
    lengths = torch.randn(count, width, generator=generator, dtype=torch.float64).norm(dim=1, keepdim=True)
    return (orthogonal.transpose(-1, -2).flatten(0, 1)[:count] * lengths).float()


def _generator(seed: int, layer: int, number: int) -> torch.Generator:
    digest = hashlib.blake2b(f"{seed}/{layer}/{number}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


def _with_ones(value: Tensor, keep: Tensor | None) -> Tensor:
    """Map (batch, heads, seq, head_dim) to (..., head_dim + 1) with a column of ones, zero at padding."""
    value = F.pad(value, (0, 1), value=1.0)
    return value if keep is None else torch.where(keep[:, None, :, None], value, 0.0)


def _normalised(values: Tensor) -> Tensor:
    """Divide by the last column; zeros where it is zero."""
    total = values[..., -1:]
    return values[..., :-1] / torch.where(total > 0, total, 1.0)


class PerformerAttentionConfig(AttentionSettings):
    """Config of linear attention by random features (Choromanski et al. 2021); no packed documents."""

    kind: Literal["performer"] = "performer"
    num_features: int | None = Field(
        default=None, ge=1, description="random features a head; null: head_dim * log(head_dim)"
    )
    feature_map: FeatureMap = Field(
        default="softmax", description="softmax: estimate of softmax attention; relu: generalised attention"
    )
    redraw_interval: int = Field(
        default=0, ge=0, description="training steps between new draws of the features; 0: never"
    )
    supports_packing: ClassVar[bool] = False

    def build(self, spec: AttentionSpec) -> nn.Module:
        spec.check_plain("performer")
        if spec.dropout:
            raise UserError(
                f"performer attention does not support attention_probs_dropout_prob={spec.dropout}, as it has no "
                f"attention probabilities; set attention_probs_dropout_prob: 0"
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
