"""Performer against its peer, against exact attention, and against float64 on a long text."""

import dataclasses
import functools
import itertools
import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import homespun.attention.performer as performer_module
from homespun.attention.full import DotProduct
from homespun.attention.multi_head import AttentionSpec
from homespun.attention.performer import FeatureMap, Performer, PerformerAttentionConfig, orthogonal_directions, redraw
from homespun.errors import UserError
from homespun.nn.masks import Mask

BATCH, HEADS, SEQ, HEAD_DIM, FEATURES = 3, 2, 23, 5, 17
SHAPE = AttentionSpec(HEADS * HEAD_DIM, HEADS, SEQ, layer=0, causal=False, dropout=0.0, seed=0)
every_map = pytest.mark.parametrize("feature_map", ["softmax", "relu"])
both_ways = pytest.mark.parametrize("causal", [False, True])


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(performer_module, "_CHUNK", 7)
    monkeypatch.setattr(performer_module, "_CAUSAL_CHUNK", 4)


def random_tensor(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def queries_keys_values(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(1)
    return [random_tensor(BATCH, HEADS, SEQ, HEAD_DIM, dtype=dtype) for _ in range(3)]


def the_peers(kernel: Performer, *, causal: bool) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = pytest.importorskip("performer_pytorch.performer_pytorch")
    generalized = kernel.feature_map == "relu"
    peer = package.FastAttention(HEAD_DIM, FEATURES, causal=causal, generalized_attention=generalized)
    peer.projection_matrix.copy_(kernel.projection)
    return peer


@every_map
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_parity_with_the_performer_package(feature_map: FeatureMap, scale: float) -> None:
    kernel, inputs = Performer(HEAD_DIM, FEATURES, feature_map=feature_map), queries_keys_values()
    peer, upstream = the_peers(kernel, causal=False), torch.randn(BATCH, HEADS, SEQ, HEAD_DIM)
    query, key, value = inputs
    ours, theirs = kernel(scale * query, scale * key, value, Mask()), peer(scale * query, scale * key, value)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    for own, other in zip(*(torch.autograd.grad(values, inputs, upstream) for values in (ours, theirs)), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-5)


@every_map
def test_causal_parity_with_the_performer_package(feature_map: FeatureMap) -> None:
    kernel, (query, key, value) = Performer(HEAD_DIM, FEATURES, feature_map=feature_map), queries_keys_values()
    with torch.no_grad():
        # theirs takes its stabiliser from the whole text, the future too; where the first key has it, so does ours
        scores = (key @ kernel.projection.t()).amax(-1)
        largest = scores.argmax(-1)[..., None, None].expand(-1, -1, -1, HEAD_DIM)
        key[:, :, :1] = key.gather(2, largest) * 1.1
    peer, upstream = the_peers(kernel, causal=True), torch.randn(BATCH, HEADS, SEQ, HEAD_DIM)
    # theirs adds 1e-6 to the sum of the keys, which is not little beside the features of a first token
    peer.causal_linear_fn = functools.partial(peer.causal_linear_fn, eps=0.0)
    ours, theirs = kernel(query, key, value, Mask(causal=True)), peer(query, key, value)
    inputs = [query, key, value]
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    for own, other in zip(*(torch.autograd.grad(values, inputs, upstream) for values in (ours, theirs)), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-5)


@every_map
@pytest.mark.parametrize("padded", [False, True])
def test_causal_is_for_each_token_what_it_would_get_if_the_text_ended_there(
    feature_map: FeatureMap, padded: bool
) -> None:
    kernel = Performer(HEAD_DIM, FEATURES, feature_map=feature_map).double()
    inputs = queries_keys_values(torch.float64)
    keep = torch.ones(BATCH, SEQ, dtype=torch.bool)
    if padded:
        keep[0, :9], keep[1, 5:14], keep[2] = False, False, False
    causal = kernel(*inputs, Mask(keep, causal=True))
    ends = [kernel(*(part[:, :, :end] for part in inputs), Mask(keep[:, :end]))[:, :, -1:] for end in range(1, SEQ + 1)]
    complete = torch.cat(ends, 2)
    torch.testing.assert_close(causal, complete)
    upstream = torch.randn_like(complete)
    for own, other in zip(*(torch.autograd.grad(v, inputs, upstream) for v in (causal, complete)), strict=True):
        torch.testing.assert_close(own, other)


@every_map
def test_no_key_that_comes_later_is_in_a_sum_however_large(feature_map: FeatureMap) -> None:
    kernel, (query, key, value) = Performer(HEAD_DIM, FEATURES, feature_map=feature_map), queries_keys_values()
    before = kernel(query, key, value, Mask(causal=True))[:, :, :7]
    later = torch.cat([key[:, :, :7], 50 * key[:, :, 7:]], 2)
    values = kernel(query, later, value, Mask(causal=True))
    torch.testing.assert_close(values[:, :, :7], before, rtol=1e-5, atol=1e-5)
    for gradient in torch.autograd.grad(values.square().sum(), (query, key, value)):
        assert gradient.isfinite().all()


@every_map
@both_ways
def test_padding_is_nothing_wherever_it_stands(feature_map: FeatureMap, causal: bool) -> None:
    kernel, (query, key, value) = Performer(HEAD_DIM, FEATURES, feature_map=feature_map), queries_keys_values()
    keep = torch.arange(SEQ) < torch.tensor([[SEQ], [11], [0]])
    keep[0, 2:9] = False
    padding = ~keep[:, None, :, None]
    results = [
        kernel(query, key.masked_fill(padding, other), value.masked_fill(padding, other), Mask(keep, causal=causal))
        for other in (0.0, 1e4)
    ]
    assert torch.equal(*results)
    assert torch.equal(results[0][2], torch.zeros_like(results[0][2]))
    real = keep[0].nonzero()[:, 0]
    alone = kernel(*(part[:1, :, real] for part in (query, key, value)), Mask(causal=causal))
    torch.testing.assert_close(results[0][:1, :, real], alone, rtol=1e-5, atol=1e-5)
    for gradient in torch.autograd.grad(results[1].square().sum(), (key, value)):
        assert gradient.isfinite().all()
        assert not gradient.masked_select(padding).any()


@both_ways
def test_with_more_features_it_comes_nearer_to_exact_attention(causal: bool) -> None:
    # short vectors: for long ones epsilon is what remains of the features
    inputs, mask = [part.detach() / 2 for part in queries_keys_values(torch.float64)], Mask(causal=causal)
    exact = DotProduct()(*inputs, mask)

    def error(features: int) -> float:
        kernels = [Performer(HEAD_DIM, features, seed=seed).double() for seed in range(5)]
        errors = torch.stack([(kernel(*inputs, mask) - exact).square().mean() for kernel in kernels])
        return math.sqrt(float(errors.mean()) / float(exact.square().mean()))

    few, some_more, many = error(16), error(256), error(4096)
    assert many < some_more / 2 < few / 4
    assert many < 0.05


def test_orthogonal_directions_are_nearer_than_independent_ones() -> None:
    """Theorem 2 of the paper, for a kernel's value at one pair."""
    torch.manual_seed(1)
    inputs = [part.detach() for part in queries_keys_values(torch.float64)]
    exact = DotProduct()(*inputs, Mask())

    def error(seed: int, orthogonal: bool) -> float:
        kernel = Performer(HEAD_DIM, HEAD_DIM, seed=seed).double()
        if not orthogonal:
            kernel.projection.normal_()
        return float((kernel(*inputs, Mask()) - exact).square().mean())

    assert sum(error(seed, True) for seed in range(50)) < sum(error(seed, False) for seed in range(50))


@every_map
@both_ways
@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_stable_at_16384_tokens(
    feature_map: FeatureMap, causal: bool, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the real chunks
    torch.manual_seed(1)
    query, key, value = torch.randn(3, 1, 1, 16_384, 8)
    query, key, value = (scale * query).requires_grad_(), (scale * key).requires_grad_(), value.requires_grad_()
    kernel, mask = Performer(8, 16, feature_map=feature_map), Mask(causal=causal)
    values = kernel(query, key, value, mask)
    gradients = torch.autograd.grad(values.square().sum(), (query, key, value))
    truth = kernel.double()(*(part.double() for part in (query, key, value)), mask)
    torch.testing.assert_close(values.double(), truth, rtol=1e-3, atol=1e-4)
    true_gradients = torch.autograd.grad(truth.square().sum(), (query, key, value))
    for gradient, true in zip(gradients, true_gradients, strict=True):
        assert gradient.isfinite().all()
        # long vectors: epsilon is what remains of the features, and the gradients are nothing but rounding
        assert float((gradient - true).norm()) < 1e-3 * float(true.norm()) + 1e-8


@every_map
@both_ways
def test_what_is_kept_for_the_gradients_grows_as_the_length(feature_map: FeatureMap, causal: bool) -> None:
    kernel = Performer(HEAD_DIM, FEATURES, feature_map=feature_map)

    def kept(length: int) -> int:
        sizes: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            values = kernel(*(random_tensor(1, 1, length, HEAD_DIM) for _ in range(3)), Mask(causal=causal))
        values.sum().backward()
        return sum(sizes.values())

    assert kept(800) < 2.05 * kept(400)


def test_redrawing_is_a_function_of_seed_layer_and_step() -> None:
    def kernel(**fields: int) -> Performer:
        return Performer(HEAD_DIM, FEATURES, **{"redraw_interval": 10} | fields)

    through, resumed = kernel(), kernel()
    draws = []
    for step in range(35):
        redraw(through, step)
        draws.append(through.projection.clone())
    assert [int(not torch.equal(a, b)) for a, b in itertools.pairwise(draws)] == [
        int(step % 10 == 0) for step in range(1, 35)
    ]
    redraw(resumed, 34)
    assert torch.equal(resumed.projection, through.projection)
    redraw(resumed, 3)
    assert torch.equal(resumed.projection, kernel().projection)
    assert torch.equal(draws[0], kernel().projection)
    for other in (kernel(seed=1), kernel(layer=1)):
        assert not torch.equal(other.projection, kernel().projection)
    redraw(resumed.eval(), 34)  # frozen: what it gives must stay as it is
    assert torch.equal(resumed.projection, kernel().projection)
    never = kernel(redraw_interval=0)
    redraw(never, 1000)
    assert torch.equal(never.projection, kernel().projection)


def test_directions_are_saved_where_they_change_and_drawn_again_where_not() -> None:
    fixed, redrawn = Performer(HEAD_DIM, FEATURES), Performer(HEAD_DIM, FEATURES, redraw_interval=10)
    assert not fixed.state_dict()
    redraw(redrawn, 25)
    opened = Performer(HEAD_DIM, FEATURES, redraw_interval=10)
    opened.load_state_dict(redrawn.state_dict())
    assert torch.equal(opened.projection, redrawn.projection)
    redraw(opened, 0)  # trained further, on something else: it begins with what it was saved with
    assert torch.equal(opened.projection, redrawn.projection)


def test_directions_are_orthogonal_and_as_long_as_gaussian_vectors() -> None:
    directions = orthogonal_directions(11 * 300 + 4, 11, torch.Generator().manual_seed(1))
    assert directions.shape == (11 * 300 + 4, 11)
    group = directions[:11] / directions[:11].norm(dim=1, keepdim=True)
    torch.testing.assert_close(group @ group.t(), torch.eye(11), rtol=1e-5, atol=1e-5)
    assert abs(float(directions.square().sum(1).mean()) - 11) < 0.5
    assert float(directions.mean(0).abs().max()) < 0.1  # no direction is preferred


@both_ways
def test_mixed_precision_computes_in_float32(causal: bool) -> None:
    kernel, inputs = Performer(HEAD_DIM, FEATURES), [part.bfloat16() for part in queries_keys_values()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = kernel(*inputs, Mask(causal=causal))
    assert values.dtype == torch.bfloat16
    assert torch.equal(values, kernel(*(part.float() for part in inputs), Mask(causal=causal)).bfloat16())


def test_features_by_default_are_the_papers() -> None:
    attention = PerformerAttentionConfig().build(dataclasses.replace(SHAPE, hidden_size=128))
    assert attention.get_buffer("kernel.projection").shape == (int(64 * math.log(64)), 64)
    narrow = PerformerAttentionConfig().build(dataclasses.replace(SHAPE, hidden_size=HEADS))
    assert narrow.get_buffer("kernel.projection").shape == (1, 1)


def test_layers_draw_their_own_directions() -> None:
    first, second = (PerformerAttentionConfig().build(dataclasses.replace(SHAPE, layer=layer)) for layer in (0, 1))
    assert not torch.equal(first.get_buffer("kernel.projection"), second.get_buffer("kernel.projection"))


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(UserError, match="attention probabilities"):
        PerformerAttentionConfig().build(dataclasses.replace(SHAPE, dropout=0.1))
    with pytest.raises(UserError, match="packed documents"):
        Performer(HEAD_DIM, FEATURES)(
            *queries_keys_values(), Mask(documents=torch.zeros(BATCH, SEQ, dtype=torch.int64))
        )
