"""Start the first layer's heads at their neighbours: what lets encoders with absolute positions learn early.

The input at a masked token says nothing about it, so nothing but token frequencies is learned until some head looks at
a neighbour. Attention of relative positions finds its neighbours within hundreds of steps; with absolute positions
queries and keys first have to agree on what a position is, and a small model stays at the unigram baseline for millions
of tokens (results/efficiency.md). Here the queries and keys of the first layer are fitted to the positions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from homespun.errors import UserError
from homespun.models.backbone import Encoder
from homespun.nn.attention import MultiHeadAttention
from homespun.nn.global_attention import GlobalAttention
from homespun.nn.kernels.linformer import LinearProjection, LinformerAttention
from homespun.nn.positions import LearnedPositions, SinusoidalPositions
from homespun.nn.relative_bias import RelativeBias

OFFSETS = (-1, 1, -2, 2)
CAUSAL_OFFSETS = (-1, -2, -3, -4)
_PEAK = 12.0  # logit of the position that a head looks at, where embeddings are words and positions half and half
_SHARED_PEAK = 6.0  # of relative biases, which all layers share
_RIDGE = 1e-4
_FASTEST = 4  # frequencies that a rotated head uses: the slower ones do not tell a position from the next
_FITTED = 512  # positions that queries and keys are fitted to, at most


@torch.no_grad()
def initialise_neighbour_heads(encoder: Encoder, *, deviation: float, step: int = 1) -> None:
    """Let head h of the first layer attend to the position at ``OFFSETS[h] * step`` from each token.

    With rotary positions the biases of queries and keys agree at the offset. Learned positions start as sinusoids of
    the words' deviation, whose frequencies are spaced evenly up to pi, so that neighbouring positions differ most.
    Projected keys (Linformer) start as the keys, folded where a text is longer than ``k``. Heads beyond the fourth stay
    as they were drawn. Of relative biases, which all layers share, the number of each head's offset is raised; a causal
    stack has the offsets of `CAUSAL_OFFSETS`.

    Args:
        encoder: a new stack whose first layer projects queries and keys.
        deviation: of the word embeddings.
        step: distance between two tokens that a head can see: 2 in windows of dilation 2.

    Raises:
        UserError: positions are neither learned, sinusoidal, rotary with biases, nor relative biases.
    """
    attentions = list(encoder.layers[0].modules())
    biases = [module for module in attentions if isinstance(module, RelativeBias)]
    if biases:
        _raise_neighbours(biases[0], step, causal=encoder.causal)
        return
    turned = [module for module in attentions if isinstance(module, MultiHeadAttention) and module.rotary is not None]
    if turned:
        for attention in turned:
            _bias(attention, step)
        return
    positions, size = encoder.embeddings.positions, encoder.embeddings.embedding_size
    half = torch.arange(size // 2)
    if isinstance(positions, LearnedPositions):
        frequencies = math.pi * (half + 0.5) / len(half)
        table = _sinusoids(frequencies, positions.max_position_embeddings, size)
        positions.embedding.weight[positions.offset :] = table * (deviation * math.sqrt(2))
        frequencies = frequencies[torch.randperm(len(half), generator=torch.Generator().manual_seed(0))]
    elif isinstance(positions, SinusoidalPositions):
        frequencies = torch.exp(half * (-2 * math.log(10_000.0) / size))
    else:
        raise UserError(
            "neighbour_heads needs learned, sinusoidal or rotary positions, or relative biases; set "
            "model.neighbour_heads=0"
        )
    length = min(_FITTED, positions.max_position_embeddings)
    zero = encoder.embeddings.words.weight.new_zeros(size)
    entering = encoder.projection(positions(None, length)[0]) - encoder.projection(zero)  # (length, hidden)
    # of two streams side by side, attention reads the second (homespun.nn.reversible)
    entering = encoder.streams.enter(entering)
    for module in attentions:
        if isinstance(module, (MultiHeadAttention, GlobalAttention, LinformerAttention)):
            read = entering[:, -module.query.in_features :]
            read = read / read.square().mean(-1, keepdim=True).sqrt() * math.sqrt(0.5)  # half of a normalised token
            _fit(module.query.weight, module.key.weight, module.num_attention_heads, read, frequencies, step)
    for module in encoder.modules():
        if isinstance(module, LinearProjection):
            k, longest = module.weight.shape[1:]
            module.weight.copy_(torch.arange(longest) % k == torch.arange(k)[:, None])


def _bias(attention: MultiHeadAttention, step: int) -> None:
    """Set biases of queries and keys: rotated by their positions, they agree most at the head's offset.

    Their product is ``sum_i a^2 cos(w_i (j - i - offset))`` over the fastest frequencies ``w_i``.
    """
    query, key = attention.query.bias, attention.key.bias
    if query is None or key is None or attention.num_key_value_heads != attention.num_attention_heads:
        raise UserError(
            "neighbour_heads with rotary positions needs biases, and as many heads of keys as of queries; set "
            "model.attention_bias=true and model.num_key_value_heads=0, or model.neighbour_heads=0"
        )
    assert attention.rotary is not None
    size = len(query) // attention.num_attention_heads
    frequencies = attention.rotary.frequencies[:_FASTEST]
    scale = math.sqrt(_PEAK * math.sqrt(size) / len(frequencies))
    for head, offset in zip(range(attention.num_attention_heads), OFFSETS, strict=False):
        first = head * size + torch.arange(len(frequencies))
        angles = frequencies * offset * step
        query[first] = scale
        key[first], key[first + size // 2] = scale * angles.cos(), -scale * angles.sin()


def _raise_neighbours(bias: RelativeBias, step: int, *, causal: bool) -> None:
    """Raise the number of each head's offset: that of its bucket, in which there is no other distance."""
    weight = bias.embedding.weight  # (buckets, heads)
    for head, offset in zip(range(weight.shape[1]), CAUSAL_OFFSETS if causal else OFFSETS, strict=False):
        place = bias.longest - 1 + offset * step
        weight[:, head].index_fill_(0, bias.buckets[place : place + 1], _SHARED_PEAK)  # not by value: it may be on meta


def _sinusoids(frequencies: Tensor, length: int, width: int) -> Tensor:
    """(length, width): sines, then cosines; zero in the rest of the width."""
    angles = torch.arange(length)[:, None] * frequencies
    table = torch.zeros(length, width)
    table[:, : 2 * len(frequencies)] = torch.cat([angles.sin(), angles.cos()], dim=-1)
    return table


def _fit(query: Tensor, key: Tensor, heads: int, entering: Tensor, frequencies: Tensor, step: int) -> None:
    """Set rows of (width, hidden) weights so that query i and key j agree most where j - i is the head's offset."""
    size = len(query) // heads
    gram = entering.T @ entering
    gram.diagonal().add_(_RIDGE * gram.diagonal().mean())
    chosen = frequencies[: size // 2]
    scale = math.sqrt(_PEAK * math.sqrt(size) / len(chosen))
    for head, offset in zip(range(heads), OFFSETS, strict=False):
        rows = slice(head * size, (head + 1) * size)
        table = _sinusoids(chosen, len(entering) + 2 * step * len(OFFSETS), size) * scale
        here = table[step * len(OFFSETS) :][: len(entering)]
        there = table[step * (len(OFFSETS) - offset) :][: len(entering)]  # position j - offset
        query[rows] = torch.linalg.solve(gram, entering.T @ here).T
        key[rows] = torch.linalg.solve(gram, entering.T @ there).T
