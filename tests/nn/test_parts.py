"""Attention, residual wiring and feed-forward against PyTorch's own and the formulas."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from homespun.attention.full import DotProduct
from homespun.attention.multi_head import MultiHeadAttention
from homespun.errors import UserError
from homespun.nn.layers import ACTIVATIONS, FeedForward, Layer, PostNorm, PreNorm
from homespun.nn.masks import Mask

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
    with pytest.raises(UserError, match=r"hidden_size=21 .*num_attention_heads=5"):
        MultiHeadAttention(21, 5, DotProduct())


@pytest.mark.parametrize("chunk", [1, 4, SEQ - 1, SEQ, 97])
def test_chunked_feedforward_is_that_of_all_at_once(chunk: int) -> None:
    complete = FeedForward(HIDDEN, INNER, nn.GELU()).double()
    parts = FeedForward(HIDDEN, INNER, nn.GELU(), chunk=chunk).double()
    parts.load_state_dict(complete.state_dict())
    hidden = torch.randn(BATCH, SEQ, HIDDEN, dtype=torch.float64, requires_grad=True)
    widths: list[int] = []
    parts.activation.register_forward_pre_hook(lambda _, inputs: widths.append(inputs[0].shape[1]))
    found = []
    for part in (complete, parts):
        values = part(hidden)
        found.append([values, *torch.autograd.grad(values.square().sum(), [hidden, *part.parameters()])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert max(widths) == min(chunk, SEQ)
    with torch.no_grad():
        torch.testing.assert_close(parts(hidden), complete(hidden), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_recomputed_activation_equals_a_stored_one(activation: str, bias: bool, gated: bool, autocast: bool) -> None:
    part = FeedForward(HIDDEN, INNER, ACTIVATIONS[activation](), gated=gated, bias=bias)
    part.inner.weight.requires_grad_(False)
    hidden = torch.randn(BATCH, SEQ, HIDDEN, requires_grad=True)
    learned = [hidden, *(weight for weight in part.parameters() if weight.requires_grad)]
    found = []
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        for recomputes in (True, False):
            stored = part.activation(part.inner(hidden))
            stored = stored if part.gate is None else stored * part.gate(hidden)
            values = part(hidden) if recomputes else part.outer(stored)
            found.append([values, *torch.autograd.grad(values.float().square().sum(), learned)])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_feedforward_keeps_one_wide_tensor() -> None:
    part, kept = FeedForward(HIDDEN, 10 * INNER, nn.GELU()), []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        part(torch.randn(BATCH, SEQ, HIDDEN, requires_grad=True))
    assert kept.count((BATCH, SEQ, 10 * INNER)) == 1


def test_a_frozen_outer_layer_has_no_gradient() -> None:
    part = FeedForward(HIDDEN, INNER, nn.GELU())
    part.outer.requires_grad_(False)
    part(torch.randn(BATCH, SEQ, HIDDEN)).sum().backward()
    assert part.outer.weight.grad is None
    assert part.inner.weight.grad is not None


def test_chunked_feedforward_keeps_nothing_wide() -> None:
    part, kept = FeedForward(HIDDEN, 10 * INNER, nn.GELU(), chunk=3), []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.shape[-1])
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        part(torch.randn(BATCH, SEQ, HIDDEN, requires_grad=True))
    assert 10 * INNER not in kept
