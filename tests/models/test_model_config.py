"""Configs of models: presets are the published sizes, mistakes are one clear line, building initialises as BERT."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from homespun.commands.recipe import pretrain_recipe
from homespun.config import json_schema, validate
from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.heads import MaskedLMHeadConfig
from homespun.models.presets import PRESETS, family_of


def encoder(**fields: Any) -> EncoderConfig:
    return validate(EncoderConfig, fields, source="model")


# millions of parameters, of backbones without heads: Turc et al. 2019 and the released checkpoints
SIZES = {
    "bert-tiny": (30_522, 4.4),
    "bert-mini": (30_522, 11.1),
    "bert-small": (30_522, 28.5),
    "bert-base": (30_522, 108.9),
    "bert-large": (30_522, 334.1),
    "roberta-base": (50_265, 124.1),
    "roberta-large": (50_265, 354.3),
    "electra-small": (30_522, 13.5),
    "electra-base": (30_522, 108.9),
    "electra-large": (30_522, 334.1),
    "albert-base": (30_000, 11.1),
    "gpt-base": (40_478, 116.5),
    "gpt2-small": (50_257, 124.4),
    "gpt2-medium": (50_257, 354.8),
    "gpt2-large": (50_257, 774.0),
    "gpt2-xl": (50_257, 1557.6),
    # table 2.1 of Brown et al. 2020 rounds: 125M, 350M, 760M, 1.3B, 2.7B, 6.7B, 13B, 175B
    "gpt3-small": (50_257, 125.2),
    "gpt3-medium": (50_257, 355.9),
    "gpt3-large": (50_257, 760.3),
    "gpt3-xl": (50_257, 1315.7),
    "gpt3-2.7b": (50_257, 2651.3),
    "gpt3-6.7b": (50_257, 6658.5),
    "gpt3-13b": (50_257, 12853.4),
    "gpt3-175b": (50_257, 174_604.0),
}


@pytest.mark.parametrize("preset", SIZES)
def test_presets_have_the_published_sizes(preset: str) -> None:
    vocab_size, millions = SIZES[preset]
    with torch.device("meta"):
        backbone = encoder(preset=preset, vocab_size=vocab_size).build()
    count = sum(parameter.numel() for parameter in backbone.parameters())
    assert count / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_a_config(preset: str) -> None:
    config = validate(ModelConfig, {"backbone": {"preset": preset}}, source="model")
    fields = PRESETS[preset]
    assert (
        config.backbone.hidden_size == (fields.get("encoder", {}) | fields.get("decoder", {}) | fields)["hidden_size"]
    )
    # written out, it no longer needs its preset
    assert validate(ModelConfig, config.model_dump(), source="model") == config


LINFORMER, LONGFORMER = PRESETS["linformer-mini"]["attention"], PRESETS["longformer-mini"]["attention"]
WINDOW = [{"kind": "window", "radius": 11}]


@pytest.mark.parametrize(
    ("preset", "field", "given", "expected"),
    [
        ("linformer-mini", "attention", {"k": 7}, LINFORMER | {"k": 7}),
        ("linformer-mini", "attention", {"kind": "linformer", "k": 7}, LINFORMER | {"k": 7}),
        ("linformer-mini", "attention", {"kind": "performer"}, {"kind": "performer"}),
        ("longformer-mini", "attention", {"patterns": WINDOW}, LONGFORMER | {"patterns": WINDOW}),
        ("longformer-mini", "attention", {"kind": "sparse", "patterns": WINDOW}, LONGFORMER | {"patterns": WINDOW}),
        ("longformer-mini", "attention", {"global_tokens": None}, LONGFORMER | {"global_tokens": None}),
        (
            "longformer-mini",
            "attention",
            {"global_tokens": {"first": 3}},
            LONGFORMER | {"global_tokens": {"first": 3, "projections": True}},
        ),
        ("roberta-tiny", "positions", {"offset": 5}, {"kind": "learned", "offset": 5}),
        ("roberta-tiny", "positions", {"kind": "sinusoidal"}, {"kind": "sinusoidal"}),
        ("reformer-mini", "residual", {"streams": "split"}, {"kind": "reversible", "streams": "split"}),
        ("gpt2-tiny", "residual", {"kind": "post"}, {"kind": "post"}),
    ],
)
def test_one_number_of_a_part_of_a_preset_changes_alone(preset: str, field: str, given: Any, expected: Any) -> None:
    changed = getattr(encoder(**{field: expected}), field)
    assert encoder(preset=preset, **{field: given}) == encoder(preset=preset).model_copy(update={field: changed})


def test_the_manual_maps_the_hyper_parameters_of_bierling() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "sizes.md").read_text(encoding="utf-8")
    rows = re.search(r"^\| Bierling \(2024\),.*?\n\n", text, re.M | re.S)
    *settings, electra = re.findall(r"`((?:data|model|objective)[^`]*=[^`]*)`", rows[0])
    assert [setting.partition("=")[0].rpartition(".")[2] for setting in settings] == [
        *("patterns", "kind", "max_length", "max_position_embeddings"),
        *("num_attention_heads", "num_hidden_layers", "hidden_size"),
    ]
    recipe = pretrain_recipe("reversible-dilated-bert")
    assert pretrain_recipe("reversible-dilated-bert", settings) == recipe
    objective = pretrain_recipe("reversible-dilated-bert", [electra]).objective
    assert objective.generator_size == 0.25
    plain = [setting.replace("reversible", "post") for setting in settings]
    assert pretrain_recipe("dilated-bert", plain).model == pretrain_recipe("dilated-bert").model


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"preset": "longformer-mini", "attention": {"kind": ["sparse"]}}, "attention"),
        ({"preset": "longformer-mini", "attention": {"radius": 3}}, "unknown key 'attention.radius'"),
        ({"preset": "electra-smal"}, "unknown preset 'electra-smal'; did you mean 'electra-small'?"),
        ({"preset": ["bert-tiny"]}, "unknown preset"),
        ({"hidden_act": "gelo"}, "unknown activation 'gelo'; did you mean 'gelu'?"),
        ({"hidden_size": 10, "num_attention_heads": 3}, "hidden_size=10 "),
        ({"hiden_size": 10}, "unknown key 'hiden_size'; did you mean 'hidden_size'?"),
        ({"attention": {"kind": "spars"}}, "unknown kind 'spars'; did you mean 'sparse'?"),
        ({"attention": {"kind": "sparse", "patterns": [{"kind": "band", "width": 0}]}}, "width"),
        ({"attention": {"kind": "sparse", "patterns": [{"kind": "window", "radius": 0}]}}, "radius=0 and dilation=1 "),
        ({"attention": {"kind": "sparse", "patterns": [{"kind": "window", "radius": [1]}]}}, "radius has 1 numbers"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob: "),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"vocab_size": 7, "pad_token_id": 7}, "pad_token_id=7 "),
        ({"positions": {"kind": "sinusoidal"}, "embedding_size": 7}, "even embedding_size, not 7"),
        ({"positions": {"kind": "axial"}}, "positions.shape"),
        ({"positions": {"kind": "axial", "shape": [0, 8], "sizes": [128, 128]}}, "positions.shape.0"),
        ({"positions": {"kind": "axial", "shape": [4, 8], "sizes": [128, 128]}}, "set shape=[64, 8]"),
        ({"feed_forward_chunk": -1}, "feed_forward_chunk"),
        ({"residual": {"kind": "reversible"}, "hidden_size": 21, "num_attention_heads": 3}, "hidden_size=21 "),
        ({"residual": {"kind": "reversible"}, "hidden_size": 22, "num_attention_heads": 2}, "hidden_size=22, 11 "),
        ({"residual": {"kind": "reversible", "streams": "half"}}, "'split' or 'copy'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_mistakes_are_one_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        encoder(**{"vocab_size": 11} | fields).build()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_schema_names_presets_and_kinds() -> None:
    schema = json_schema(EncoderConfig)
    assert set(schema["properties"]["preset"]["enum"]) == {*PRESETS, *map(family_of, PRESETS)}
    assert set(schema["properties"]["attention"]["discriminator"]["mapping"]) >= {"full", "sparse", "alternating"}


def test_building_initialises_as_bert() -> None:
    torch.manual_seed(1)
    model = ModelConfig(
        backbone=encoder(vocab_size=1009, embedding_size=64, initializer_range=0.05), head=MaskedLMHeadConfig()
    ).build()
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Embedding)) and module.weight.numel() > 10_000:
            assert float(module.weight.std().detach()) == pytest.approx(0.05, rel=0.05), name
        if isinstance(module, (nn.Linear, nn.LayerNorm)):
            assert not module.bias.any(), name
        if isinstance(module, nn.LayerNorm):
            assert bool((module.weight == 1).all()), name


@pytest.mark.parametrize(("streams", "layer", "output"), [("split", 7, 14), ("copy", 14, 28)])
def test_two_streams_are_halves_or_copies(streams: str, layer: int, output: int) -> None:
    model = ModelConfig(
        backbone=encoder(
            vocab_size=11,
            hidden_size=14,
            embedding_size=6,
            num_attention_heads=1,
            intermediate_size=17,
            feed_forward_chunk=3,
            residual={"kind": "reversible", "streams": streams},
        ),
        head=MaskedLMHeadConfig(),
    ).build()
    assert model.backbone.hidden_size == output
    assert model.backbone.layers[0].feedforward.sublayer.inner.weight.shape == (17, layer)
    assert model.backbone.projection.weight.shape == (14, 6)
    assert model(torch.zeros(2, 5, dtype=torch.int64)).shape == (2, 5, 11)
    assert all(name.startswith("layers.") for name, _ in model.backbone.named_parameters() if "attention" in name)


@pytest.mark.parametrize("groups", [0, 2])
def test_what_a_gpt2_adds_to_its_stream_begins_smaller(groups: int) -> None:
    torch.manual_seed(1)
    model = encoder(preset="gpt2-mini", vocab_size=101, num_hidden_layers=6, num_hidden_groups=groups).build()
    for name, module in model.layers.named_modules():
        if isinstance(module, nn.Linear):
            writes = name.endswith(("output", "outer"))
            expected = 0.02 / 12**0.5 if writes else 0.02  # two sublayers of each of six layers write
            assert float(module.weight.std().detach()) == pytest.approx(expected, rel=0.02), name


@pytest.mark.parametrize("segments", [0, 1])
@pytest.mark.parametrize("stacks", [1, 2])
def test_segments_that_a_model_has_not_are_refused_by_name(segments: int, stacks: int) -> None:
    sizes = {"vocab_size": 31, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3}
    stack = sizes | {"intermediate_size": 17, "max_position_embeddings": 11, "type_vocab_size": segments}
    backbone = stack if stacks == 1 else {"kind": "encoder_decoder", "encoder": stack}
    model = ModelConfig.model_validate({"backbone": backbone, "head": {"kind": "causal_lm"}}).build().eval()
    ids, types = torch.tensor([[7, 5, 9]]), torch.tensor([[0, 0, 1]])
    with torch.no_grad():
        torch.testing.assert_close(model(ids, token_type_ids=types * 0), model(ids), atol=0, rtol=0)
    message = rf"token_type_ids .*type_vocab_size={segments};"
    with pytest.raises(UserError, match=message):
        model(ids, token_type_ids=types)
    with pytest.raises(UserError, match=message):
        model.generate(ids, token_type_ids=types)
