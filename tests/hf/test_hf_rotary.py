"""Families with rotary positions: what is refused, noted and written. Their parity is in test_hf_parity."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_peers import SIZES, bert_tokenizer, check_export, edit_config, save_theirs
from safetensors.torch import load_file, save_file

from homespun.errors import UserError
from homespun.hf.export import export_huggingface
from homespun.hf.families.llama import LLAMA as LLAMA_FAMILY
from homespun.hf.match import match_architecture
from homespun.hf.open import open_any, open_huggingface
from homespun.models.bundle import ModelBundle
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


def test_nanochat_without_its_capped_head(tmp_path: Path) -> None:
    save_theirs(tmp_path, "NanoChatForCausalLM", **ROTARY)
    for settings in ({}, {"final_logit_softcapping": ...}):
        edit_config(tmp_path, **settings)
        with pytest.raises(UserError, match="final_logit_softcapping"):
            open_any(tmp_path)
        assert open_any(tmp_path, head=None).architecture == "NanoChatModel"


def test_older_config_of_modernbert(tmp_path: Path) -> None:
    """Its bases and the distance of global layers were numbers of their own, as in the released files."""
    save_theirs(tmp_path, "ModernBertModel", **ROTARY)
    edit_config(tmp_path, layer_types=..., rope_parameters=...)
    for local, thetas in ((50.0, [70.0, 50.0, 70.0]), (None, 70.0)):
        edit_config(tmp_path, global_attn_every_n_layers=2, global_rope_theta=70.0, local_rope_theta=local)
        assert open_huggingface(tmp_path).stored.config.backbone.positions.theta == thetas


def test_older_config_of_llama(tmp_path: Path) -> None:
    """The base was a separate number, frequencies were in the files, and a scaled type was in rope_scaling."""
    save_theirs(tmp_path, "LlamaForCausalLM", **ROTARY)
    weights = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    save_file(weights | {name: torch.ones(7)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    edit_config(tmp_path, rope_parameters=..., head_dim=..., rope_theta=70.0, rope_scaling=None)
    opened = open_huggingface(tmp_path)
    assert opened.stored.config.backbone.positions.theta == 70.0
    assert [unused.name for unused in opened.unused_tensors] == [name]
    edit_config(tmp_path, rope_scaling={"type": "linear", "factor": 2.0})
    with pytest.raises(UserError, match="rope_type='linear'"):
        open_huggingface(tmp_path)


def test_sizes_that_transformers_refuses_are_not_written(tmp_path: Path) -> None:
    config = ModelConfig.model_validate({"backbone": GATED | {"num_attention_heads": 4, "head_size": 6}})
    assert export_huggingface(tmp_path / "hf", ModelBundle(config.build(), config, TOKENIZER)).folder is None
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
        (MODERNBERT | {"attention": WINDOW, "positions": {"kind": "rotary"}}, WORDS, "ModernBertForMaskedLM"),
        (
            MODERNBERT | {"attention": {"kind": "full"}, "positions": {"kind": "rotary", "theta": [90.0] * 3}},
            WORDS | {"transform_bias": True, "hidden_act": "relu"},
            "ModernBertForMaskedLM",
        ),
        (MODERNBERT, POOLED, "ModernBertForSequenceClassification"),
        (MODERNBERT, POOLED | {"token": "mean", "bias": True}, "ModernBertForSequenceClassification"),
        (
            GATED | {"causal": False, "hidden_dropout_prob": 0.1},
            {"kind": "pooled", "hidden_act": "gelu", "num_labels": 5},
            "EuroBertForSequenceClassification",
        ),
        (GATED | {"mlp_bias": True, "num_key_value_heads": 1}, {"kind": "causal_lm"}, "LlamaForCausalLM"),
        (GATED | {"head_size": 6}, {"kind": "last", "num_labels": 5}, "LlamaForSequenceClassification"),
        (GATED | {"qk_norm": True, "head_size": 6}, {"kind": "causal_lm"}, "Qwen3ForCausalLM"),
        (GATED | {"qk_norm": True}, {"kind": "last", "num_labels": 5}, "Qwen3ForSequenceClassification"),
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
    report = check_export(tmp_path / "hf", model, config, name, tokenizer=TOKENIZER)
    dropout = ["hidden_dropout_prob"] if config.backbone.hidden_dropout_prob else []
    assert [note.split("=")[0] for note in report.notes] == dropout


@pytest.mark.parametrize(
    ("backbone", "nearest", "setting"),
    [
        (NANOCHAT | {"norm_weight": True}, "nanochat", "norm_weight=False"),
        (NANOCHAT | {"embedding_size": 12}, "nanochat", "embedding_size=42"),
        (NANOCHAT | {"positions": {"kind": "sinusoidal"}}, "nanochat", "positions.kind=rotary"),
        (MODERNBERT | {"norm": "rms_norm"}, "modernbert", "norm=layer_norm"),
        (MODERNBERT | {"residual": {"kind": "pre"}}, "modernbert", "residual.first_norm=False"),
        (
            MODERNBERT | {"positions": {"kind": "rotary", "theta": [90.0, 10.0, 20.0]}},
            "modernbert",
            "positions.theta=[20.0, 10.0, 20.0] where this model has [90.0, 10.0, 20.0]",
        ),
        (
            MODERNBERT | {"head_size": 6, "attention": {"kind": "full"}, "positions": {"kind": "rotary"}},
            "modernbert",
            "head_size=14",
        ),
        (GATED | {"norm_weight": False}, "llama", "norm_weight=True"),
        (LLAMA, "llama", "gated_feed_forward=True"),
    ],
)
def test_differences_are_named(backbone: dict[str, Any], nearest: str, setting: str, tmp_path: Path) -> None:
    config = ModelConfig.model_validate({"backbone": backbone})
    report = export_huggingface(tmp_path / "hf", ModelBundle(config.build(), config, TOKENIZER))
    assert report.folder is None
    assert f" {nearest}, has " in report.notes[0]
    assert setting in report.notes[0]
