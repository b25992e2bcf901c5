"""Encoders that are causal: what of them is refused, written, and gone on with. Their parity is in test_hf_parity."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_peers import SIZES, bert_tokenizer, check_export, inputs, save_theirs

from homespun.data.rows import Row
from homespun.hf.export import export_huggingface
from homespun.hf.open import open_any, open_huggingface
from homespun.models.bundle import ModelBundle
from homespun.models.config import ModelConfig
from homespun.objectives.clm import CausalLM

transformers = pytest.importorskip("transformers")
TOKENIZER = bert_tokenizer()


def test_without_its_head_and_with_it(tmp_path: Path) -> None:
    save_theirs(tmp_path, "BertLMHeadModel", is_decoder=True)
    assert open_any(tmp_path, head="masked_lm").architecture == "BertLMHeadModel"
    bare = open_any(tmp_path, head=None)
    assert bare.architecture == "BertModel"
    assert bare.stored.model.backbone.causal


@pytest.mark.parametrize("head", [None, {"kind": "causal_lm"}], ids=["none", "no-class"])
def test_causal_encoders_are_causal_in_transformers(head: Any, tmp_path: Path) -> None:
    config = ModelConfig.model_validate({"backbone": SIZES | {"causal": True}, "head": head})
    model = config.build().eval()
    report = check_export(tmp_path / "hf", model, config, "BertModel", tokenizer=TOKENIZER)
    assert ["'causal_lm'" in note for note in report.notes] == [True, False][head is None :]


def test_ends_of_texts_are_written(tmp_path: Path) -> None:
    save_theirs(tmp_path / "theirs", "BertLMHeadModel", is_decoder=True)
    stored = open_huggingface(tmp_path / "theirs").stored
    export_huggingface(tmp_path / "hf", ModelBundle(stored.model, stored.config, TOKENIZER))
    tree = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (tree["architectures"], tree["is_decoder"]) == (["BertLMHeadModel"], True)
    assert (tree["bos_token_id"], tree["eos_token_id"]) == (TOKENIZER.cls_id, TOKENIZER.sep_id)


def test_causal_training_goes_on_under_the_same_head(tmp_path: Path) -> None:
    save_theirs(tmp_path, "BertLMHeadModel", is_decoder=True)
    theirs = transformers.BertLMHeadModel.from_pretrained(tmp_path).eval()
    stored = open_huggingface(tmp_path).stored
    objective = CausalLM().build(stored.config, TOKENIZER)
    assert objective.export_model()[1] == stored.config
    objective.model.load_state_dict(stored.model.state_dict())
    rows = [row[row != 0] for row in inputs(pad_id=0)["input_ids"]]
    batch = CausalLM().collate(TOKENIZER)([Row(row.numpy()) for row in rows], [])
    loss = objective.eval()(batch)
    with torch.no_grad():
        expected = theirs(
            batch.input_ids,
            attention_mask=batch.attention_mask,
            labels=batch.input_ids.masked_fill(~batch.attention_mask, -100),
        ).loss
    torch.testing.assert_close(loss.total(batch.targets), expected, atol=1e-5, rtol=1e-5)
