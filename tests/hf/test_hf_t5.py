"""Parity with transformers' T5: the bare model, both versions with their heads, the encoder alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hf_pairs import Pair, Parity, check_cache, check_logits
from hf_peers import LENGTHS, bert_tokenizer, check_export, decoder_inputs, edit_config, inputs, their_model
from safetensors.torch import load_file, save_file

from homespun.hf.export import export_huggingface
from homespun.hf.open import open_huggingface
from homespun.models.bundle import ModelBundle
from homespun.models.config import ModelConfig

transformers = pytest.importorskip("transformers")

# buckets of one position, of several, and the last one: all of them in the shortest text but one
T5: dict[str, Any] = {
    "head_size": 5,
    "relative_attention_num_buckets": 10,
    "relative_attention_max_distance": 11,
    "num_decoder_layers": 2,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
}
GATED: dict[str, Any] = T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bare": ("T5Model", T5),
    "bare-gated": ("T5Model", GATED | {"num_decoder_layers": None}),
    "bare-long": ("T5Model", T5 | {"n_positions": 137, "feed_forward_proj": "gated-silu"}),
    "lm": ("T5ForConditionalGeneration", T5 | {"layer_norm_eps": 1e-3}),
    "lm-long": ("T5ForConditionalGeneration", T5 | {"n_positions": 137, "relative_attention_max_distance": 37}),
    "lm-gated-untied": ("T5ForConditionalGeneration", GATED),
    "lm-gated-tied": ("T5ForConditionalGeneration", GATED | {"relative_attention_num_buckets": 7}),
    "lm-untied": ("T5ForConditionalGeneration", T5 | {"feed_forward_proj": "gelu"}),
    "answers": ("T5ForQuestionAnswering", T5),
    "classification": ("T5ForSequenceClassification", T5 | {"num_labels": 5, "eos_token_id": 5}),
    "classification-gated": ("T5ForSequenceClassification", GATED | {"num_labels": 3, "eos_token_id": 5}),
    "encoder": ("T5EncoderModel", T5),
    "encoder-gated": ("T5EncoderModel", GATED | {"feed_forward_proj": "gated-gelu_python"}),
    "encoder-silu": ("T5EncoderModel", GATED | {"dense_act_fn": "silu"}),
    "encoder-classification": ("T5ForTokenClassification", T5 | {"num_labels": 5}),
}
LONG = (131, 23, 87)


def their_t5(cls: Any, **settings: Any) -> Any:
    """Theirs of random weights; the queries' smaller, as T5 draws them, which divides by nothing in the attention."""
    theirs = their_model(cls, **settings)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if name.endswith(".q.weight"):
                parameter *= theirs.config.d_kv**-0.5
    return theirs


def untie(folder: Path) -> None:
    """Give the files output embeddings of their own, as those of T5 1.1 have."""
    weights = load_file(folder / "model.safetensors")
    words = weights["shared.weight"]
    weights["lm_head.weight"] = torch.randn(words.shape, generator=torch.Generator().manual_seed(13)) * 0.3
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    name, settings = CASES[request.param]
    folder = tmp_path_factory.mktemp("theirs")
    cls = getattr(transformers, name)
    theirs = their_t5(cls, **settings)
    theirs.save_pretrained(folder)
    if request.param.endswith("untied"):
        untie(folder)
        theirs = cls.from_pretrained(folder).eval()
    tokenizer = bert_tokenizer()
    tokenizer.save(folder)
    lengths = LONG if "long" in request.param else LENGTHS
    given = inputs(pad_id=0, segments=0, lengths=lengths)
    if name == "T5ForSequenceClassification":  # theirs looks for this token, of which each text has one
        given["input_ids"][given["input_ids"] == 5] = 6
        given["input_ids"][range(len(lengths)), [length - 1 for length in lengths]] = 5
    elif "encoder" not in request.param:
        given |= decoder_inputs(pad_id=0, lengths=(29, 41, 7) if "long" in request.param else (11, 17, 5))
        given["decoder_input_ids"][:, 0] = 0  # where writing begins, a padding token is a real one
    return Pair(cls, theirs, open_huggingface(folder), folder, tokenizer, lengths, given)


class TestParity(Parity):
    """Every case of `pair`."""


def test_padding_may_stand_on_the_left(pair: Pair) -> None:
    if pair.cls.__name__ == "T5ForSequenceClassification":
        return  # its decoder reads the text from its first token on
    turned = {name: tensor.flip(1) for name, tensor in pair.inputs.items()}
    other = Pair(pair.cls, pair.theirs, pair.ours, pair.folder, pair.tokenizer, pair.lengths, turned)
    check_logits(other, training=False)


def test_token_by_token_from_a_cache_is_theirs(pair: Pair) -> None:
    if "decoder_input_ids" in pair.inputs:
        check_cache(pair)
    else:
        assert pair.cls.__name__ in ("T5EncoderModel", "T5ForTokenClassification", "T5ForSequenceClassification")


def saved(folder: Path, name: str, settings: dict[str, Any], **changes: Any) -> Any:
    """A model of theirs in a folder, whose config.json is then changed."""
    theirs = their_t5(getattr(transformers, name), **settings)
    theirs.save_pretrained(folder)
    bert_tokenizer().save(folder)
    edit_config(folder, **changes)
    return theirs


@pytest.mark.parametrize("untied", [False, True])
def test_config_files_of_older_versions(untied: bool, tmp_path: Path) -> None:
    # which say by `tie_word_embeddings` alone whether vectors are scaled, and T5 1.0's not even that
    changes = {"scale_decoder_outputs": ..., "tie_word_embeddings": False if untied else ..., "n_positions": ...}
    saved(tmp_path, "T5ForConditionalGeneration", T5, **changes)
    if untied:
        untie(tmp_path)
    opened = open_huggingface(tmp_path).stored
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path).eval()
    assert opened.config.backbone.max_position_embeddings == 512
    assert (opened.model.head.scale == 1.0) is untied
    given = inputs(pad_id=0, segments=0) | decoder_inputs(pad_id=0)
    with torch.no_grad():
        torch.testing.assert_close(opened.model(**given), theirs(**given).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kept", ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"])
def test_tied_words_may_have_any_of_their_names(kept: str, tmp_path: Path) -> None:
    theirs = saved(tmp_path, "T5ForConditionalGeneration", T5)
    weights = load_file(tmp_path / "model.safetensors")
    weights[kept] = weights.pop("shared.weight")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    opened = open_huggingface(tmp_path)
    assert opened.mapped[kept] == ("backbone.encoder.embeddings.words.weight",)
    words = opened.stored.model.backbone.embeddings.words.weight
    torch.testing.assert_close(words, theirs.shared.weight)


def test_the_encoder_of_an_encoder_decoder_model(tmp_path: Path) -> None:
    theirs = saved(tmp_path, "T5ForConditionalGeneration", T5, architectures=["T5EncoderModel"])
    untie(tmp_path)
    opened = open_huggingface(tmp_path)
    reasons = {left.name.split(".")[0]: left.reason for left in opened.unused_tensors}
    assert reasons.keys() == {"decoder", "lm_head"}
    assert "decoder" in reasons["decoder"]
    assert "head" in reasons["lm_head"]
    given = inputs(pad_id=0, segments=0)
    keep = given["attention_mask"].bool()
    with torch.no_grad():
        expected = theirs.encoder(**given).last_hidden_state
        found = opened.stored.model(**given)
    torch.testing.assert_close(found[keep], expected[keep], atol=1e-5, rtol=1e-5)


def test_a_t5_in_bfloat16_is_theirs_but_for_rounding(tmp_path: Path) -> None:
    theirs = saved(tmp_path, "T5ForConditionalGeneration", T5)
    ours = open_huggingface(tmp_path).stored.model
    given = inputs(pad_id=0, segments=0) | decoder_inputs(pad_id=0)
    keep = given["decoder_attention_mask"].bool()
    with torch.no_grad():
        exact = theirs(**given).logits[keep]
        rounded = theirs.bfloat16()(**given).logits[keep].float()
        found = ours.bfloat16()(**given)[keep].float()
    assert (found - exact).norm() < 1.1 * (rounded - exact).norm()


def written(backbone: dict[str, Any], head: dict[str, Any] | None) -> ModelConfig:
    """A config of ours with the vocabulary of `bert_tokenizer`."""
    config = ModelConfig.model_validate({"backbone": backbone, "head": head})
    tokenizer = bert_tokenizer()
    tokens = config.backbone.with_tokens(tokenizer.vocab_size, tokenizer.pad_id)
    return config.model_copy(update={"backbone": tokens})


@pytest.mark.parametrize("gated", [False, True])
def test_a_model_of_ours_is_a_t5(gated: bool, tmp_path: Path) -> None:
    gates = {"gated_feed_forward": gated, "hidden_act": "gelu_new" if gated else "relu"}
    config = written({"preset": "t5-tiny", "encoder": gates, "decoder": gates}, {"kind": "causal_lm"})
    report = check_export(
        tmp_path / "hf", config.build().eval(), config, "T5ForConditionalGeneration", tokenizer=bert_tokenizer()
    )
    assert len(report.notes) == 1
    assert "dropout_rate" in report.notes[0]


SCALED = {"scale_attn_weights": True, "scale_embedding": True}


@pytest.mark.parametrize(
    ("scales", "head", "name"),
    [
        (SCALED, {"kind": "causal_lm"}, "T5ForConditionalGeneration"),
        (SCALED, {"kind": "causal_lm", "tie_word_embeddings": False}, "T5ForConditionalGeneration"),
        (SCALED | {"scale_embedding": False}, {"kind": "causal_lm"}, "T5ForConditionalGeneration"),
        (SCALED | {"scale_attn_weights": False}, {"kind": "causal_lm"}, "T5ForConditionalGeneration"),
        (SCALED, None, "T5Model"),
    ],
)
def test_our_encoder_decoder_is_a_t5_with_its_scales_folded(
    scales: dict[str, bool], head: dict[str, Any] | None, name: str, tmp_path: Path
) -> None:
    config = written({"preset": "spun-encoder-decoder-tiny", "encoder": scales, "decoder": scales}, head)
    model = config.build().eval()
    for parameter in model.parameters():  # output projections start at zero
        torch.nn.init.normal_(parameter, std=0.1)
    assert check_export(tmp_path / "hf", model, config, name, tokenizer=bert_tokenizer()).notes == ()


@pytest.mark.parametrize(
    ("decoder", "head", "words"),
    [
        ({"scale_embedding": False}, {"kind": "causal_lm"}, "scale_embedding"),
        ({}, {"kind": "causal_lm", "scaled": True}, "scale_embedding"),
        ({"attention": {"kind": "full"}, "neighbour_heads": 0}, {"kind": "causal_lm"}, "relative_bias"),
    ],
)
def test_scales_that_t5_cannot_have_are_named(
    decoder: dict[str, Any], head: dict[str, Any], words: str, tmp_path: Path
) -> None:
    config = written({"preset": "spun-encoder-decoder-tiny", "decoder": decoder}, head)
    report = export_huggingface(tmp_path / "hf", ModelBundle(config.build(), config, bert_tokenizer()))
    assert report.folder is None
    assert words in report.notes[0]
