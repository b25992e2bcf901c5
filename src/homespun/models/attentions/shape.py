"""What every attention is built for: the layer that holds it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn


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
        previous: what the same config built for the layer before, for parts shared between layers; None in the first.
    """

    hidden_size: int
    num_attention_heads: int
    max_position_embeddings: int
    layer: int
    causal: bool
    dropout: float
    seed: int
    previous: nn.Module | None = None
