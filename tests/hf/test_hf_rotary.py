"""Families with rotary positions: what is refused, noted and written. Their parity is in test_hf_parity."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_peers import SIZES, bert_tokenizer, inputs, their_model
from safetensors.torch import load_file, save_file

from homespun.errors import UserError
from homespun.hf.export import export_huggingface
from homespun.hf.families.llama import LLAMA as LLAMA_FAMILY
from homespun.hf.match import match_architecture
from homespun.hf.open import open_any, open_huggingface
from homespun.models.config import ModelConfig
from homespun.models.presets import PRESETS
from homespun.objectives.clm import build_clm_head_config
from homespun.objectives.mlm import build_mlm_head_config

transformers = pytest.importorskip("transformers")
TOKENIZER = bert_tokenizer()
ROTARY: dict[str, Any] = {"hidden_size": 42, "num_attention_heads": 3, "pad_token_id": 0}
LLAMA: dict[str, Any] = SIZES | {
    "hidden_size": 42,
    "num_attention_heads": 3,
    "type_vocab_size": 0,
    "norm": "rms_norm",
    "embedding_norm": False,
    "attention_bias": False,
    "mlp_bias": False,
    "causal": True,
    "residual": {"kind": "pre"},
    "positions": {"kind": "rotary", "theta": 100.0},
}
GATED = LLAMA | {"gated_feed_forward": True, "hidden_act": "silu"}
NANOCHAT = LLAMA | {"embedding_norm": True, "norm_weight": False, "qk_norm": True, "hidden_act": "relu2"}
WINDOW: dict[str, Any] = {"kind": "sparse", "patterns": [{"kind": "window", "radius": 3}]}
MODERNBERT: dict[str, Any] = LLAMA | {
    "norm": "layer_norm",
    "norm_bias": False,
    "embedding_norm": True,
    "gated_feed_forward": True,
    "causal": False,
    "residual": {"kind": "pre", "first_norm": False},
    "positions": {"kind": "rotary", "theta": [90.0, 10.0, 90.0]},
    "attention": {"kind": "alternating", "cycle": [{"kind": "full"}, WINDOW]},
}
WORDS: dict[str, Any] = {"kind": "masked_lm", "transform_bias": False, "norm_bias": False}
POOLED: dict[str, Any] = {"kind": "pooled", "num_labels": 5, "hidden_act": "gelu", "bias": False}
POOLED |= {"norm": "layer_norm", "norm_bias": False}


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("NanoChatForCausalLM", {}, "final_logit_softcapping=15.0 is not supported by the head, only null"),
        (
            "NanoChatModel",
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 10.0, "factor": 2.0}},
            "rope_parameters.rope_type='linear' is not supported, only 'default'",
        ),
        (
            "ModernBertForMaskedLM",
            {"decoder_bias": False},
            "decoder_bias=False is not supported, only True",
        ),
        (
            "ModernBertModel",
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "rope_theta": 9.0, "factor": 2.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 9.0},
                }
            },
            "rope_parameters.rope_type='linear' is not supported, only 'default'",
        ),
        (
            "LlamaForCausalLM",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10.0, "factor": 2.0}},
            "rope_parameters.rope_type='dynamic' is not supported, only 'default'",
        ),
        ("EuroBertForSequenceClassification", {}, "classifier_pooling='late' is not supported, only 'bos' and 'mean'"),
        (
            "EuroBertForMaskedLM",
            {"mlp_bias": True},
            "mlp_bias=True is not supported, because the head of masked tokens",
        ),
        ("Qwen3Model", {"use_sliding_window": True}, "use_sliding_window=True is not supported, only False"),
        ("NanoChatModel", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported, only 1.0"),
    ],
)
def test_refused_checkpoints(name: str, settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    their_model(getattr(transformers, name), **ROTARY, **settings).save_pretrained(tmp_path)
    TOKENIZER.save(tmp_path)
    with pytest.raises(UserError) as caught:
        open_huggingface(tmp_path)
    assert words in str(caught.value)


def test_nanochat_without_its_capped_head(tmp_path: Path) -> None:
    theirs = their_model(transformers.NanoChatForCausalLM, **ROTARY)
    theirs.save_pretrained(tmp_path)
    TOKENIZER.save(tmp_path)
    path = tmp_path / "config.json"
    tree = json.loads(path.read_text())
    for settings in (tree, {key: value for key, value in tree.items() if key != "final_logit_softcapping"}):
        path.write_text(json.dumps(settings))
        with pytest.raises(UserError, match="final_logit_softcapping"):
            open_any(tmp_path)
        assert open_any(tmp_path, head=None).architecture == "NanoChatModel"


def test_older_config_of_modernbert(tmp_path: Path) -> None:
    """Its bases and the distance of global layers were numbers of their own, as in the released files."""
    their_model(transformers.ModernBertModel, **ROTARY).save_pretrained(tmp_path)
    TOKENIZER.save(tmp_path)
    path = tmp_path / "config.json"
    tree = json.loads(path.read_text())
    del tree["layer_types"], tree["rope_parameters"]
    for local, thetas in ((50.0, [70.0, 50.0, 70.0]), (None, 70.0)):
        older = {"global_attn_every_n_layers": 2, "global_rope_theta": 70.0, "local_rope_theta": local}
        path.write_text(json.dumps(tree | older))
        assert open_huggingface(tmp_path).stored.config.backbone.positions.theta == thetas


@pytest.mark.parametrize("types", [[["full_attention"], {}], [None, None], ["full_attention"], 3])
def test_layer_types_of_modernbert_are_refused(types: object, tmp_path: Path) -> None:
    tree = {"architectures": ["ModernBertModel"], "model_type": "modernbert", "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(tree | {"layer_types": types}))
    TOKENIZER.save(tmp_path)
    with pytest.raises(UserError, match="layer_types"):
        open_huggingface(tmp_path)


def test_older_config_of_llama(tmp_path: Path) -> None:
    """The base was a separate number, frequencies were in the files, and a scaled type was in rope_scaling."""
    theirs = their_model(transformers.LlamaForCausalLM, **ROTARY)
    theirs.save_pretrained(tmp_path)
    TOKENIZER.save(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    save_file(weights | {name: torch.ones(7)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    path = tmp_path / "config.json"
    tree = json.loads(path.read_text())
    del tree["rope_parameters"], tree["head_dim"]
    path.write_text(json.dumps(tree | {"rope_theta": 70.0, "rope_scaling": None}))
    opened = open_huggingface(tmp_path)
    assert opened.stored.config.backbone.positions.theta == 70.0
    assert [unused.name for unused in opened.unused_tensors] == [name]
    path.write_text(json.dumps(tree | {"rope_theta": 70.0, "rope_scaling": {"type": "linear", "factor": 2.0}}))
    with pytest.raises(UserError, match="rope_type='linear'"):
        open_huggingface(tmp_path)


def test_sizes_that_transformers_refuses_are_not_written(tmp_path: Path) -> None:
    config = ModelConfig.model_validate({"backbone": GATED | {"num_attention_heads": 4, "head_size": 6}})
    assert export_huggingface(tmp_path / "hf", config.build(), config, TOKENIZER).folder is None
    (difference,) = LLAMA_FAMILY.differences(LLAMA_FAMILY.architectures[0], config)
    assert re.search("hidden_size=42 .*num_attention_heads=4", difference)


@pytest.mark.parametrize(
    "preset", [name for name, tree in PRESETS.items() if name.startswith("spun-") and "encoder" not in tree]
)
def test_our_presets_are_written_with_their_heads(preset: str) -> None:
    config = ModelConfig.model_validate({"backbone": {"preset": preset, "vocab_size": 97}})
    stack = config.one_stack("a test")
    head = build_clm_head_config(stack) if stack.causal else build_mlm_head_config(stack)
    match, notes = match_architecture(config.model_copy(update={"head": head}))
    assert not notes
    assert match.architecture.name == ("NanoChatForCausalLM" if stack.causal else "ModernBertForMaskedLM")


@pytest.mark.parametrize(
    ("backbone", "head", "name"),
    [
        (MODERNBERT, None, "ModernBertModel"),
        (MODERNBERT | {"attention": WINDOW, "positions": {"kind": "rotary"}}, WORDS, "ModernBertForMaskedLM"),
        (
            MODERNBERT | {"attention": {"kind": "full"}, "positions": {"kind": "rotary", "theta": [90.0] * 3}},
            WORDS | {"transform_bias": True, "hidden_act": "relu"},
            "ModernBertForMaskedLM",
        ),
        (MODERNBERT, POOLED, "ModernBertForSequenceClassification"),
        (MODERNBERT, POOLED | {"token": "mean", "bias": True}, "ModernBertForSequenceClassification"),
        (GATED | {"causal": False}, None, "EuroBertModel"),
        (GATED | {"causal": False}, {"kind": "causal_lm"}, "EuroBertForMaskedLM"),
        (
            GATED | {"causal": False, "hidden_dropout_prob": 0.1},
            {"kind": "pooled", "hidden_act": "gelu", "num_labels": 5},
            "EuroBertForSequenceClassification",
        ),
        (GATED, None, "LlamaModel"),
        (GATED | {"mlp_bias": True, "num_key_value_heads": 1}, {"kind": "causal_lm"}, "LlamaForCausalLM"),
        (GATED | {"head_size": 6}, {"kind": "last", "num_labels": 5}, "LlamaForSequenceClassification"),
        (GATED | {"qk_norm": True, "head_size": 6}, {"kind": "causal_lm"}, "Qwen3ForCausalLM"),
        (GATED | {"qk_norm": True}, {"kind": "last", "num_labels": 5}, "Qwen3ForSequenceClassification"),
        (NANOCHAT, None, "NanoChatModel"),
        (NANOCHAT | {"initialization": "fan_in"}, {"kind": "causal_lm"}, "NanoChatForCausalLM"),
        (
            NANOCHAT | {"num_key_value_heads": 1, "head_size": 6, "hidden_dropout_prob": 0.1},
            {"kind": "causal_lm", "tie_word_embeddings": False},
            "NanoChatForCausalLM",
        ),
    ],
)
def test_our_models_open_in_transformers(backbone: dict[str, Any], head: Any, name: str, tmp_path: Path) -> None:
    config = ModelConfig.model_validate({"backbone": backbone, "head": head})
    model = config.build()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.eval()
    report = export_huggingface(tmp_path / "hf", model, config, TOKENIZER)
    assert report.architecture == name
    assert [note.split("=")[0] for note in report.notes] == ["hidden_dropout_prob"] * (
        config.backbone.hidden_dropout_prob > 0
    )
    theirs, info = getattr(transformers, name).from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(info.values()), info
    given = inputs(pad_id=TOKENIZER.pad_id, segments=0)
    keep = given["attention_mask"].bool()
    back = open_huggingface(tmp_path / "hf").stored
    with torch.no_grad():
        expected, result = model(**given), theirs.eval()(**given)
        found = result.last_hidden_state if head is None else result.logits
        torch.testing.assert_close(back.model(**given), expected, atol=1e-6, rtol=1e-6)
    real = keep if expected.shape[:2] == keep.shape else slice(None)
    torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("backbone", "words"),
    [
        (NANOCHAT | {"norm_weight": True}, "the nearest, nanochat, has norm_weight=False where this model has True"),
        (NANOCHAT | {"embedding_size": 12}, "the nearest, nanochat, has embedding_size=42 where this model has 12"),
        (MODERNBERT | {"norm": "rms_norm"}, "the nearest, modernbert, has norm=layer_norm"),
        (MODERNBERT | {"residual": {"kind": "pre"}}, "the nearest, modernbert, has residual.first_norm=False"),
        (
            MODERNBERT | {"positions": {"kind": "rotary", "theta": [90.0, 10.0, 20.0]}},
            "the nearest, modernbert, has positions.theta=[20.0, 10.0, 20.0] where this model has [90.0, 10.0, 20.0]",
        ),
        (
            MODERNBERT | {"head_size": 6, "attention": {"kind": "full"}, "positions": {"kind": "rotary"}},
            "the nearest, modernbert, has head_size=14 where this model has 6",
        ),
        (GATED | {"norm_weight": False}, "the nearest, llama, has norm_weight=True where this model has False"),
        (LLAMA, "the nearest, llama, has gated_feed_forward=True where this model has False"),
        (NANOCHAT | {"positions": {"kind": "sinusoidal"}}, "positions.kind=rotary where this model has sinusoidal"),
    ],
)
def test_differences_are_named(backbone: dict[str, Any], words: str, tmp_path: Path) -> None:
    config = ModelConfig.model_validate({"backbone": backbone})
    report = export_huggingface(tmp_path / "hf", config.build(), config, TOKENIZER)
    assert report.folder is None
    assert words in report.notes[0]
