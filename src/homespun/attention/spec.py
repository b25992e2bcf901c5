"""Specification that every attention module is built from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from homespun.attention.multi_head import MultiHeadAttention, inner_size
from homespun.errors import UserError
from homespun.nn.positions import Rotary

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
