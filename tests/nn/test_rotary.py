"""Rotary positions, query-key norms and grouped heads against the formula and the peer."""

import pytest
import torch
from torch import nn

from homespun.attention.blocked import Blocked
from homespun.attention.full import DotProduct
from homespun.attention.multi_head import MultiHeadAttention
from homespun.errors import UserError
from homespun.models.encoder import EncoderConfig
from homespun.models.layer_parts import output_weights
from homespun.nn.masks import Mask
from homespun.nn.patterns import Sparse, Window
from homespun.nn.positions import Rotary

SIZE, SEQ, THETA = 14, 11, 500.0


def test_rotation_is_that_of_llama() -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    heads = torch.randn(2, 3, SEQ, SIZE)
    frequency = THETA ** -(torch.arange(0, SIZE, 2) / SIZE)
    angle = (torch.arange(SEQ)[:, None] * frequency).repeat(1, 2)[None]
    expected, _ = llama.apply_rotary_pos_emb(heads, heads, angle.cos(), angle.sin())
    torch.testing.assert_close(Rotary(SIZE, 31, theta=THETA)(heads), expected)


def test_given_positions_are_those_counted_from_the_start() -> None:
    rotary, heads = Rotary(SIZE, 31), torch.randn(2, 3, 5, SIZE)
    torch.testing.assert_close(rotary(heads, position_ids=torch.arange(7, 12)[None]), rotary(heads, start=7))


def test_grouped_queries_are_heads_with_repeated_keys_and_values() -> None:
    torch.manual_seed(1)
    grouped = MultiHeadAttention(12, 6, DotProduct(), num_key_value_heads=2)
    full = MultiHeadAttention(12, 6, DotProduct())
    weights = grouped.state_dict()
    for name in ("key.weight", "key.bias", "value.weight", "value.bias"):
        weights[name] = weights[name].unflatten(0, (2, 2)).repeat_interleave(3, 0).flatten(0, 1)
    full.load_state_dict(weights)
    hidden = torch.randn(2, 7, 12)
    torch.testing.assert_close(grouped(hidden, Mask()), full(hidden, Mask()))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("kernel", [DotProduct(), Blocked(Sparse((Window(16),)))], ids=["dense", "blocked"])
def test_normed_and_rotated_heads_run_in_bfloat16(kernel: nn.Module, autocast: bool) -> None:
    torch.manual_seed(1)
    norms = {name: nn.LayerNorm(8) for name in ("query_norm", "key_norm")}
    attention, hidden = MultiHeadAttention(16, 2, kernel, rotary=Rotary(8, 300), **norms), torch.randn(1, 300, 16)
    expected = attention(hidden, Mask())
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        values = attention(hidden, Mask()) if autocast else attention.bfloat16()(hidden.bfloat16(), Mask())
    assert values.dtype == torch.bfloat16
    assert (values.float() - expected).norm() < 0.02 * expected.norm()


def test_new_layers_by_fan_in_add_nothing() -> None:
    config = EncoderConfig(vocab_size=53, hidden_size=24, num_attention_heads=2, initialization="fan_in")
    encoder = config.build()
    assert not any(weight.any() for weight in output_weights(encoder.layers))
    query = encoder.layers[0].attention.sublayer.query.weight
    assert query.std().item() == pytest.approx(0.5 / 24**0.5, rel=0.1)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"attention": {"kind": "lsh"}}, "LSH.*model.positions.kind"),
        ({"attention": {"kind": "disentangled"}}, "disentangled.*model.positions.kind"),
        ({"attention": {"kind": "linformer"}}, "linformer.*model.positions.kind"),
        ({"head_size": 7}, "7.*model.head_size"),
        ({"positions": {"kind": "rotary", "theta": [10.0, 20.0]}}, r"positions\.theta .*2 .* 4 layers"),
    ],
)
def test_what_cannot_be_rotated_is_refused(fields: dict[str, object], named: str) -> None:
    config = EncoderConfig.model_validate({"vocab_size": 53, "positions": {"kind": "rotary"}} | fields)
    with pytest.raises(UserError, match=named):
        config.build()


def test_layers_of_one_theta_share_a_table() -> None:
    positions = {"kind": "rotary", "theta": [90.0, 10.0, 10.0, 90.0]}
    layers = EncoderConfig.model_validate({"vocab_size": 53, "positions": positions}).build().layers
    tables = [layer.attention.sublayer.rotary for layer in layers]
    assert tables[0] is tables[3]
    assert tables[1] is tables[2]
    torch.testing.assert_close(tables[1].cos, Rotary(64, 512, theta=10.0).cos)
    assert not torch.equal(tables[0].cos, tables[1].cos)


def test_the_first_attention_may_read_the_stream_as_it_is() -> None:
    config = EncoderConfig.model_validate({"vocab_size": 53, "residual": {"kind": "pre", "first_norm": False}})
    norms = [isinstance(layer.attention.norm, nn.Identity) for layer in config.build().layers]
    assert norms == [True, False, False, False]


def test_key_heads_divide_query_heads() -> None:
    with pytest.raises(ValueError, match="num_key_value_heads=3"):
        EncoderConfig(num_attention_heads=4, num_key_value_heads=3)
