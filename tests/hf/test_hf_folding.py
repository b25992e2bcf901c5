"""Folded embeddings: the same logits from one matrix in place of two, here and in transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hf_peers import SIZES, bert_tokenizer, check_export, inputs

from homespun.commands.convert import convert
from homespun.commands.recipe import pretrain_recipe
from homespun.hf.folding import fold_config, fold_weights
from homespun.hf.match import own_class_warning
from homespun.models.bundle import save_model, weights_of
from homespun.models.config import ModelConfig

TOKENIZER = bert_tokenizer()
NARROW: dict[str, Any] = SIZES | {
    "embedding_size": 14,
    "hidden_size": 44,
    "type_vocab_size": 0,
    "embedding_norm": False,
    "causal": True,
    "residual": {"kind": "pre"},
}
GPT2 = NARROW | {"hidden_act": "gelu_new"}
LLAMA = NARROW | {
    "norm": "rms_norm",
    "attention_bias": False,
    "mlp_bias": False,
    "gated_feed_forward": True,
    "hidden_act": "silu",
    "positions": {"kind": "rotary"},
}
LM, UNBIASED = {"kind": "causal_lm"}, {"kind": "causal_lm", "transform_bias": False}


def build(backbone: dict[str, Any], head: dict[str, Any] | None) -> tuple[Any, ModelConfig]:
    config = ModelConfig.model_validate({"backbone": backbone, "head": head})
    model = config.build()
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return model.eval(), config


@pytest.mark.parametrize(
    ("backbone", "head", "name", "notes"),
    [
        (GPT2, None, "GPT2Model", ["embedding"]),
        (GPT2, LM, "GPT2LMHeadModel", ["embedding", "last norm"]),
        (GPT2, UNBIASED, "GPT2LMHeadModel", ["embedding"]),
        (GPT2, LM | {"tie_word_embeddings": False}, "GPT2LMHeadModel", ["embedding"]),
        (GPT2 | {"positions": {"kind": "learned", "offset": 2}}, LM, "GPT2LMHeadModel", ["embedding", "last norm"]),
        (GPT2, {"kind": "last", "num_labels": 5}, "GPT2ForSequenceClassification", ["embedding"]),
        (GPT2, {"kind": "masked_lm"}, "GPT2Model", ["embedding", "head 'masked_lm'"]),
        (LLAMA, UNBIASED, "LlamaForCausalLM", ["embedding"]),
        (LLAMA, LM, "LlamaModel", ["embedding", "final_logits_bias=False where this model has True"]),
        (LLAMA | {"causal": False}, None, "EuroBertModel", ["embedding"]),
    ],
)
def test_folded_models_are_the_same(
    backbone: dict[str, Any], head: Any, name: str, notes: list[str], tmp_path: Path
) -> None:
    model, config = build(backbone, head)
    report = check_export(tmp_path / "hf", model, config, name, tokenizer=TOKENIZER, tolerance=2e-5)
    assert [part in note for part, note in zip(notes, report.notes, strict=True)] == [True] * len(notes)


@pytest.mark.parametrize(
    "changes",
    [
        {"embedding_size": 0},
        {"embedding_size": 44},
        {"embedding_norm": True},
        {"scale_embedding": True},
        {"positions": {"kind": "sinusoidal"}},
    ],
)
def test_what_cannot_be_folded(changes: dict[str, Any]) -> None:
    assert fold_config(ModelConfig.model_validate({"backbone": NARROW | changes})) is None


def test_segments_are_folded() -> None:
    model, config = build(NARROW | {"type_vocab_size": 3, "causal": False, "positions": {"kind": "none"}}, None)
    folded = fold_config(config)
    wide = folded.build().eval()
    wide.load_state_dict(fold_weights(weights_of(model), config))
    given = inputs(pad_id=0, segments=3)
    with torch.no_grad():
        torch.testing.assert_close(wide(**given), model(**given), atol=2e-5, rtol=1e-5)


def test_causal_mini_is_written_with_its_head(tmp_path: Path) -> None:
    backbone = pretrain_recipe("causal-mini", []).model.model_copy(update={"vocab_size": TOKENIZER.vocab_size})
    model, config = build(backbone.model_dump(), LM)
    assert own_class_warning(config) is None
    save_model(tmp_path / "model", model, config, TOKENIZER, labels=None, task={})
    report = convert(tmp_path / "model", tmp_path / "hf", to="hf")
    assert report["architecture"]["to"] == "GPT2LMHeadModel"
    assert report["check"]["compared"] == "logits"


def test_a_head_that_goes_along_is_named_for_folded_models() -> None:
    _, config = build(GPT2, {"kind": "mean", "num_labels": 5})
    assert "objective.head.kind=last (GPT2ForSequenceClassification)" in str(own_class_warning(config))
