"""Linformer: attention over keys and values projected to fewer (Wang et al. 2020, section 4)."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.attention.full import attend
from homespun.attention.multi_head import AttentionSpec, MultiHeadAttention, of_layer, split_heads
from homespun.config import Config
from homespun.errors import UserError
from homespun.nn.masks import Mask


class LinearProjection(nn.Module):
    """``k`` learned sums over the positions of a text: E or F. A shorter text uses the first columns.

    Initialised as in the authors' code: uniform, Glorot's bound under a gain of 1 / sqrt(2). ``heads``: matrices; 1:
    shared.

    Raises:
        UserError: on a text longer than ``max_position_embeddings``.
    """

    def __init__(self, max_position_embeddings: int, k: int, *, heads: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, k, max_position_embeddings))
        bound = math.sqrt(3 / (k + max_position_embeddings))
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, tokens: Tensor, keep: Tensor | None) -> Tensor:
        """(batch, heads, seq, head_dim), zeros where ``keep`` (batch, seq) is False -> (batch, heads, k, head_dim)."""
        length, longest = tokens.shape[2], self.weight.shape[-1]
        if length > longest:
            raise UserError(f"sequence of {length} tokens exceeds max_position_embeddings={longest}; truncate it")
        weight = self.weight[..., :length]  # (heads or 1, k, seq)
        if weight.shape[0] > 1:
            return weight @ tokens
        # heads come as slices of one tensor: side by side they are one product, and nothing is copied
        together = weight[0] @ tokens.transpose(1, 2).flatten(2)  # (batch, k, heads * head_dim)
        split = together.reshape(*together.shape[:2], tokens.shape[1], -1)  # (batch, k, heads, head_dim)
        return split.transpose(1, 2)  # (batch, heads, k, head_dim)

    def seen(self, keep: Tensor | None) -> Tensor | None:
        """No mask: each of the ``k`` is a sum over the full text."""
        return None


class PooledProjection(nn.Module):
    """The mean of every ``window`` tokens in a row, without padding."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def forward(self, tokens: Tensor, keep: Tensor | None) -> Tensor:
        """(batch, heads, seq, head_dim), zeros where ``keep`` (batch, seq) is False -> one token a window."""
        real = tokens.new_ones(1, tokens.shape[2]) if keep is None else keep.to(tokens.dtype)
        count = _windows(real[:, None, :, None], self.window).sum(3).clamp(min=1)  # (batch or 1, 1, windows, 1)
        return _windows(tokens, self.window).sum(3) / count

    def seen(self, keep: Tensor | None) -> Tensor | None:
        """(batch, windows) bool: those that hold a real token; None when all do."""
        return None if keep is None else _windows_with_tokens(keep, self.window)

    def extra_repr(self) -> str:
        return f"window={self.window}"


class ConvolvedProjection(nn.Module):
    """A convolution over ``window`` tokens in steps of ``window``, without bias, so that padding is as zeros.

    ``head_dim``: channels in and out; ``heads``: sets of weights, 1 if all heads share one.
    """

    def __init__(self, window: int, head_dim: int, *, heads: int = 1) -> None:
        super().__init__()
        self.window = window
        self.weight = nn.Parameter(torch.empty(heads, window * head_dim, head_dim))
        bound = 1 / math.sqrt(window * head_dim)
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, tokens: Tensor, keep: Tensor | None) -> Tensor:
        """(batch, heads, seq, head_dim), zeros where ``keep`` (batch, seq) is False -> one token a window."""
        return _windows(tokens, self.window).flatten(3) @ self.weight

    def seen(self, keep: Tensor | None) -> Tensor | None:
        """(batch, windows) bool: those that hold a real token; None when all do."""
        return None if keep is None else _windows_with_tokens(keep, self.window)

    def extra_repr(self) -> str:
        return f"window={self.window}"


Projection = LinearProjection | PooledProjection | ConvolvedProjection


class Linformer(nn.Module):
    """Attention over projected keys and values: linear in the length (Wang et al. 2020, equation 7).

    Padded keys and values are zeros before they are projected, and a projected token without a real one is masked:
    results do not depend on padding. A row of padding alone gives zeros.

    Args:
        key_projection, value_projection: E and F of the paper, or one module for both.
        dropout: of the attention probabilities, in training.

    Raises:
        UserError: when called with packed documents or a causal mask: a projected key is made of all tokens.
    """

    def __init__(self, key_projection: Projection, value_projection: Projection, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.key_projection = key_projection
        self.value_projection = value_projection
        self.dropout = dropout

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """(batch, heads, queries, head_dim) from queries, and (batch, heads, keys, head_dim) keys and values."""
        keep = _kept(mask)
        key, value = _zeroed(key, keep), _zeroed(value, keep)
        return self.attend(query, self.key_projection(key, keep), self.value_projection(value, keep), keep)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None) -> Tensor:
        """Attention over projected keys and values (batch, heads, k, head_dim); ``keep`` is that of the tokens."""
        seen = self.key_projection.seen(keep)
        if seen is not None:
            # where nothing is real the values are zeros, and looking at them all gives zeros rather than NaN
            seen = (seen | ~seen.any(-1, keepdim=True))[:, None, None, :]
        dropout = self.dropout if self.training else 0.0
        return attend(query, key, value, table=seen, dropout=dropout)

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}"


class LinformerAttention(nn.Module):
    """`MultiHeadAttention` around a `Linformer`, whose parts it takes over, with less work.

    Where all heads share a projection E over positions, E (x W) = (E x) W: the text is projected first, and only ``k``
    tokens are multiplied by the weights of keys and values, a quarter of a layer's attention at 4,096 tokens. For
    linear or pooled projections that heads share.
    """

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.num_attention_heads = attention.num_attention_heads
        self.query, self.key, self.value = attention.query, attention.key, attention.value
        self.output = attention.output
        self.kernel = cast(Linformer, attention.kernel)

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """(batch, seq, hidden) -> (batch, seq, hidden)."""
        keep = _kept(mask)
        tokens = _zeroed(hidden[:, None], keep)  # (batch, 1, seq, hidden): as one head
        ones = _zeroed(hidden.new_ones(1, 1, hidden.shape[1], 1), keep)  # what the biases are multiplied by

        def project(projection: Projection) -> tuple[Tensor, Tensor]:
            return projection(tokens, keep)[:, 0], projection(ones, keep)[:, 0]  # (batch, k, hidden) and (..., k, 1)

        keys = project(self.kernel.key_projection)
        shared = self.kernel.value_projection is self.kernel.key_projection
        values = keys if shared else project(self.kernel.value_projection)
        query, key, value = (
            split_heads(part, self.num_attention_heads)  # (batch, heads, seq or k, head_dim)
            for part in (self.query(hidden), _linear(self.key, *keys), _linear(self.value, *values))
        )
        mixed: Tensor = self.output(self.kernel.attend(query, key, value, keep).transpose(1, 2).flatten(2))
        return mixed  # (batch, seq, hidden)


def _linear(layer: nn.Linear, tokens: Tensor, ones: Tensor) -> Tensor:
    """``layer`` of sums of tokens: its bias counts once for each token of the sum."""
    products = F.linear(tokens, layer.weight)
    return products if layer.bias is None else products + (ones * layer.bias).to(products.dtype)


def _kept(mask: Mask) -> Tensor | None:
    if mask.documents is not None or mask.causal:
        what = "the future hidden" if mask.documents is None else "packed documents apart"
        raise UserError(f"Linformer cannot keep {what}: its projected keys are made of all tokens of a row")
    return mask.keep


def _zeroed(tokens: Tensor, keep: Tensor | None) -> Tensor:
    """(batch, heads, seq, width) with zeros at padding, whose values may be anything."""
    return tokens if keep is None else torch.where(keep[:, None, :, None], tokens, 0.0)


def _windows(tokens: Tensor, window: int) -> Tensor:
    """(batch, heads, seq, width) -> (batch, heads, windows, window, width), the last one filled up with zeros."""
    missing = -tokens.shape[2] % window
    if missing:
        tokens = F.pad(tokens, (0, 0, 0, missing))
    # of the same strides where nothing is missing: a view
    return tokens.reshape(*tokens.shape[:2], -1, window, tokens.shape[3])


def _windows_with_tokens(keep: Tensor, window: int) -> Tensor:
    """(batch, seq) bool -> (batch, windows) bool."""
    return F.pad(keep, (0, -keep.shape[1] % window)).reshape(keep.shape[0], -1, window).any(-1)


class LinformerAttentionConfig(Config):
    """Every token sees ``k`` projections of all tokens (Wang et al. 2020). Neither causal nor for packed documents.

    ``sharing`` (section 4): ``none`` has matrices of each head for keys and for values, ``headwise`` one for keys and
    one for values, ``key_value`` one for both, ``layerwise`` the same one in all layers. ``pooled`` has nothing to
    share. Windows (pooled, convolved) are of ``max_position_embeddings / k`` tokens, rounded up.
    """

    kind: Literal["linformer"] = "linformer"
    k: int | list[int] = Field(default=256, description="tokens left of the keys; one number, or one a layer")
    sharing: Literal["none", "headwise", "key_value", "layerwise"] = "headwise"
    projection: Literal["linear", "pooled", "convolved"] = Field(
        default="linear", description="learned sums over all places, means of windows, or convolutions over windows"
    )
    supports_packing: ClassVar[bool] = False
    is_positional: ClassVar[bool] = True

    def build(self, spec: AttentionSpec) -> nn.Module:
        spec.check_plain("linformer")
        spec.check_own_projections("linformer")
        if spec.causal:
            raise UserError(
                "linformer cannot be causal: each projected key is made of all tokens; "
                "use full, sparse or performer, or set causal: false"
            )
        if self.sharing == "layerwise" and spec.layer > 0:
            key = value = self._of_the_layer_before(spec)
        else:
            key = self._projection(spec)
            value = self._projection(spec) if self.sharing in ("none", "headwise") else key
        kernel = Linformer(key, value, dropout=spec.dropout)
        attention = spec.multi_head(kernel)
        # sums over places that are the same in all heads may come before the products with the weights; others not
        summed = self.sharing != "none" and self.projection != "convolved"
        return LinformerAttention(attention) if summed else attention

    def _projection(self, spec: AttentionSpec) -> Projection:
        k, longest = self._k(spec.layer), spec.max_position_embeddings
        if not 1 <= k <= longest:
            raise UserError(
                f"k={k} must be from 1 to max_position_embeddings={longest}: it is what is left of the keys"
            )
        heads = spec.num_attention_heads if self.sharing == "none" else 1
        window = -(-longest // k)
        if self.projection == "pooled":
            return PooledProjection(window)
        if self.projection == "convolved":
            return ConvolvedProjection(window, spec.hidden_size // spec.num_attention_heads, heads=heads)
        return LinearProjection(longest, k, heads=heads)

    def _k(self, layer: int) -> int:
        if self.sharing == "layerwise" and isinstance(self.k, list) and len(set(self.k)) > 1:
            raise UserError(f"sharing=layerwise has one projection for all layers, so one k, not {self.k}; give one")
        return of_layer(self.k, layer, "k")

    def _of_the_layer_before(self, spec: AttentionSpec) -> Projection:
        if spec.shared_with is None:
            raise UserError(
                "sharing=layerwise needs linformer in every layer; with other attentions between, use key_value"
            )
        return cast(Projection, spec.shared_with.get_submodule("kernel.key_projection"))
