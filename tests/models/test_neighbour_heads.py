"""The first layer's heads look at neighbouring tokens from the start."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from homespun.attention.linformer import LinformerAttention
from homespun.attention.multi_head import MultiHeadAttention, split_heads
from homespun.attention.sparse import GlobalAttention
from homespun.errors import UserError
from homespun.models.bundle import SkipInit
from homespun.models.encoder import EncoderConfig
from homespun.models.neighbour_heads import OFFSETS, fit_neighbour_heads
from homespun.nn.masks import Mask

LENGTH, VOCAB = 61, 997
WINDOW: dict[str, Any] = {"kind": "sparse", "patterns": [{"kind": "window", "radius": 8}]}


def config(**fields: Any) -> EncoderConfig:
    shape = {"vocab_size": VOCAB, "hidden_size": 128, "num_attention_heads": 4, "max_position_embeddings": 67}
    drawn = {"initialization": "fan_in", "initializer_range": 0.03, "neighbour_heads": 1}
    return EncoderConfig.model_validate(shape | drawn | {"hidden_dropout_prob": 0.0} | fields)


@torch.no_grad()
def weights(stack: EncoderConfig) -> Tensor:
    """(heads, seq, seq) mean attention of the first layer over random texts."""
    torch.manual_seed(0)
    encoder = stack.build().eval()
    kinds = (MultiHeadAttention, GlobalAttention, LinformerAttention)
    attention = next(module for module in encoder.layers[0].modules() if isinstance(module, kinds))
    entered: list[tuple[Tensor, Mask]] = []
    attention.register_forward_pre_hook(lambda _, inputs: entered.append(inputs))
    encoder(torch.randint(5, VOCAB, (8, LENGTH)))
    hidden, mask = entered[0]
    query, key = (split_heads(part(hidden), 4) for part in (attention.query, attention.key))
    rotary = getattr(attention, "rotary", None)
    if rotary is not None:
        query, key = rotary(query), rotary(key)
    # values that name the position: as wide as a head, which local attention wants
    values = torch.eye(LENGTH).expand(8, 4, -1, -1).split(query.shape[-1], -1)
    values = (nn.functional.pad(value, (0, query.shape[-1] - value.shape[-1])) for value in values)
    return torch.cat([attention.kernel(query, key, value, mask) for value in values], -1).mean(0)[..., :LENGTH]


POST: dict[str, Any] = {}
PRE = {"residual": {"kind": "pre"}, "embedding_norm": False}
COPIED = {"residual": {"kind": "reversible", "streams": "copy"}, "embedding_norm": False}
SINES: dict[str, Any] = {"positions": {"kind": "sinusoidal", "halves": True}, "initializer_range": 0.1}
SPLIT = SINES | {"residual": {"kind": "reversible", "streams": "split"}, "hidden_size": 256, "neighbour_heads": 2}


@pytest.mark.parametrize(
    ("fields", "least"),
    [
        (POST, 0.5),
        (PRE, 0.5),
        (COPIED, 0.5),
        (POST | {"embedding_size": 64}, 0.5),
        (PRE | {"embedding_size": 64}, 0.5),
        (POST | {"num_hidden_groups": 1, "type_vocab_size": 0}, 0.5),
        (POST | {"attention": WINDOW}, 0.5),
        (POST | {"attention": {"kind": "local", "chunk_length": 64}}, 0.5),
        (POST | {"attention": {"kind": "linformer", "k": 64}}, 0.5),
        (POST | {"attention": {"kind": "performer", "num_features": 128}}, 0.2),
        (SINES, 0.5),
        (SPLIT, 0.2),
        (SPLIT | {"positions": {"kind": "sinusoidal", "ascending": True}}, 0.5),
        ({"positions": {"kind": "rotary"}}, 0.15),
    ],
    ids=[
        *("post-norm", "pre-norm", "reversible", "narrow", "narrow-pre-norm", "shared", "window", "local"),
        *("linformer", "performer", "sinusoidal", "split-halves", "split-ascending", "rotary"),
    ],
)
def test_each_head_attends_most_to_its_neighbour(fields: dict[str, Any], least: float) -> None:
    stack = config(**fields)
    attended = weights(stack)
    for head, offset in enumerate(OFFSETS):
        seen = torch.stack([attended[head].diagonal(d)[8:40].mean() for d in range(-5, 6)])
        assert int(seen.argmax()) - 5 == offset * stack.neighbour_heads
        assert seen.max() > least  # 1 / 61 as drawn


def test_as_drawn_no_position_is_preferred() -> None:
    assert weights(config(neighbour_heads=0)).max() < 0.1


def test_nothing_is_fitted_where_weights_are_not_drawn() -> None:
    with SkipInit(), torch.device("meta"):
        assert config().build().embeddings.words.weight.is_meta
    stack = config(neighbour_heads=0).build()
    before = {name: weight.clone() for name, weight in stack.state_dict().items()}
    with SkipInit():
        fit_neighbour_heads(stack.embeddings.words.weight, stack, deviation=torch.nan, step=1)
    assert all(torch.equal(weight, before[name]) for name, weight in stack.state_dict().items())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"positions": {"kind": "none"}}, "neighbour_heads=0"),
        ({"positions": {"kind": "rotary"}, "attention_bias": False}, "attention_bias=true"),
        ({"attention": {"kind": "lsh"}}, "neighbour_heads=0"),
        ({"num_key_value_heads": 2}, "num_key_value_heads=0"),
        ({"positions": {"kind": "rotary"}, "num_key_value_heads": 2}, "num_key_value_heads=0"),
    ],
)
def test_positions_that_have_no_neighbours_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        config(**fields).build()
