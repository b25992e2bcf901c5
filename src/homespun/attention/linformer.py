"""Linformer: attention over keys and values projected to a fixed length (Wang et al. 2020, section 4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.attention.full import attend
from homespun.attention.multi_head import (
    AttentionSettings,
    AttentionSpec,
    MultiHeadAttention,
    of_layer,
    of_layers,
    split_heads,
)
from homespun.errors import UserError, quantity
from homespun.nn.masks import Mask


class LinearProjection(nn.Module):
    """Learned projection of positions to ``k`` rows, E or F of the paper; shorter sequences use its first columns.

    Initialised as in the authors' code: Glorot uniform with a gain of 1 / sqrt(2).

    Args:
        max_position_embeddings: maximum sequence length; `forward` raises `UserError` for longer sequences.
        k: projected length.
        heads: number of matrices; 1: shared by all heads.
    """

    window = 0  # every projected key depends on all tokens

    def __init__(self, max_position_embeddings: int, k: int, *, heads: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, k, max_position_embeddings))
        bound = math.sqrt(3 / (k + max_position_embeddings))
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, tokens: Tensor, keep: Tensor | None) -> Tensor:
        """Project (batch, heads, seq, head_dim), zero at padding, to (batch, heads, k, head_dim)."""
        length, limit = tokens.shape[2], self.weight.shape[-1]
        if length > limit:
            raise UserError(f"sequence of {length} tokens exceeds max_position_embeddings={limit}; truncate it")
        weight = self.weight[..., :length]  # (heads or 1, k, seq)
        if weight.shape[0] > 1:
            return weight @ tokens
        # heads are slices of one tensor: one product of concatenated heads, without a copy
        projected = weight[0] @ tokens.transpose(1, 2).flatten(2)  # (batch, k, heads * head_dim)
        return split_heads(projected, tokens.shape[1])  # (batch, heads, k, head_dim)


class PooledProjection(nn.Module):
    """Mean over windows of ``window`` tokens, without padding."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def forward(self, tokens: Tensor, keep: Tensor | None) -> Tensor:
        """Average (batch, heads, seq, head_dim), zero at padding, to (batch, heads, windows, head_dim)."""
        real = tokens.new_ones(1, tokens.shape[2]) if keep is None else keep.to(tokens.dtype)
        count = _windows(real[:, None, :, None], self.window).sum(3).clamp(min=1)  # (batch or 1, 1, windows, 1)
        return _windows(tokens, self.window).sum(3) / count

    def extra_repr(self) -> str:
        return f"window={self.window}"


class ConvolvedProjection(nn.Module):
    """Convolution over windows of ``window`` tokens with stride ``window``, without bias.

    Args:
        window: width and stride.
        head_dim: channels in and out.
        heads: number of weight matrices; 1: shared by all heads.
    """

    def __init__(self, window: int, head_dim: int, *, heads: int = 1) -> None:
        super().__init__()
        self.window = window
        self.weight = nn.Parameter(torch.empty(heads, window * head_dim, head_dim))
        bound = 1 / math.sqrt(window * head_dim)
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, tokens: Tensor, keep: Tensor | None) -> Tensor:
        """Convolve (batch, heads, seq, head_dim), zero at padding, to (batch, heads, windows, head_dim)."""
        return _windows(tokens, self.window).flatten(3) @ self.weight

    def extra_repr(self) -> str:
        return f"window={self.window}"


Projection = LinearProjection | PooledProjection | ConvolvedProjection


class Linformer(nn.Module):
    """Attention over projected keys and values, linear in the sequence length (Wang et al. 2020, equation 7).

    Padding is set to zero before the projection and windows without real tokens are masked, so that results do not
    depend on padding. A row of padding only gives zeros.

    Args:
        key_projection, value_projection: E and F of the paper; may be the same module.
        dropout: dropout probability of the attention probabilities, in training.

    Raises:
        UserError: `forward` with packed documents or a causal mask.
    """

    def __init__(self, key_projection: Projection, value_projection: Projection, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.key_projection = key_projection
        self.value_projection = value_projection
        self.dropout = dropout

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """Attend from (batch, heads, queries, head_dim) queries to (batch, heads, keys, head_dim) keys and values."""
        keep = _checked_keep(mask)
        key, value = _zero_padding(key, keep), _zero_padding(value, keep)
        return self.attend(query, self.key_projection(key, keep), self.value_projection(value, keep), keep)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None) -> Tensor:
        """Attend to projected keys and values, (batch, heads, k, head_dim); ``keep`` is (batch, keys)."""
        table = None
        if keep is not None and self.key_projection.window:
            real = _windows_with_tokens(keep, self.key_projection.window)
            # rows of padding see all projected keys, whose values are zero, to avoid NaN
            table = (real | ~real.any(-1, keepdim=True))[:, None, None, :]
        dropout = self.dropout if self.training else 0.0
        return attend(query, key, value, table=table, dropout=dropout)

    def bottleneck(self, length: int) -> str:
        """Describe the vectors that represent all ``length`` keys."""
        projection = self.key_projection
        if isinstance(projection, LinearProjection):
            return quantity(projection.weight.shape[1], "projection")
        return quantity(-(-length // projection.window), "projection")

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}"


class LinformerAttention(nn.Module):
    """Faster equivalent of `MultiHeadAttention` around `Linformer` for linear or pooled projections shared by heads.

    ``E (x W) = (E x) W``: positions are projected first, so that the weights of keys and values multiply ``k`` tokens
    instead of all, a quarter of the attention's time at 4,096 tokens.

    Args:
        attention: module whose parameters are used.
    """

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.num_attention_heads = attention.num_attention_heads
        self.query, self.key, self.value = attention.query, attention.key, attention.value
        self.output = attention.output
        self.kernel = cast(Linformer, attention.kernel)

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """Map (batch, seq, hidden) to (batch, seq, hidden)."""
        keep = _checked_keep(mask)
        tokens = _zero_padding(hidden[:, None], keep)  # (batch, 1, seq, hidden): one head
        ones = _zero_padding(hidden.new_ones(1, 1, hidden.shape[1], 1), keep)  # factors of the biases

        def project(projection: Projection) -> tuple[Tensor, Tensor]:
            return projection(tokens, keep)[:, 0], projection(ones, keep)[:, 0]  # (batch, k, hidden) and (..., k, 1)

        keys = project(self.kernel.key_projection)
        shared = self.kernel.value_projection is self.kernel.key_projection
        values = keys if shared else project(self.kernel.value_projection)
        query, key, value = (
            split_heads(part, self.num_attention_heads)  # (batch, heads, seq or k, head_dim)
            for part in (self.query(hidden), _linear(self.key, *keys), _linear(self.value, *values))
        )
        attended = self.kernel.attend(query, key, value, keep)  # (batch, heads, seq, head_dim)
        return self.output(attended.transpose(1, 2).flatten(2))  # (batch, seq, hidden)


def _linear(layer: nn.Linear, tokens: Tensor, ones: Tensor) -> Tensor:
    """Apply ``layer`` to sums of tokens; its bias counts once for each token."""
    products = F.linear(tokens, layer.weight)
    return products if layer.bias is None else products + (ones * layer.bias).to(products.dtype)


def _checked_keep(mask: Mask) -> Tensor | None:
    if mask.documents is not None or mask.causal:
        what = "a causal mask of future tokens" if mask.documents is None else "packed documents"
        raise UserError(f"Linformer does not support {what}: each projected key depends on all tokens of a row")
    return mask.keep


def _zero_padding(tokens: Tensor, keep: Tensor | None) -> Tensor:
    """Set padding of (batch, heads, seq, width) to zero."""
    return tokens if keep is None else torch.where(keep[:, None, :, None], tokens, 0.0)


def _windows(tokens: Tensor, window: int) -> Tensor:
    """Map (batch, heads, seq, width) to (batch, heads, windows, window, width), zero-padded."""
    missing = -tokens.shape[2] % window
    if missing:
        tokens = F.pad(tokens, (0, 0, 0, missing))
    return tokens.reshape(*tokens.shape[:2], -1, window, tokens.shape[3])


def _windows_with_tokens(keep: Tensor, window: int) -> Tensor:
    """Map (batch, seq) bool to (batch, windows) bool."""
    return F.pad(keep, (0, -keep.shape[1] % window)).reshape(keep.shape[0], -1, window).any(-1)


class LinformerAttentionConfig(AttentionSettings):
    """Config of attention to ``k`` projections of all tokens (Wang et al. 2020).

    Supports neither causal models nor packed documents. ``sharing`` (section 4): ``none``: matrices of each head for
    keys and for values; ``headwise``: one for keys and one for values; ``key_value``: one for both; ``layerwise``: one
    for all layers. Windows (``pooled``, ``convolved``) have ``max_position_embeddings / k`` tokens, rounded up.
    """

    kind: Literal["linformer"] = "linformer"
    k: int | list[int] = Field(default=256, description="projected length; one number, or one a layer")
    sharing: Literal["none", "headwise", "key_value", "layerwise"] = "headwise"
    projection: Literal["linear", "pooled", "convolved"] = Field(
        default="linear", description="learned matrix, mean of windows, or convolution over windows"
    )
    supports_packing: ClassVar[bool] = False
    is_positional: ClassVar[bool] = True

    def of_layers(self, layers: Sequence[int]) -> LinformerAttentionConfig:
        return self.model_copy(update={"k": of_layers(self.k, layers)})

    def build(self, spec: AttentionSpec) -> nn.Module:
        spec.check_plain("linformer")
        spec.check_own_projections("linformer")
        if spec.causal:
            raise UserError(
                "linformer attention does not support causal=true: each projected key depends on all tokens; "
                "use full, sparse or performer, or set causal: false"
            )
        if self.sharing == "layerwise" and spec.layer > 0:
            if spec.shared_with is None:
                raise UserError("sharing=layerwise needs linformer attention in every layer; use sharing=key_value")
            key = value = cast(Projection, spec.shared_with.get_submodule("kernel.key_projection"))
        else:
            key = self._projection(spec)
            value = self._projection(spec) if self.sharing in ("none", "headwise") else key
        attention = spec.multi_head(Linformer(key, value, dropout=spec.dropout))
        shared_sums = self.sharing != "none" and self.projection != "convolved"
        return LinformerAttention(attention) if shared_sums else attention

    def _projection(self, spec: AttentionSpec) -> Projection:
        if self.sharing == "layerwise" and isinstance(self.k, list) and len(set(self.k)) > 1:
            raise UserError(f"k={self.k} must be one number with sharing=layerwise; set k={self.k[0]}")
        k, limit = of_layer(self.k, spec.layer, "k"), spec.max_position_embeddings
        if not 1 <= k <= limit:
            raise UserError(f"k={k} must be from 1 to max_position_embeddings={limit}; change k")
        heads = spec.num_attention_heads if self.sharing == "none" else 1
        window = -(-limit // k)
        if self.projection == "pooled":
            return PooledProjection(window)
        if self.projection == "convolved":
            return ConvolvedProjection(window, spec.hidden_size // spec.num_attention_heads, heads=heads)
        return LinearProjection(limit, k, heads=heads)
