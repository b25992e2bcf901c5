"""Linformer against its peer, against exact attention, and against itself in the other order of products."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from homespun.attention.full import DotProduct
from homespun.attention.linformer import (
    ConvolvedProjection,
    LinearProjection,
    Linformer,
    LinformerAttention,
    LinformerAttentionConfig,
    PooledProjection,
)
from homespun.attention.multi_head import AttentionSpec, MultiHeadAttention
from homespun.errors import UserError
from homespun.models.encoder import EncoderConfig
from homespun.nn.masks import Mask

BATCH, HEADS, HEAD_DIM, SEQ, LONGEST, K = 3, 2, 5, 13, 19, 7
HIDDEN = HEADS * HEAD_DIM
SHAPE = AttentionSpec(HIDDEN, HEADS, LONGEST, layer=0, causal=False, dropout=0.0, seed=0)
KEEP = torch.arange(SEQ) < torch.tensor([[SEQ], [6], [0]])


def projections() -> dict[str, Any]:
    return {
        "linear": LinearProjection(LONGEST, K),
        "linear, none shared": LinearProjection(LONGEST, K, heads=HEADS),
        "pooled": PooledProjection(3),
        "convolved": ConvolvedProjection(3, HEAD_DIM),
        "convolved, none shared": ConvolvedProjection(3, HEAD_DIM, heads=HEADS),
    }


every_projection = pytest.mark.parametrize("name", projections())


def random_tensor(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def build(**fields: Any) -> nn.Module:
    return LinformerAttentionConfig.model_validate({"k": K} | fields).build(SHAPE)


@pytest.mark.parametrize("length", [LONGEST, SEQ, 1])
@pytest.mark.parametrize("options", [{}, {"share_kv": True}, {"one_kv_head": True}], ids=str)
def test_parity_with_the_linformer_package(options: dict[str, bool], length: int) -> None:
    peer_module = pytest.importorskip("linformer.linformer")
    torch.manual_seed(1)
    peer = peer_module.LinformerSelfAttention(HIDDEN, LONGEST, k=K, heads=HEADS, **options)
    shared = options.get("share_kv", False)
    ours = build(sharing="key_value" if shared else "headwise")
    copies = [(ours.query, peer.to_q), (ours.key, peer.to_k), (ours.value, peer.to_k if shared else peer.to_v)]
    with torch.no_grad():
        for own, other in copies:  # one head of keys for all is the same head as often as there are heads
            own.weight.copy_(other.weight.repeat(HIDDEN // len(other.weight), 1))
            own.bias.zero_()
        ours.output.load_state_dict(peer.to_out.state_dict())
        ours.kernel.key_projection.weight.copy_(peer.proj_k.t()[None])
        ours.kernel.value_projection.weight.copy_((peer.proj_k if shared else peer.proj_v).t()[None])
    hidden, upstream = random_tensor(BATCH, length, HIDDEN), torch.randn(BATCH, length, HIDDEN)
    for train in (False, True):
        values, theirs = ours.train(train)(hidden, Mask()), peer.train(train)(hidden)
        torch.testing.assert_close(values, theirs, rtol=1e-5, atol=1e-5)
        parameters = [hidden, ours.query.weight, ours.kernel.key_projection.weight]
        own = torch.autograd.grad(values, parameters, upstream)
        other = torch.autograd.grad(theirs, [hidden, peer.to_q.weight, peer.proj_k], upstream)
        torch.testing.assert_close(own[:2], other[:2], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(own[2][0].t(), other[2], rtol=1e-5, atol=1e-5)


def identity() -> LinearProjection:
    projection = LinearProjection(SEQ, SEQ)
    nn.init.eye_(projection.weight.data[0])
    return projection


# a zero key is one more key under the identity: only windows know that theirs is empty
@pytest.mark.parametrize(
    ("same", "keep"), [(identity(), None), (PooledProjection(1), None), (PooledProjection(1), KEEP)]
)
def test_with_as_many_projected_keys_as_tokens_it_is_exact_attention(same: Any, keep: Tensor | None) -> None:
    torch.manual_seed(1)
    query, key, value = (random_tensor(BATCH, HEADS, SEQ, HEAD_DIM) for _ in range(3))
    torch.testing.assert_close(
        Linformer(same, same)(query, key, value, Mask(keep)),
        DotProduct()(query, key, value, Mask(keep)),
        rtol=1e-5,
        atol=1e-5,
    )


@every_projection
def test_padding_is_nothing_wherever_it_stands(name: str) -> None:
    """Values and gradients, with padding also inside a row, whatever the padding holds."""
    torch.manual_seed(1)
    kernel = Linformer(projections()[name], projections()[name])
    keep = KEEP.clone()
    keep[0, 4] = False
    query, key, value = (random_tensor(BATCH, HEADS, SEQ, HEAD_DIM) for _ in range(3))
    padding = ~keep[:, None, :, None]
    results = [
        kernel(query, key.masked_fill(padding, other), value.masked_fill(padding, other), Mask(keep))
        for other in (0.0, 1e9, torch.nan)
    ]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[0][2], torch.zeros_like(results[0][2]))
    alone = kernel(query[1:2, :, :6], key[1:2, :, :6], value[1:2, :, :6], Mask())
    torch.testing.assert_close(results[0][1:2, :, :6], alone)
    for gradient in torch.autograd.grad(results[1].square().sum(), (key, value)):
        assert gradient.isfinite().all()
        assert not gradient.masked_select(padding).any()


def test_a_window_is_the_mean_of_its_real_tokens_and_an_empty_one_is_not_seen() -> None:
    pooled = PooledProjection(4)
    tokens = torch.arange(1.0, 11.0)[None, None, :, None]  # windows of 4, 4 and 2
    torch.testing.assert_close(pooled(tokens, None).flatten(), torch.tensor([2.5, 6.5, 9.5]))
    keep = torch.arange(10)[None] < 5
    torch.testing.assert_close(pooled(tokens * keep[..., None], keep).flatten(), torch.tensor([2.5, 5.0, 0.0]))
    attention, query = Linformer(pooled, pooled), torch.zeros(1, 1, 1, 1)  # equal weights
    assert attention(query, tokens, tokens, Mask()).item() == pytest.approx((2.5 + 6.5 + 9.5) / 3)
    assert attention(query, tokens, tokens, Mask(keep)).item() == pytest.approx((2.5 + 5.0) / 2)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("fields", [{}, {"sharing": "key_value"}, {"projection": "pooled"}], ids=str)
def test_projecting_positions_first_changes_nothing(fields: dict[str, str], bias: bool, padded: bool) -> None:
    torch.manual_seed(1)
    kernel = build(**fields).get_submodule("kernel")
    plain = MultiHeadAttention(HIDDEN, HEADS, kernel, bias=bias)
    for parameter in plain.parameters():
        nn.init.normal_(parameter)
    plain, hidden, mask = plain.double(), random_tensor(BATCH, SEQ, HIDDEN).double(), Mask(KEEP if padded else None)
    first = LinformerAttention(plain)
    assert {id(p) for p in first.parameters()} == {id(p) for p in plain.parameters()}
    results = [(module(hidden, mask), list(plain.parameters())) for module in (plain, first)]
    torch.testing.assert_close(results[0][0], results[1][0])
    upstream = torch.randn(BATCH, SEQ, HIDDEN, dtype=torch.float64)
    one, other = (torch.autograd.grad(values, [hidden, *parameters], upstream) for values, parameters in results)
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("fields", [{}, {"sharing": "none"}, {"projection": "pooled"}, {"projection": "convolved"}])
def test_mixed_precision(fields: dict[str, str]) -> None:
    torch.manual_seed(1)
    attention, hidden, mask = build(**fields), random_tensor(BATCH, SEQ, HIDDEN), Mask(KEEP)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = attention(hidden, mask)
    mixed.float().sum().backward()
    torch.testing.assert_close(mixed.float(), attention(hidden, mask), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("sharing", "count"), [("none", 2 * HEADS * 3), ("headwise", 2 * 3), ("key_value", 3), ("layerwise", 1)]
)
def test_sharing_is_the_papers(sharing: str, count: int) -> None:
    fields = {"attention": {"kind": "linformer", "k": K, "sharing": sharing}, "num_hidden_layers": 3}
    sizes = {"vocab_size": 53, "hidden_size": HIDDEN, "num_attention_heads": HEADS, "max_position_embeddings": LONGEST}
    encoder = EncoderConfig.model_validate(fields | sizes).build()
    matrices = [p for n, p in encoder.named_parameters() if "projection.weight" in n and "kernel" in n]
    assert sum(p.shape[0] for p in matrices) == count
    assert {p.shape[1:] for p in matrices} == {(K, LONGEST)}


def test_k_of_each_layer() -> None:
    for layer, k in enumerate([K, 11]):
        attention = LinformerAttentionConfig(k=[K, 11]).build(dataclasses.replace(SHAPE, layer=layer))
        assert attention.get_parameter("kernel.key_projection.weight").shape == (1, k, LONGEST)


@pytest.mark.parametrize(
    ("fields", "place", "message"),
    [
        ({"k": K}, {"causal": True}, "does not support causal=true"),
        ({"k": LONGEST + 1}, {}, f"k={LONGEST + 1} .*max_position_embeddings={LONGEST}"),
        ({"k": 0}, {}, "k=0 "),
        ({"k": [K]}, {"layer": 1}, "k .*layer 2"),
        ({"k": [K, 5], "sharing": "layerwise"}, {}, "one number"),
        ({"k": K, "sharing": "layerwise"}, {"layer": 1}, "every layer"),
    ],
)
def test_what_it_cannot_be_is_refused_when_built(fields: Any, place: dict[str, Any], message: str) -> None:
    shape = dataclasses.replace(SHAPE, **place)
    with pytest.raises(UserError, match=message):
        LinformerAttentionConfig.model_validate(fields).build(shape)


@pytest.mark.parametrize("fields", [{}, {"sharing": "none"}], ids=["places first", "kernel"])
def test_what_it_cannot_do_is_refused_when_asked(fields: dict[str, str]) -> None:
    attention, hidden = build(**fields), random_tensor(BATCH, SEQ, HIDDEN)
    with pytest.raises(UserError, match="packed documents"):
        attention(hidden, Mask(documents=torch.zeros(BATCH, SEQ, dtype=torch.int64)))
    with pytest.raises(UserError, match="future"):
        attention(hidden, Mask(causal=True))
    with pytest.raises(UserError, match=f"max_position_embeddings={LONGEST}"):
        attention(random_tensor(BATCH, LONGEST + 1, HIDDEN), Mask())
