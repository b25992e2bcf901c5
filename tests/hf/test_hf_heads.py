"""`own_class_warning` agrees with the exported class."""

import re
from pathlib import Path
from typing import Any

import pytest
from hf_peers import SIZES, bert_tokenizer

from homespun.hf.export import export_complete
from homespun.hf.match import exportable_heads, own_class_warning
from homespun.models.bundle import ModelBundle
from homespun.models.config import ModelConfig

GPT2 = {"causal": True, "residual": {"kind": "pre"}, "embedding_norm": False, "type_vocab_size": 0}
V3 = {
    "positions": {"kind": "none"},
    "attention": {"kind": "disentangled", "position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm"},
}
BLOCKS = [{"kind": "blocks", "size": 5}, {"kind": "random_blocks", "size": 5, "count": 2}]
BIG_BIRD = {"attention": {"kind": "sparse", "patterns": BLOCKS, "global_tokens": {"first": 0, "block": 5}}}
REFORMER = {
    "attention": {"kind": "local"},
    "residual": {"kind": "reversible", "streams": "copy"},
    "type_vocab_size": 0,
    "embedding_norm": False,
}
ALBERT = {"num_hidden_groups": 1}
STACK = SIZES | {"type_vocab_size": 0, "layer_norm_eps": 1e-5, "positions": {"kind": "learned", "offset": 2}}
BART = {"kind": "encoder_decoder", "encoder": STACK, "decoder": STACK | {"intermediate_size": 41}}
LAST = {"kind": "pooled", "token": "last"}


def config_of(backbone: dict[str, Any], head: dict[str, Any] | None) -> ModelConfig:
    one_stack = backbone.get("kind") != "encoder_decoder"
    return ModelConfig.model_validate({"backbone": SIZES | backbone if one_stack else backbone, "head": head})


@pytest.mark.parametrize(
    ("backbone", "head", "kept"),
    [
        (V3, {"kind": "ffn"}, {"DebertaV2ForSequenceClassification": {"kind": "pooled"}}),
        (V3, {"kind": "ffn", "num_labels": 1}, {"DebertaV2ForSequenceClassification": {"kind": "pooled"}}),
        (ALBERT, {"kind": "ffn", "num_labels": 5}, {"AlbertForSequenceClassification": {"kind": "pooled"}}),
        (GPT2, {"kind": "mean"}, {"GPT2ForSequenceClassification": {"kind": "last"}}),
        ({}, {"kind": "cnn"}, {"BertForSequenceClassification": {"kind": "pooled"}}),
        ({"embedding_size": 21}, {"kind": "linear"}, {"ElectraForSequenceClassification": {"kind": "ffn"}}),
        (BART, {"kind": "ffn"}, {"BartForSequenceClassification": LAST}),
        (
            BIG_BIRD | {"hidden_act": "relu"},
            {"kind": "ffn"},
            {"BigBirdForSequenceClassification": {"kind": "ffn", "hidden_act": "relu"}},
        ),
        (REFORMER, {"kind": "ffn"}, {"ReformerForSequenceClassification": {"kind": "pooled", "pooler_size": 33}}),
        (
            BIG_BIRD,
            {"kind": "question_answering"},
            {"BigBirdForQuestionAnswering": {"kind": "question_answering_ffn", "intermediate_size": 47}},
        ),
        (ALBERT, {"kind": "question_answering_ffn"}, {"AlbertForQuestionAnswering": {"kind": "question_answering"}}),
    ],
)
def test_what_is_named_goes_along(
    backbone: dict[str, Any], head: dict[str, Any], kept: dict[str, Any], tmp_path: Path
) -> None:
    config, tokenizer = config_of(backbone, head), bert_tokenizer()
    assert exportable_heads(config) == kept
    message = own_class_warning(config)
    own = export_complete(tmp_path / "own", ModelBundle(config.build(), config, tokenizer)).architecture
    assert own is not None
    assert own.startswith("Homespun")
    assert re.match(rf"hf/ .*'{head['kind']}'; set ", str(message))
    for name, settings in kept.items():
        assert f"{' '.join(f'objective.head.{key}={value}' for key, value in settings.items())} ({name})" in message
        labels = {"num_labels": head["num_labels"]} if "num_labels" in head else {}
        completed = config_of(backbone, settings | labels)
        assert own_class_warning(completed) is None
        assert (
            export_complete(tmp_path / name, ModelBundle(completed.build(), completed, tokenizer)).architecture == name
        )


@pytest.mark.parametrize(
    ("backbone", "head"),
    [
        (GPT2 | {"hidden_act": "gelu_new", "residual": {"kind": "post"}}, {"kind": "question_answering"}),
        ({"causal": True}, {"kind": "last"}),
        ({}, {"kind": "scalar_mix", "head": {"kind": "ffn"}}),
    ],
)
def test_where_no_class_has_a_similar_head(backbone: dict[str, Any], head: dict[str, Any]) -> None:
    sizes = {"intermediate_size": 4 * SIZES["hidden_size"], "layer_norm_eps": 1e-5}
    message = own_class_warning(config_of(sizes | backbone, head))
    assert re.match(rf"hf/ .*{head['kind']!r}$", str(message))


@pytest.mark.parametrize(
    ("backbone", "head"),
    [
        ({}, None),
        ({}, {"kind": "ffn"}),
        (GPT2, {"kind": "last", "num_labels": 5}),
        (V3, {"kind": "token_classification"}),
        ({"attention": {"kind": "linformer"}}, {"kind": "ffn"}),  # of no family: nothing is written
    ],
)
def test_no_warning(backbone: dict[str, Any], head: dict[str, Any] | None) -> None:
    assert own_class_warning(config_of(backbone, head)) is None
