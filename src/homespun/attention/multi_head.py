"""Multi-head attention and cross-attention around a kernel; `AttentionSpec`, the settings of one attention module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from homespun.errors import UserError
from homespun.nn.masks import Mask
from homespun.nn.positions import Rotary


class Kernel(Protocol):
    """``(query, key, value, mask) -> values``, each (batch, heads, seq, head_dim)."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor: ...


class Attention(Protocol):
    """``(batch, seq, hidden) -> (batch, seq, hidden)``: interface of attentions with their own projections."""

    def __call__(self, hidden: Tensor, mask: Mask) -> Tensor: ...


class MultiHeadAttention(nn.Module):
    """Project to heads, let the kernel mix, project back (Vaswani et al. 2017, section 3.2.2).

    Args:
        hidden_size: width of the stream that it reads and writes.
        num_attention_heads: heads.
        kernel: `Kernel`.
        head_size: width of a head; 0: ``hidden_size / num_attention_heads``.
        bias: the projections have biases.
        num_key_value_heads: heads of keys and values, each shared by several query heads (Ainslie et al. 2023); 0: all.
        rotary: rotates queries and keys by their positions, if given.
        query_norm, key_norm: normalise each head's queries and keys before they are rotated (Henry et al. 2020).

    Raises:
        UserError: ``hidden_size`` is not a multiple of ``num_attention_heads``, and no ``head_size`` is given.
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
        narrow = width // num_attention_heads * self.num_key_value_heads
        self.query = nn.Linear(hidden_size, width, bias=bias)
        self.key = nn.Linear(hidden_size, narrow, bias=bias)
        self.value = nn.Linear(hidden_size, narrow, bias=bias)
        self.output = nn.Linear(width, hidden_size, bias=bias)
        self.query_norm, self.key_norm = query_norm, key_norm
        self.rotary = rotary
        self.kernel = kernel

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """(batch, seq, hidden) -> (batch, seq, hidden)."""
        query = split_heads(self.query(hidden), self.num_attention_heads)
        key = split_heads(self.key(hidden), self.num_key_value_heads)
        value = split_heads(self.value(hidden), self.num_key_value_heads)
        if self.query_norm is not None and self.key_norm is not None:
            wide = torch.promote_types(query.dtype, torch.float32)  # bfloat16 under autocast, and weights are not
            query, key = self.query_norm(query.to(wide)), self.key_norm(key.to(wide))
        if self.rotary is not None:
            query, key = (self.rotary(part, start=mask.start, position_ids=mask.position_ids) for part in (query, key))
        if mask.cache is not None:
            key, value = mask.cache.extend(self, key, value)
        if self.num_key_value_heads != self.num_attention_heads:
            shared = self.num_attention_heads // self.num_key_value_heads
            key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
        values: Tensor = self.kernel(query, key, value, mask)  # (batch, heads, seq, head_dim)
        mixed: Tensor = self.output(values.transpose(1, 2).flatten(2))  # (batch, seq, hidden)
        return mixed


def inner_size(hidden_size: int, num_attention_heads: int, head_size: int) -> int:
    """Width of all heads together; ``head_size`` 0 means ``hidden_size / num_attention_heads``.

    Raises:
        UserError: that is not a whole number.
    """
    if head_size:
        return head_size * num_attention_heads
    if hidden_size % num_attention_heads:
        raise UserError(
            f"hidden_size={hidden_size} is not a multiple of num_attention_heads={num_attention_heads}; "
            f"choose heads that divide it"
        )
    return hidden_size


def split_heads(hidden: Tensor, heads: int) -> Tensor:
    """(batch, seq, hidden) -> (batch, heads, seq, head_dim), without copying."""
    return hidden.reshape(*hidden.shape[:2], heads, -1).transpose(1, 2)


class CrossAttention(nn.Module):
    """Queries from the stream, keys and values from ``source``; with a cache those are projected once.

    Arguments and errors are those of `MultiHeadAttention`; ``source_size`` is the width of the encoder's hidden states.
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
        """(batch, seq, hidden) -> the same; also for prediction streams, (batch, streams, seq, hidden).

        Several rows may share a row of the source (beams, next to each other): their queries go together, keys are not
        copied.

        Raises:
            ValueError: there is no source.
        """
        source = mask.source
        if source is None:
            raise ValueError("cross-attention without a source: the mask of a decoder has one")
        # (batch, seq, width), or (sources, beams * streams * seq, width)
        asking = self.query(hidden).reshape(source.hidden.shape[0], -1, self.query.out_features)
        query = split_heads(asking, self.num_attention_heads)

        def project() -> tuple[Tensor, Tensor]:
            key, value = (split_heads(part(source.hidden), self.num_attention_heads) for part in (self.key, self.value))
            return key, value

        key, value = project() if mask.cache is None else mask.cache.once(self, project)
        values: Tensor = self.kernel(query, key, value, source.mask)  # (batch, heads, seq, head_dim)
        mixed: Tensor = self.output(values.transpose(1, 2).flatten(2))  # (sources, beams * streams * seq, hidden)
        return mixed.view_as(hidden)


MAX_DRAWN = 2**24
"""Numbers that one attention may draw when it is built."""


@dataclass(frozen=True)
class AttentionSpec:
    """Settings of one attention module, given by the layer that holds it.

    Args:
        hidden_size: width of the stream that it reads and writes.
        num_attention_heads: heads.
        max_position_embeddings: longest input.
        layer: number of its layer, from 0.
        causal: no token sees a later one. An attention that cannot do that raises `UserError` when built.
        dropout: of the attention probabilities, in training.
        seed: of random blocks, hash rotations and random features; mix in ``layer`` where layers should differ.
        head_size: width of a head; 0: ``hidden_size / num_attention_heads``.
        bias: projections have biases, where the attention's paper leaves that open.
        scaled: scores are divided by ``sqrt(head_size)``.
        hidden_dropout, layer_norm_eps: of the attention's own vectors and norms, if it has any.
        num_key_value_heads: heads of keys and values; 0: ``num_attention_heads``.
        rotary: width of a head -> rotation of queries and keys; None: positions are not rotary.
        qk_norm: width of a head -> norm of queries or keys; None: they are not normalised.
        shared_with: module that the same config built for the layer before; None in the first.
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
        """Multi-head attention around ``kernel``; ``bias`` where the attention decides it.

        Raises:
            UserError: heads that the width or the rotation does not allow.
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
        """Raise `UserError` for projections that are rotated, normalised or grouped, which ``kind`` cannot have."""
        if self.rotary is not None:
            raise UserError(f"{kind} attention does not rotate queries and keys; set model.positions.kind=learned")
        if self.qk_norm is not None:
            raise UserError(f"{kind} attention does not normalise queries and keys; set model.qk_norm=false")
        if self.num_key_value_heads not in (0, self.num_attention_heads):
            raise UserError(f"{kind} attention has as many key heads as query heads; set model.num_key_value_heads=0")

    @property
    def draw(self) -> int:
        """Seed of this layer's random numbers."""
        return (self.seed * 1009 + self.layer) % 2**63

    def check_scaled(self, kind: str) -> None:
        """Raise `UserError` for scores that are not scaled, which ``kind`` cannot have."""
        if not self.scaled:
            raise UserError(f"{kind} attention scales its scores; leave scale_attn_weights out")

    def check_plain(self, kind: str) -> None:
        """Raise `UserError` for scores that are not scaled, or heads that are not equal parts of the stream."""
        if self.head_size and self.head_size * self.num_attention_heads != self.hidden_size:
            raise UserError(
                f"{kind} attention has heads of hidden_size / num_attention_heads, not of head_size={self.head_size}; "
                f"leave head_size out"
            )
        self.check_scaled(kind)


def of_layer(value: int | list[int], layer: int, name: str) -> int:
    """Value in this layer of a setting that is one number, or one a layer.

    Raises:
        UserError: the list is too short.
    """
    if isinstance(value, int):
        return value
    if layer >= len(value):
        raise UserError(f"{name} has {len(value)} numbers and there is a layer {layer + 1}; give one a layer, or one")
    return value[layer]
