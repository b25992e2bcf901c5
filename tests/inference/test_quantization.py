"""Linear layers in bfloat16 and 8-bit integers: close to float32, and everything else unchanged."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from homespun.errors import UserError
from homespun.inference.quantization import Precision, pack_networks, quantize
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.heads import CausalLMHeadConfig
from homespun.models.sequence_heads import LinearHeadConfig
from homespun.nn.packed import packed_linears

PRECISIONS: tuple[Precision, ...] = ("bf16", "int8")


def network(model: Any) -> Any:
    return SimpleNamespace(model=model)


def build(config: Any, head: Any) -> Any:
    torch.manual_seed(7)
    return ModelConfig(backbone=config, head=head).build().eval()


def shape(**settings: Any) -> EncoderConfig:
    return EncoderConfig(
        vocab_size=40, hidden_size=28, num_hidden_layers=2, num_attention_heads=2, intermediate_size=53, **settings
    )


def encoder() -> Any:
    return build(shape(), LinearHeadConfig(num_labels=3))


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 0.02), ("int8", 0.05)])
def test_logits_are_close_to_float32(precision: Precision, tolerance: float) -> None:
    model = encoder()
    ids = torch.randint(5, 40, (6, 11))
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.inference_mode():
        expected = model(ids)
        quantize([network(model)], precision, source="m")
        found = model(ids)
    assert found.dtype == torch.float32
    assert not torch.equal(found, expected)
    assert (found - expected).abs().max() < tolerance * expected.abs().max()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_of_extreme_weights(precision: Precision, bias: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(31, 17, bias=bias)
    with torch.no_grad():
        layer.weight[3] = 0.0
        layer.weight[5] *= 1000.0
    values = torch.randn(7, 5, 31)
    with torch.inference_mode():
        expected = layer(values)
        quantize([network(layer)], precision, source="m")
        found = layer(values)
    error = (found - expected).abs().amax((0, 1)) / expected.abs().amax((0, 1)).clamp_min(1e-6)
    assert error.max() < 0.03


@pytest.mark.parametrize("precision", PRECISIONS)
def test_generation_does_not_replace_quantized_layers(precision: Precision) -> None:
    layer = nn.Linear(256, 512)
    quantize([network(layer)], precision, source="m")
    forward = vars(layer)["forward"]
    with packed_linears(layer, min_numbers=0):
        assert vars(layer)["forward"] is forward
    assert vars(layer)["forward"] is forward


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_decoder_generates(precision: Precision) -> None:
    model = build(shape(causal=True), CausalLMHeadConfig())
    ids = torch.randint(5, 40, (2, 7))
    quantize([network(model)], precision, source="m")
    with torch.inference_mode():
        assert model.generate(ids, max_new_tokens=20).shape == (2, 27)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_models_without_linear_layers_are_refused(precision: Precision) -> None:
    for networks in ([network(nn.LSTM(3, 5))], []):
        with pytest.raises(UserError, match="no linear layers to quantize"):
            quantize(networks, precision, source="m")


def test_packed_layers_compute_float32() -> None:
    layer = nn.Linear(131, 127)
    reference = nn.Linear(131, 127)
    reference.load_state_dict(layer.state_dict())
    pack_networks([network(layer)])
    values = torch.randn(3, 71, 131)
    with torch.no_grad():
        torch.testing.assert_close(layer(values), reference(values), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(layer(values[:0]), reference(values[:0]))


def test_packed_layers_have_gradients_and_follow_their_weights() -> None:
    layer = nn.Linear(131, 127)
    pack_networks([network(layer)])
    values = torch.randn(5, 131)
    layer(values).sum().backward()
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad[2], values.sum(0))
    with torch.no_grad():
        before = layer(values)
        layer.weight.mul_(2)
        torch.testing.assert_close(layer(values) - layer.bias, 2 * (before - layer.bias), rtol=1e-4, atol=1e-5)
        assert layer.double()(values.double()).dtype == torch.float64
