"""DeBERTa's checkpoints as they were released, and what their configs may not say."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hf_peers import edit_config, inputs, save_theirs
from safetensors.torch import load_file, save_file

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
    theirs = save_theirs(tmp_path, "DebertaV2ForMaskedLM", legacy=False, **V3)
    tensors = load_file(tmp_path / "model.safetensors")
    extra = {
        "deberta.embeddings.position_embeddings.weight": torch.ones(29, 33),
        "mask_predictions.dense.weight": torch.ones(33, 33),
        "mask_predictions.LayerNorm.bias": torch.ones(33),
    }
    save_file(tensors | extra, tmp_path / "model.safetensors", metadata={"format": "pt"})
    edit_config(tmp_path, legacy=...)  # released configs do not have it
    opened = open_huggingface(tmp_path)
    assert {unused.name for unused in opened.unused_tensors if "tied" not in unused.reason} == extra.keys()
    given = inputs(pad_id=0, segments=0)
    with torch.no_grad():
        keep = given["attention_mask"].bool()
        found, expected = opened.stored.model(**given)[keep], theirs(**given).logits[keep]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("deberta")])
def test_presets_are_of_their_version(name: str) -> None:
    config = ModelConfig.model_validate({"backbone": {"preset": name, "vocab_size": 11}})
    own, other = (DEBERTA_V2, DEBERTA) if "-v3-" in name else (DEBERTA, DEBERTA_V2)
    assert own.differences(own.architectures[0], config) == []
    assert other.differences(other.architectures[0], config)
