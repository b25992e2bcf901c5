"""Parity with transformers of the families with a decoder: padding on both sides, short sources and long ones."""

import copy
from typing import Any

import pytest
import torch
from hf_pairs import Pair, Parity, check_cache
from hf_peers import DECODER, LENGTHS, bert_tokenizer, chosen, decoder_inputs, inputs, their_model

from homespun.hf.open import open_huggingface

transformers = pytest.importorskip("transformers")

SPECIAL: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 3, "eos_token_id": 5, "decoder_start_token_id": 6}
BART = DECODER | SPECIAL | {"forced_eos_token_id": 5}
LED = (
    DECODER
    | SPECIAL
    | {"max_encoder_position_embeddings": 29, "max_decoder_position_embeddings": 23}
    | {"attention_window": 4}
)
PEGASUS = DECODER | SPECIAL | {"hidden_size": 22, "decoder_attention_heads": 2, "scale_embedding": True}
BIGBIRD = DECODER | SPECIAL | {"hidden_act": "gelu_new"}
BLOCKS: dict[str, Any] = {"block_size": 4, "num_random_blocks": 2, "max_position_embeddings": 137}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": ("BartModel", BART),
    "bart-relu": ("BartModel", BART | {"hidden_act": "relu", "pad_token_id": 1, "decoder_layers": 3}),
    "bart-lm": ("BartForConditionalGeneration", BART | {"scale_embedding": True}),
    "bart-lm-long": (
        "BartForConditionalGeneration",
        BART | {"max_position_embeddings": 137, "forced_eos_token_id": None},
    ),
    "bart-classification": ("BartForSequenceClassification", BART | {"classifier_dropout": 0.0, "num_labels": 5}),
    "bart-answers": ("BartForQuestionAnswering", BART),
    "led-answers-global": ("LEDForQuestionAnswering", LED),
    "bigbird_pegasus-classification-random": (
        "BigBirdPegasusForSequenceClassification",
        BIGBIRD | BLOCKS | {"num_labels": 3},
    ),
    "bigbird_pegasus-answers-random": ("BigBirdPegasusForQuestionAnswering", BIGBIRD | BLOCKS),
    "led": ("LEDModel", LED),
    "led-lm-global": ("LEDForConditionalGeneration", LED | {"attention_window": [12, 4, 6]}),
    "led-lm-global-long": (
        "LEDForConditionalGeneration",
        LED | {"max_encoder_position_embeddings": 151, "attention_window": [8, 16, 4], "hidden_act": "relu"},
    ),
    "pegasus": ("PegasusModel", PEGASUS | {"max_position_embeddings": 137}),
    "pegasus-lm-long": ("PegasusForConditionalGeneration", PEGASUS | {"max_position_embeddings": 137}),
    "bigbird_pegasus-full": ("BigBirdPegasusModel", BIGBIRD | {"attention_type": "original_full", "use_bias": True}),
    "bigbird_pegasus-short": ("BigBirdPegasusForConditionalGeneration", BIGBIRD | {"block_size": 5}),
    "bigbird_pegasus-random": ("BigBirdPegasusModel", BIGBIRD | BLOCKS | {"use_bias": True, "hidden_act": "relu"}),
    "bigbird_pegasus-lm-random": ("BigBirdPegasusForConditionalGeneration", BIGBIRD | BLOCKS),
}
# classes whose decoder reads what the encoder reads, if it is given nothing else
OVER_TEXTS = ("ForSequenceClassification", "ForQuestionAnswering")
# as long, of the same number of blocks of 4
SAME_BLOCKS = (131, 129, 130)
# beyond what a small window or a few blocks reach
LONG = (131, 23, 87)


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    name, settings = CASES[request.param]
    folder = tmp_path_factory.mktemp("theirs")
    cls = getattr(transformers, name)
    theirs = their_model(cls, **settings)
    theirs.save_pretrained(folder)
    tokenizer = bert_tokenizer()
    tokenizer.save(folder)
    lengths = LONG if "long" in request.param else SAME_BLOCKS if "random" in request.param else LENGTHS
    pad = theirs.config.pad_token_id
    given = inputs(pad_id=pad, segments=0, lengths=lengths)
    if not name.endswith(OVER_TEXTS):
        given |= decoder_inputs(pad_id=pad)
    elif "classification" in request.param:  # theirs looks for this token, of which each text has one
        given["input_ids"][range(len(lengths)), [length - 1 for length in lengths]] = theirs.config.eos_token_id
    if "global" in request.param:
        given["global_attention_mask"] = chosen(given)
    pair = Pair(cls, theirs, open_huggingface(folder), folder, tokenizer, lengths, given)
    if "random" in request.param:
        pair.share_random_blocks()
    return pair


class TestParity(Parity):
    """Every case of `pair`."""


def test_one_text_gives_the_outputs_of_the_batch(pair: Pair) -> None:
    # in float64, as products of other shapes round otherwise
    model = copy.deepcopy(pair.ours.stored.model).double().eval()
    given = pair.inputs
    with torch.no_grad():
        together = pair.their_output(copy.deepcopy(pair.theirs.eval()).double())
        for row in range(len(pair.lengths)):
            alone = {}
            for side in {"", "decoder_"} if "decoder_input_ids" in given else {""}:
                length = int(given[f"{side}attention_mask"][row].sum())
                alone[f"{side}input_ids"] = given[f"{side}input_ids"][row : row + 1, :length]
            if "global_attention_mask" in given:
                length = alone["input_ids"].shape[1]
                alone["global_attention_mask"] = given["global_attention_mask"][row : row + 1, :length]
            found = model(**alone)[0]
            torch.testing.assert_close(found, together[row][: len(found)], atol=1e-5, rtol=1e-5)


def test_token_by_token_from_a_cache_is_theirs(pair: Pair) -> None:
    if "decoder_input_ids" in pair.inputs:  # else it generates nothing
        check_cache(pair)


def test_named_tokens_are_carried_both_ways(pair: Pair) -> None:
    backbone = pair.ours.stored.config.backbone.model_dump()
    for name in (
        "decoder_start_token_id",
        "bos_token_id",
        "eos_token_id",
        "forced_bos_token_id",
        "forced_eos_token_id",
    ):
        assert backbone[name] == getattr(pair.theirs.config, name, None)
