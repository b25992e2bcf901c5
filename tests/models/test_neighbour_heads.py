"""The first layer's heads look at neighbouring tokens from the start."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from homespun.errors import UserError
from homespun.models.encoder import EncoderConfig
from homespun.models.neighbour_heads import OFFSETS
from homespun.nn.attention import MultiHeadAttention, split_heads
from homespun.nn.global_attention import GlobalAttention
from homespun.nn.kernels.linformer import LinformerAttention

LENGTH, VOCAB = 61, 997
WINDOW: dict[str, Any] = {"kind": "sparse", "patterns": [{"kind": "window", "radius": 8}]}


def config(**fields: Any) -> EncoderConfig:
    shape = {"vocab_size": VOCAB, "hidden_size": 128, "num_attention_heads": 4, "max_position_embeddings": 67}
    drawn = {"initialization": "fan_in", "initializer_range": 0.03, "neighbour_heads": 1}
    return EncoderConfig.model_validate(shape | drawn | {"hidden_dropout_prob": 0.0} | fields)


@torch.no_grad()
def weights(stack: EncoderConfig) -> Tensor:
    """(heads, seq, seq) mean attention of the first layer over random texts, every token visible."""
    torch.manual_seed(0)
    encoder = stack.build().eval()
    kinds = (MultiHeadAttention, GlobalAttention, LinformerAttention)
    attention = next(module for module in encoder.layers[0].modules() if isinstance(module, kinds))
    entered: list[Tensor] = []
    attention.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
    encoder(torch.randint(5, VOCAB, (8, LENGTH)))
    query, key = (split_heads(part(entered[0]), 4) for part in (attention.query, attention.key))
    rotary = getattr(attention, "rotary", None)
    if rotary is not None:
        query, key = rotary(query), rotary(key)
    return (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5).softmax(-1).mean(0)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"attention": WINDOW},
        {"attention": {"kind": "linformer", "k": 32}},
        {"residual": {"kind": "pre"}, "embedding_norm": False},
        {"residual": {"kind": "reversible", "streams": "copy"}, "embedding_norm": False},
        {"positions": {"kind": "sinusoidal"}, "initializer_range": 0.1},
        {"positions": {"kind": "rotary"}},
    ],
    ids=["learned", "window", "linformer", "pre-norm", "reversible", "sinusoidal", "rotary"],
)
def test_each_head_attends_most_to_its_neighbour(fields: dict[str, Any]) -> None:
    attended = weights(config(**fields))
    for head, offset in enumerate(OFFSETS):
        seen = torch.stack([attended[head].diagonal(d)[8:40].mean() for d in range(-5, 6)])
        assert int(seen.argmax()) - 5 == offset
        assert seen.max() > 0.15  # 1 / 61 as drawn


def test_as_drawn_no_position_is_preferred() -> None:
    assert weights(config(neighbour_heads=0)).max() < 0.1


def test_projected_keys_of_linformer_are_the_keys() -> None:
    attention = {"kind": "linformer", "k": 67}
    torch.manual_seed(0)
    full = config().build().eval()
    projected = config(attention=attention).build().eval()
    missing = projected.load_state_dict(full.state_dict(), strict=False)
    assert all("projection" in name for name in missing.missing_keys)
    ids = torch.randint(5, VOCAB, (2, LENGTH))
    torch.testing.assert_close(projected(ids), full(ids))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"positions": {"kind": "none"}}, "neighbour_heads=0"),
        ({"positions": {"kind": "rotary"}, "attention_bias": False}, "attention_bias=true"),
    ],
)
def test_positions_that_have_no_neighbours_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        config(**fields).build()
