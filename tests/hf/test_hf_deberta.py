"""DeBERTa's checkpoints as they were released, and what their configs may not say."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_peers import bert_tokenizer, inputs, their_model
from safetensors.torch import load_file, save_file

from homespun.errors import UserError
from homespun.hf.families.deberta import DEBERTA, DEBERTA_V2
from homespun.hf.open import open_huggingface
from homespun.models.config import ModelConfig
from homespun.models.presets import PRESETS

transformers = pytest.importorskip("transformers")

V3: dict[str, Any] = {
    "relative_attention": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
    "position_buckets": 8,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "type_vocab_size": 0,
}


def test_what_was_only_for_pretraining_is_left_out_with_a_reason(tmp_path: Path) -> None:
    theirs = their_model(transformers.DebertaV2ForMaskedLM, legacy=False, **V3)
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    extra = {
        "deberta.embeddings.position_embeddings.weight": torch.ones(29, 33),
        "mask_predictions.dense.weight": torch.ones(33, 33),
        "mask_predictions.LayerNorm.bias": torch.ones(33),
    }
    save_file(tensors | extra, tmp_path / "model.safetensors", metadata={"format": "pt"})
    # the released ones say nothing of which head they have
    tree = json.loads((tmp_path / "config.json").read_text())
    del tree["legacy"]
    (tmp_path / "config.json").write_text(json.dumps(tree))
    bert_tokenizer().save(tmp_path)
    opened = open_huggingface(tmp_path)
    assert {unused.name for unused in opened.unused_tensors if "tied" not in unused.reason} == extra.keys()
    given = inputs(pad_id=0, segments=0)
    with torch.no_grad():
        keep = given["attention_mask"].bool()
        found, expected = opened.stored.model(**given)[keep], theirs(**given).logits[keep]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"conv_kernel_size": 3}, "conv_kernel_size=3 is not supported, only 0"),
        ({"relative_attention": False}, "relative_attention=False is not supported"),
        ({"relative_attention": None}, "relative_attention=False is not supported"),
        ({"pos_att_type": "c2p|p2p"}, "pos_att_type='c2p|p2p' is not supported, only 'c2p', 'p2c' or both"),
        ({"pos_att_type": 5}, "pos_att_type=5 is not supported, only 'c2p', 'p2c' or both"),
        ({"pos_att_type": [5]}, "only 'c2p', 'p2c' or both"),
        ({"pos_att_type": []}, "only 'c2p', 'p2c' or both"),
        ({"embedding_size": 128}, "embedding_size=128 is not supported, only hidden_size"),
        ({"attention_head_size": 32}, "attention_head_size=32 is not supported"),
        ({"pooler_hidden_size": 32}, "pooler_hidden_size=32 is not supported, only hidden_size"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_ours_has_not_is_refused_by_name(setting: dict[str, Any], words: str) -> None:
    tree = {"architectures": ["DebertaV2ForSequenceClassification"], "model_type": "deberta-v2"} | V3 | setting
    with pytest.raises(UserError, match=r"config\.json: ") as error:
        DEBERTA_V2.read_config(tree, source="config.json")
    assert words in str(error.value)


def test_talking_heads_are_refused_by_name() -> None:
    with pytest.raises(UserError, match="talking_head=True"):
        DEBERTA.read_config(V3 | {"talking_head": True}, source="config.json")


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("deberta")])
def test_presets_are_of_their_version(name: str) -> None:
    config = ModelConfig.model_validate({"backbone": {"preset": name, "vocab_size": 11}})
    own, other = (DEBERTA_V2, DEBERTA) if "-v3-" in name else (DEBERTA, DEBERTA_V2)
    assert own.differences(own.architectures[0], config) == []
    assert other.differences(other.architectures[0], config)
