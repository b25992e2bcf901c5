"""Reformers as transformers makes them by itself, and what is the same there only without rounding."""

import copy
from pathlib import Path

import pytest
import torch
from hf_peers import REFORMER, bert_tokenizer, inputs, save_theirs

from homespun.attention.lsh import LSH, LSHAttentionConfig
from homespun.attention.multi_head import AttentionSpec
from homespun.hf.export import export_huggingface
from homespun.hf.open import open_huggingface
from homespun.models.bundle import ModelBundle

transformers = pytest.importorskip("transformers")
KERNEL_SHAPE = AttentionSpec(33, 11, 24, layer=0, causal=True, dropout=0.0, seed=7)


@pytest.mark.parametrize(
    ("name", "causal"), [("ReformerForMaskedLM", False), ("ReformerModelWithLMHead", True)], ids=["masked", "causal"]
)
def test_with_the_settings_that_the_class_assumes(name: str, causal: bool, tmp_path: Path) -> None:
    """12 heads of 64 in a width of 256, and dropout of 0 in hashed attention, of 0.05 in local attention."""
    torch.manual_seed(3)
    theirs = getattr(transformers, name)(transformers.ReformerConfig(is_decoder=causal)).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    tokenizer = bert_tokenizer()
    tokenizer.save(tmp_path / "theirs")
    ours = open_huggingface(tmp_path / "theirs").stored
    assert ours.config.backbone.model_dump()["attention_probs_dropout_prob"] == 0.05
    given = inputs(pad_id=0, segments=0, lengths=(61, 23))  # less than a chunk, where nothing is hashed there
    keep = given["attention_mask"].bool()
    export_huggingface(tmp_path / "back", ModelBundle(ours.model, ours.config, tokenizer))
    back = type(theirs).from_pretrained(tmp_path / "back").eval()
    with torch.no_grad():
        expected, found, again = theirs(**given).logits, ours.model(**given), back(**given).logits
    torch.testing.assert_close(found[keep], expected[keep], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(again[keep], expected[keep], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("kinds", "dropout"), [(["local", "lsh", "local"], 0.125), (["lsh"] * 2, 0.25)], ids=["mixed", "hashed"]
)
def test_dropout_of_the_two_kinds_of_attention(kinds: list[str], dropout: float, tmp_path: Path) -> None:
    settings = {"local_attention_probs_dropout_prob": 0.125, "lsh_attention_probs_dropout_prob": 0.25}
    save_theirs(tmp_path, "ReformerModel", **REFORMER | settings | {"attn_layers": kinds})
    assert open_huggingface(tmp_path).stored.config.backbone.model_dump()["attention_probs_dropout_prob"] == dropout


def test_causal_rounds_of_hashing(tmp_path: Path) -> None:
    """A token that sees none but itself has there in float32 rounds whose weights are not 1 together."""
    settings = REFORMER | {"is_decoder": True, "lsh_num_chunks_before": 2}
    theirs = save_theirs(tmp_path, "ReformerModelWithLMHead", **settings).double()
    ours = copy.deepcopy(open_huggingface(tmp_path).stored.model).double()
    for kernel in [module for module in ours.modules() if isinstance(module, LSH)]:
        assert kernel.rotations.shape[2] == 2
        generator = torch.Generator().manual_seed(REFORMER["hash_seed"])
        kernel.rotations = torch.randn(kernel.rotations.shape, generator=generator, dtype=torch.float64)
    given = inputs(pad_id=0, segments=0, lengths=(24, 23, 22))
    keep = given["attention_mask"].bool()
    with torch.no_grad():
        torch.testing.assert_close(ours(**given)[keep], theirs(**given).logits[keep], atol=1e-9, rtol=1e-9)


def test_a_causal_model_that_begins_here_stays_in_its_buckets() -> None:
    plain, opened = LSHAttentionConfig(chunk_length=4), LSHAttentionConfig(chunk_length=4, across_buckets=True)
    kernels = [config.build(KERNEL_SHAPE).get_submodule("kernel") for config in (plain, opened)]
    assert [kernel.attend_across_buckets for kernel in kernels] == [False, True]
