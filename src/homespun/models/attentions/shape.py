"""What every attention is built for: the layer that holds it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from homespun.errors import UserError

MOST_DRAWN = 2**24
"""Numbers that one attention may draw when it is built."""


@dataclass(frozen=True)
class AttentionShape:
    """The place of one attention in its model.

    Args:
        hidden_size: width of the stream that it reads and writes.
        num_attention_heads: heads.
        max_position_embeddings: the longest input.
        layer: its layer, from 0.
        causal: whether no token may see a later one. An attention that cannot do that raises `UserError` when built.
        dropout: of the attention probabilities, in training.
        seed: of what is drawn once for the model's life (random blocks, hash rotations, random features); mix in
            ``layer`` where layers should differ.
        head_size: width of a head; 0: ``hidden_size / num_attention_heads``.
        bias: whether projections have biases, where the attention's paper leaves that open.
        scaled: whether scores are divided by ``sqrt(head_size)``.
        hidden_dropout: of vectors, in training, where the attention has some of its own.
        layer_norm_eps: the epsilon of its norms, where it has any.
        previous: what the same config built for the layer before, for parts shared between layers; None in the first.
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
    previous: nn.Module | None = None

    @property
    def draw(self) -> int:
        """The seed of what this layer draws, which no generator refuses."""
        return (self.seed * 1009 + self.layer) % 2**63

    def check_scaled(self, kind: str) -> None:
        """For an attention with scaled scores.

        Raises:
            UserError: others are asked for.
        """
        if not self.scaled:
            raise UserError(f"{kind} attention scales its scores; leave scale_attn_weights out")

    def check_plain(self, kind: str) -> None:
        """For an attention whose heads are equal parts of the stream, with scaled scores.

        Raises:
            UserError: something else is asked for.
        """
        if self.head_size and self.head_size * self.num_attention_heads != self.hidden_size:
            raise UserError(
                f"{kind} attention has heads of hidden_size / num_attention_heads, not of head_size={self.head_size}; "
                f"leave head_size out"
            )
        self.check_scaled(kind)


def of_layer(value: int | list[int], layer: int, name: str) -> int:
    """What a setting that is one number, or one a layer, is in this layer.

    Raises:
        UserError: a list that ends before it.
    """
    if isinstance(value, int):
        return value
    if layer >= len(value):
        raise UserError(f"{name} has {len(value)} numbers and there is a layer {layer + 1}; give one a layer, or one")
    return value[layer]
