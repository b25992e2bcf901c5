"""Multi-head attention and cross-attention around a kernel; `AttentionSpec`, the settings of one attention module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn

from homespun.config import Config
from homespun.errors import UserError
from homespun.nn.masks import Mask
from homespun.nn.positions import Rotary

T = TypeVar("T")


class MultiHeadAttention(nn.Module):
    """Multi-head attention around a kernel (Vaswani et al. 2017, section 3.2.2).

    Args:
        hidden_size: width of input and output.
        num_attention_heads: number of heads.
        kernel: ``(query, key, value, mask) -> values``, each (batch, heads, seq, head_dim).
        head_size: width of a head; 0: ``hidden_size / num_attention_heads``.
        bias: add biases to the projections.
        num_key_value_heads: heads of keys and values, shared by groups of query heads (Ainslie et al. 2023); 0: all.
        rotary: rotation of queries and keys.
        query_norm, key_norm: norms of each head's queries and keys before rotation (Henry et al. 2020).

    Raises:
        UserError: ``head_size`` is 0 and ``hidden_size`` is not a multiple of ``num_attention_heads``.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        kernel: nn.Module,
        *,
        head_size: int = 0,
        bias: bool = True,
        num_key_value_heads: int = 0,
        rotary: Rotary | None = None,
        query_norm: nn.Module | None = None,
        key_norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads or num_attention_heads
        width = inner_size(hidden_size, num_attention_heads, head_size)
        key_width = width // num_attention_heads * self.num_key_value_heads
        self.query = nn.Linear(hidden_size, width, bias=bias)
        self.key = nn.Linear(hidden_size, key_width, bias=bias)
        self.value = nn.Linear(hidden_size, key_width, bias=bias)
        self.output = nn.Linear(width, hidden_size, bias=bias)
        self.query_norm, self.key_norm = query_norm, key_norm
        self.rotary = rotary
        self.kernel = kernel

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """Transform (batch, seq, hidden); keys and values are projected from ``mask.context`` if given."""
        context = hidden if mask.context is None else mask.context
        query = split_heads(self.query(hidden), self.num_attention_heads)
        key = split_heads(self.key(context), self.num_key_value_heads)
        value = split_heads(self.value(context), self.num_key_value_heads)
        if self.query_norm is not None and self.key_norm is not None:
            if torch.is_autocast_enabled(query.device.type):  # weights of norms stay float32
                query, key = query.float(), key.float()
            query, key = self.query_norm(query), self.key_norm(key)
        if self.rotary is not None:
            query, key = (self.rotary(part, start=mask.start, position_ids=mask.position_ids) for part in (query, key))
        query, key = query.to(value.dtype), key.to(value.dtype)
        if mask.cache is not None:
            key, value = mask.cache.extend(self, key, value)
        if self.num_key_value_heads != self.num_attention_heads:
            shared = self.num_attention_heads // self.num_key_value_heads
            key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
        values: Tensor = self.kernel(query, key, value, mask)  # (batch, heads, seq, head_dim)
        return self.output(values.transpose(1, 2).flatten(2))  # (batch, seq, hidden)


def inner_size(hidden_size: int, num_attention_heads: int, head_size: int) -> int:
    """Return the total width of the heads; ``head_size`` 0 means ``hidden_size / num_attention_heads``.

    Raises:
        UserError: ``hidden_size`` is not a multiple of ``num_attention_heads``.
    """
    if head_size:
        return head_size * num_attention_heads
    if hidden_size % num_attention_heads:
        raise UserError(
            f"hidden_size={hidden_size} must be a multiple of num_attention_heads={num_attention_heads}; "
            f"change one of them or set head_size"
        )
    return hidden_size


def split_heads(hidden: Tensor, heads: int) -> Tensor:
    """Map (batch, seq, hidden) to (batch, heads, seq, head_dim), without copying."""
    return hidden.reshape(*hidden.shape[:2], heads, -1).transpose(1, 2)


class CrossAttention(nn.Module):
    """Cross-attention: queries from the decoder; keys and values from the encoder, which a cache projects once.

    Arguments and errors as in `MultiHeadAttention`; ``source_size`` is the width of the encoder's hidden states.
    """

    def __init__(
        self,
        hidden_size: int,
        source_size: int,
        num_attention_heads: int,
        kernel: nn.Module,
        *,
        head_size: int = 0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_attention_heads = num_attention_heads
        width = inner_size(hidden_size, num_attention_heads, head_size)
        self.query = nn.Linear(hidden_size, width, bias=bias)
        self.key = nn.Linear(source_size, width, bias=bias)
        self.value = nn.Linear(source_size, width, bias=bias)
        self.output = nn.Linear(width, hidden_size, bias=bias)
        self.kernel = kernel

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """Transform (batch, seq, hidden) or (batch, streams, seq, hidden), keeping the shape.

        ``batch`` is a multiple of the rows of the source; adjacent rows (beams) share keys and values without a copy.

        Raises:
            ValueError: ``mask.source`` is None.
        """
        source = mask.source
        if source is None:
            raise ValueError("cross-attention needs mask.source, the output of the encoder")
        # (batch, seq, width), or (sources, beams * streams * seq, width)
        query = self.query(hidden).reshape(source.hidden.shape[0], -1, self.query.out_features)
        query = split_heads(query, self.num_attention_heads)

        def project() -> tuple[Tensor, Tensor]:
            key, value = (split_heads(part(source.hidden), self.num_attention_heads) for part in (self.key, self.value))
            return key, value

        key, value = project() if mask.cache is None else mask.cache.once(self, project)
        values: Tensor = self.kernel(query, key, value, source.mask)  # (batch, heads, seq, head_dim)
        mixed: Tensor = self.output(values.transpose(1, 2).flatten(2))  # (sources, beams * streams * seq, hidden)
        return mixed.view_as(hidden)


MAX_DRAWN = 2**24
"""Maximum number of random numbers drawn to build one attention module."""


@dataclass(frozen=True)
class AttentionSpec:
    """Settings of one attention module, made by the config of the stack.

    Args:
        hidden_size: width of input and output.
        num_attention_heads: number of heads.
        max_position_embeddings: maximum sequence length.
        layer: index of the layer, from 0.
        causal: no token sees a later one; `build` raises `UserError` if the attention does not support it.
        dropout: dropout probability of the attention probabilities, in training.
        seed: random seed of random blocks, hash rotations and random features; see `layer_seed`.
        head_size: width of a head; 0: ``hidden_size / num_attention_heads``.
        bias: projections have biases, unless the attention defines it.
        scaled: scores are divided by ``sqrt(head_size)``.
        hidden_dropout, layer_norm_eps: values of embeddings and norms inside the attention.
        num_key_value_heads: heads of keys and values; 0: ``num_attention_heads``.
        rotary: width of a head -> rotation of queries and keys; None: no rotation.
        qk_norm: width of a head -> norm of queries or keys; None: no norm.
        shared_with: module that the same config built for the previous layer; None in the first layer.
    """

    hidden_size: int
    num_attention_heads: int
    max_position_embeddings: int
    layer: int
    causal: bool
    dropout: float
    seed: int
    head_size: int = 0
    bias: bool = True
    scaled: bool = True
    hidden_dropout: float = 0.0
    layer_norm_eps: float = 1e-12
    num_key_value_heads: int = 0
    rotary: Callable[[int], Rotary] | None = None
    qk_norm: Callable[[int], nn.Module] | None = None
    shared_with: nn.Module | None = None

    def multi_head(self, kernel: nn.Module, *, bias: bool | None = None) -> MultiHeadAttention:
        """Build `MultiHeadAttention` around ``kernel``; ``bias`` overrides the spec's.

        Raises:
            UserError: an invalid size of heads.
        """
        size = inner_size(self.hidden_size, self.num_attention_heads, self.head_size) // self.num_attention_heads
        return MultiHeadAttention(
            self.hidden_size,
            self.num_attention_heads,
            kernel,
            head_size=self.head_size,
            bias=self.bias if bias is None else bias,
            num_key_value_heads=self.num_key_value_heads,
            rotary=None if self.rotary is None else self.rotary(size),
            query_norm=None if self.qk_norm is None else self.qk_norm(size),
            key_norm=None if self.qk_norm is None else self.qk_norm(size),
        )

    def check_own_projections(self, kind: str) -> None:
        """Raise `UserError` for rotated, normalised or grouped queries and keys, which ``kind`` does not support."""
        if self.rotary is not None:
            raise UserError(f"{kind} attention does not support rotary positions; set model.positions.kind=learned")
        if self.qk_norm is not None:
            raise UserError(f"{kind} attention does not support qk_norm=true; set model.qk_norm=false")
        if self.num_key_value_heads not in (0, self.num_attention_heads):
            raise UserError(
                f"{kind} attention does not support num_key_value_heads={self.num_key_value_heads}; "
                f"set model.num_key_value_heads=0"
            )

    @property
    def layer_seed(self) -> int:
        """Compute the seed of this layer's random numbers."""
        return (self.seed * 1009 + self.layer) % 2**63

    def check_scaled(self, kind: str) -> None:
        """Raise `UserError` for unscaled scores, which ``kind`` does not support."""
        if not self.scaled:
            raise UserError(f"{kind} attention does not support scale_attn_weights=false; remove it")

    def check_plain(self, kind: str) -> None:
        """Raise `UserError` for unscaled scores or a ``head_size`` other than ``hidden_size / num_attention_heads``."""
        if self.head_size and self.head_size * self.num_attention_heads != self.hidden_size:
            raise UserError(
                f"{kind} attention does not support head_size={self.head_size}, only hidden_size / "
                f"num_attention_heads; remove head_size"
            )
        self.check_scaled(kind)


class AttentionSettings(Config):
    """Base of the configs of attention.

    Attributes:
        supports_packing: attention between the documents of a packed row is masked.
        is_positional: the output depends on the order of tokens without position embeddings.
        reads_context: keys and values are computed from `Mask.context`, for any number of queries.
        reads_unpadded: attention within the texts of `Mask.lengths`.
    """

    supports_packing: ClassVar[bool] = True
    is_positional: ClassVar[bool] = False
    reads_context: ClassVar[bool] = False
    reads_unpadded: ClassVar[bool] = False

    @property
    def num_global_tokens(self) -> int:
        """Number of tokens at the start of each text that are always global."""
        return 0

    def fixed_length_setting(self, max_position_embeddings: int) -> str | None:
        """Return the setting that keeps weight shapes for longer sequences; None if there is none."""
        return None

    def of_layers(self, layers: Sequence[int]) -> AttentionSettings:
        """Return the settings of a stack of these layers."""
        return self


def of_layer(value: int | list[T], layer: int, name: str) -> int | T:
    """Return the value of a setting in a layer; the setting is one number, or a list with an entry for each layer.

    Raises:
        UserError: the list is shorter than the number of layers.
    """
    if isinstance(value, int):
        return value
    if layer >= len(value):
        raise UserError(f"{name} has {len(value)} numbers but there is a layer {layer + 1}; give one a layer, or one")
    return value[layer]


def of_layers(value: int | list[T], layers: Sequence[int]) -> int | list[T]:
    """Return the value of a setting in a stack of these layers; see `of_layer`."""
    return value if isinstance(value, int) else [value[layer] for layer in layers]
