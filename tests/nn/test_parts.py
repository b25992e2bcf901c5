"""Attention, residual wiring, feed-forward and positions against PyTorch's own and the formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from homespun.errors import UserError
from homespun.nn.attention import MultiHeadAttention
from homespun.nn.feedforward import ACTIVATIONS, FeedForward
from homespun.nn.kernels.dot_product import DotProduct
from homespun.nn.masks import Mask
from homespun.nn.positions import LearnedPositions, SinusoidalPositions
from homespun.nn.residual import Layer, PostNorm, PreNorm

BATCH, SEQ, HIDDEN, HEADS, INNER = 2, 11, 21, 3, 17


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    parts = (ours.query, ours.key, ours.value)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        theirs.out_proj.load_state_dict(ours.output.state_dict())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("wire", [PostNorm, PreNorm])
def test_layer_is_that_of_pytorch(wire: Any, causal: bool, padded: bool) -> None:
    torch.manual_seed(1)
    attention = MultiHeadAttention(HIDDEN, HEADS, DotProduct())
    feedforward = FeedForward(HIDDEN, INNER, nn.GELU())
    norms = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
    for norm in norms:
        nn.init.normal_(norm.weight)
    ours = Layer(wire(attention, norms[0], nn.Identity()), wire(feedforward, norms[1], nn.Identity())).double()
    theirs = nn.TransformerEncoderLayer(
        HIDDEN, HEADS, INNER, dropout=0.0, activation="gelu", batch_first=True, norm_first=wire is PreNorm
    ).double()
    copy_attention(attention, theirs.self_attn)
    for target, source in zip(
        (theirs.linear1, theirs.linear2, theirs.norm1, theirs.norm2),
        (feedforward.inner, feedforward.outer, *norms),
        strict=True,
    ):
        target.load_state_dict(source.state_dict())
    hidden = torch.randn(BATCH, SEQ, HIDDEN, dtype=torch.float64)
    keep = torch.arange(SEQ) < torch.tensor([[SEQ], [5]]) if padded else None
    result = ours(hidden, Mask(keep, causal=causal))
    expected = theirs(
        hidden,
        src_mask=torch.ones(SEQ, SEQ, dtype=torch.bool).triu(1) if causal else None,
        src_key_padding_mask=None if keep is None else ~keep,
    )
    torch.testing.assert_close(result, expected)


def test_heads_must_divide() -> None:
    with pytest.raises(UserError, match="hidden_size=21 is not a multiple of num_attention_heads=5"):
        MultiHeadAttention(21, 5, DotProduct())


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_feedforward(name: str) -> None:
    part = FeedForward(HIDDEN, INNER, ACTIVATIONS[name]())
    hidden = torch.randn(BATCH, SEQ, HIDDEN)
    expected = part.activation(hidden @ part.inner.weight.T + part.inner.bias) @ part.outer.weight.T + part.outer.bias
    torch.testing.assert_close(part(hidden), expected)


def test_sinusoidal_positions_are_the_formula() -> None:
    size = 14
    table = SinusoidalPositions(101, size)(None, 101)[0]
    for place in (0, 1, 2, 50, 100):
        for pair in range(size // 2):
            angle = place / 10000 ** (2 * pair / size)
            assert math.isclose(table[place, 2 * pair], math.sin(angle), abs_tol=1e-5)
            assert math.isclose(table[place, 2 * pair + 1], math.cos(angle), abs_tol=1e-5)


def test_sinusoidal_positions_need_an_even_size() -> None:
    with pytest.raises(UserError, match="even embedding_size, not 7"):
        SinusoidalPositions(11, 7)


@pytest.mark.parametrize(
    "positions", [LearnedPositions(13, 6), LearnedPositions(13, 6, offset=2), SinusoidalPositions(13, 6)]
)
def test_counted_positions_are_those_given(positions: nn.Module) -> None:
    torch.testing.assert_close(positions(None, 11)[0], positions(torch.arange(11)[None], 11)[0])
    given = torch.tensor([[0, 1, 2, 0, 1], [4, 3, 2, 1, 0]])
    assert positions(given, 5).shape == (2, 5, 6)
    torch.testing.assert_close(positions(given, 5)[0, 3:], positions(None, 2)[0])


@pytest.mark.parametrize("positions", [LearnedPositions(13, 6), SinusoidalPositions(13, 6)])
def test_positions_end(positions: nn.Module) -> None:
    assert positions(None, 13).shape == (1, 13, 6)
    with pytest.raises(UserError, match="sequence of 14 tokens exceeds max_position_embeddings=13"):
        positions(None, 14)


def test_learned_positions_skip_the_offset() -> None:
    positions = LearnedPositions(13, 6, offset=2)
    assert positions.embedding.weight.shape == (15, 6)
    torch.testing.assert_close(positions(None, 3)[0], positions.embedding.weight[2:5])
