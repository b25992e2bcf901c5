"""Heads that copy from the source before any training."""

from typing import Any

import pytest
import torch
from torch import Tensor

from homespun.attention.multi_head import CrossAttention, split_heads
from homespun.errors import UserError
from homespun.models.bundle import SkipInit
from homespun.models.copy_heads import fit_copy_heads
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.models.weight_transfer import change_stacks

LENGTH, VOCAB, SHIFT = 60, 8000, 13
DRAWN: dict[str, Any] = {"initialization": "fan_in", "initializer_range": 0.03, "neighbour_heads": 1}
WINDOW: dict[str, Any] = {"kind": "sparse", "patterns": [{"kind": "window", "radius": 8}]}
SCALED = {"scale_attn_weights": True, "scale_embedding": True}


def config(preset: str, encoder: dict[str, Any] | None = None, **fields: Any) -> EncoderDecoderConfig:
    tree = {"preset": preset, "encoder": {"vocab_size": VOCAB} | (encoder or {}), "copy_heads": True}
    return EncoderDecoderConfig.model_validate(tree | fields)


@torch.no_grad()
def attention_to_next(stacks: EncoderDecoderConfig) -> tuple[Tensor, Tensor]:
    """Attention to the source token that follows the last one, and the share of the vocabulary predicted below it.

    The target is a rotation of the source, so that equal positions do not have equal tokens.
    """
    torch.manual_seed(0)
    model = stacks.build().eval()
    source = torch.stack([torch.randperm(VOCAB - 5)[:LENGTH] + 5 for _ in range(8)])
    target = source.roll(-SHIFT, 1)[:, : LENGTH - SHIFT - 1]
    following = torch.arange(SHIFT + 1, LENGTH)
    cross = next(m for m in model.decoder.layers[0].modules() if isinstance(m, CrossAttention))
    entered: list[Tensor] = []
    cross.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
    encoded = model.encode(source)
    scores = model.decode(target, encoded) @ model.embeddings.words.weight.T
    query = split_heads(cross.query(entered[0]), cross.num_attention_heads)[:, 0]
    key = split_heads(cross.key(encoded.hidden), cross.num_attention_heads)[:, 0]
    scale = query.shape[-1] ** -0.5 if cross.kernel.scale is None else cross.kernel.scale
    weights = (query @ key.mT * scale).softmax(-1)
    attended = weights[:, torch.arange(len(following)), following].mean()
    below = scores < scores.gather(-1, source[:, following, None])
    return attended, below.float().mean()


@pytest.mark.parametrize(
    ("stacks", "least_attended", "least_predicted"),
    [
        (config("spun-encoder-decoder-tiny"), 0.9, 0.9),
        (config("t5-mini", DRAWN | SCALED), 0.9, 0.8),
        (config("t5-mini", DRAWN | {"head_size": 32}), 0.6, 0.6),
        (config("bart-mini", DRAWN | {"positions": {"kind": "rotary"}}), 0.9, 0.8),
        (config("bart-mini", DRAWN), 0.3, 0.58),  # learned positions match too
        (config("bart-mini", DRAWN | {"attention": WINDOW}), 0.3, 0.58),
    ],
    ids=["spun", "t5", "unscaled-narrow-heads", "rotary", "learned", "window"],
)
def test_the_decoder_attends_to_the_token_after_its_last_one_and_predicts_it(
    stacks: EncoderDecoderConfig, least_attended: float, least_predicted: float
) -> None:
    attended, predicted = attention_to_next(stacks)
    assert attended > least_attended  # 1 / 60 without copy_heads
    assert predicted > least_predicted  # 0.5 without, with a standard error of 0.015


def test_without_copy_heads_no_token_of_the_source_is_preferred() -> None:
    attended, predicted = attention_to_next(config("spun-encoder-decoder-tiny", copy_heads=False))
    assert attended < 0.1
    assert 0.4 < predicted < 0.6


def test_other_heads_and_layers_keep_their_weights() -> None:
    built = []
    for copies in (False, True):
        torch.manual_seed(0)
        built.append(config("spun-encoder-decoder-tiny", copy_heads=copies).build().state_dict())
    changed = {name for name, weight in built[0].items() if not torch.equal(weight, built[1][name])}
    first = "encoder.layers.0.attention.sublayer.", "decoder.layers.0.cross_attention.sublayer."
    assert changed == {
        *(first[0] + f"{part}.weight" for part in ("value", "output")),
        *(first[1] + f"{part}.weight" for part in ("query", "key", "value", "output")),
    }
    name = first[1] + "query.weight"
    assert torch.equal(built[0][name][64:], built[1][name][64:])  # heads of 64


def test_nothing_is_fitted_where_weights_are_not_drawn() -> None:
    with SkipInit(), torch.device("meta"):
        assert config("spun-encoder-decoder-tiny").build().embeddings.words.weight.is_meta
    model = config("spun-encoder-decoder-tiny", copy_heads=False).build()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with SkipInit():
        fit_copy_heads(model.embeddings.words.weight, model)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


@pytest.mark.parametrize(
    ("preset", "encoder", "message"),
    [
        ("bart-mini", {}, "neighbour_heads=1"),
        ("bart-mini", DRAWN | {"neighbour_heads": 2}, "neighbour_heads=1"),
        ("t5-mini", {"neighbour_heads": 1}, "initialization=fan_in"),
        ("pegasus-mini", DRAWN, "sinusoidal"),
        ("prophetnet-mini", DRAWN, "prediction streams"),
        ("rnn-seq2seq-mini", {}, "recurrent"),
    ],
)
def test_stacks_that_cannot_copy_are_refused(preset: str, encoder: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(preset, encoder)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ({"residual": {"kind": "reversible"}, "positions": {"kind": "rotary"}}, "not reversible"),
        ({"residual": {"kind": "reversible", "streams": "copy"}}, "one width"),
        ({"embedding_size": 64}, "one width"),
        ({"attention": {"kind": "linformer", "k": 64}}, "multi-head attention"),
    ],
)
def test_layers_that_cannot_copy_are_refused(encoder: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, UserError), match=message):
        config("bart-mini", DRAWN | encoder).build()


def test_heads_of_two_widths_are_refused() -> None:
    with pytest.raises(UserError, match="not 32 and 64"):
        config("bart-mini", DRAWN, decoder={"num_attention_heads": 8}).build()


def test_a_checkpoint_with_another_attention_keeps_its_own_weights() -> None:
    stacks = config("bart-mini", DRAWN)
    changed = change_stacks(stacks, {"encoder": {"attention": {"kind": "linformer", "k": 8}}})
    assert not changed.copy_heads
    changed.build()
