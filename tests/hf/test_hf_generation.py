"""Token for token as `transformers.generate`, on small random models of every family that writes.

In float64 on both sides, whose scores are rounded to float32 on both: what is nearly as likely as another in float32 is
then told apart in the same way. (Theirs of ProphetNet does not work in float64, and is compared in float32.) What
follows the end of a text is not compared: it is padding here, and with beams the end token there, where the padding
token is 0.
"""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_peers import (
    DECODER,
    PROPHETNET,
    REFORMER,
    bert_tokenizer,
    chosen,
    edit_config,
    inputs,
    refused,
    save_random,
    their_model,
)
from torch import Tensor

from homespun.hf.open import open_huggingface

transformers = pytest.importorskip("transformers")

PAD, EOS = 0, 5
SPECIAL: dict[str, Any] = {"pad_token_id": PAD, "bos_token_id": 3, "eos_token_id": EOS, "decoder_start_token_id": 6}
BART = DECODER | SPECIAL | {"forced_eos_token_id": EOS}
LED = DECODER | SPECIAL | {"max_encoder_position_embeddings": 29, "max_decoder_position_embeddings": 29}
T5: dict[str, Any] = {"num_decoder_layers": 2, "d_kv": 5, "relative_attention_num_buckets": 8, "dropout_rate": 0.0}
GPT2: dict[str, Any] = {
    "pad_token_id": PAD,
    "bos_token_id": 3,
    "eos_token_id": EOS,
    "attn_pdrop": 0.0,
    "embd_pdrop": 0.0,
}
ROTARY: dict[str, Any] = {"hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2} | SPECIAL
NANOCHAT = ROTARY | {"final_logit_softcapping": None, "hidden_act": "relu2"}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "openai-gpt": ("OpenAIGPTLMHeadModel", GPT2),
    "llama": ("LlamaForCausalLM", ROTARY),
    "qwen3": ("Qwen3ForCausalLM", ROTARY | {"head_size": 6, "tie_word_embeddings": True}),
    "nanochat": ("NanoChatForCausalLM", NANOCHAT),
    "bert": ("BertLMHeadModel", SPECIAL | {"is_decoder": True}),
    "electra": ("ElectraForCausalLM", SPECIAL | {"is_decoder": True}),
    "reformer": (
        "ReformerModelWithLMHead",
        REFORMER | SPECIAL | {"attn_layers": ["local", "local"], "is_decoder": True},
    ),
    "bart": ("BartForConditionalGeneration", BART),
    "bart-unforced": ("BartForConditionalGeneration", BART | {"forced_eos_token_id": None, "scale_embedding": True}),
    "led": ("LEDForConditionalGeneration", LED | {"attention_window": 4}),
    "pegasus": (
        "PegasusForConditionalGeneration",
        DECODER | SPECIAL | {"hidden_size": 22, "decoder_attention_heads": 2},
    ),
    "bigbird_pegasus": (
        "BigBirdPegasusForConditionalGeneration",
        DECODER | SPECIAL | {"hidden_act": "gelu_new", "attention_type": "original_full"},
    ),
    "prophetnet": ("ProphetNetForConditionalGeneration", PROPHETNET),
    "t5": ("T5ForConditionalGeneration", T5 | SPECIAL | {"decoder_start_token_id": 0}),
    "t5-1.1": ("T5ForConditionalGeneration", T5 | SPECIAL | {"feed_forward_proj": "gated-gelu"}),
}
ALONE = ("gpt2", "openai-gpt", "llama", "qwen3", "nanochat", "reformer", "bert", "electra")
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"max_new_tokens": 9},
    "greedy-no-repeats": {"max_new_tokens": 9, "no_repeat_ngram_size": 2, "min_new_tokens": 5},
    "beams": {"max_new_tokens": 9, "num_beams": 4},
    "beams-0.4": {"max_new_tokens": 7, "num_beams": 4, "length_penalty": 0.4, "min_new_tokens": 2},
    "beams-1.2-early": {"max_new_tokens": 9, "num_beams": 4, "length_penalty": 1.2, "early_stopping": True},
    "beams-2-never": {"max_new_tokens": 9, "num_beams": 3, "length_penalty": 2.0, "early_stopping": "never"},
    "beams-5": {"max_new_tokens": 9, "num_beams": 4, "length_penalty": 5.0, "no_repeat_ngram_size": 3},
    "beams-0-all": {"max_new_tokens": 5, "num_beams": 4, "length_penalty": 0.0, "num_return_sequences": 3},
    "beams-no-repeats": {"max_new_tokens": 9, "num_beams": 2, "no_repeat_ngram_size": 1},
}


@pytest.fixture(params=MODELS)
def both(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Any, Any]:
    name, settings = MODELS[request.param]
    theirs = their_model(getattr(transformers, name), **settings)
    generator = torch.Generator().manual_seed(23)
    with torch.no_grad():
        # signs in the norms: else a word is likeliest to follow itself, where both ends have the same embeddings
        for name, parameter in theirs.named_parameters():
            if parameter.dim() == 1 and name.endswith("weight"):
                parameter *= torch.randint(2, parameter.shape, generator=generator) * 2 - 1
        theirs.get_output_embeddings().weight[EOS] += 0.1  # that texts end, some sooner than others
    theirs.save_pretrained(tmp_path)
    bert_tokenizer().save(tmp_path)
    ours, dtype = (
        open_huggingface(tmp_path).stored.model,
        torch.float32 if "prophet" in request.param else torch.float64,
    )
    return request.param, theirs.to(dtype), ours.to(dtype)


def prompts(name: str, vocab_size: int = 89) -> dict[str, Tensor]:
    """Three texts, padded on the right for an encoder, on the left before what goes on."""
    given = inputs(pad_id=PAD, segments=0, vocab_size=vocab_size, lengths=(13, 5, 9))
    if name in ALONE:
        keep = given["attention_mask"]
        order = keep.argsort(dim=1, stable=True)
        given = {key: tensor.gather(1, order) for key, tensor in given.items()}
    if name == "led":
        given["global_attention_mask"] = chosen(given)
    return given


def to_the_end(row: Tensor, start: int) -> list[int]:
    tokens = row[start:].tolist()
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


def test_every_token_is_theirs(both: tuple[str, Any, Any]) -> None:
    name, theirs, ours = both
    given = prompts(name)
    tokens: dict[str, Any] = {"pad_token_id": PAD, "eos_token_id": EOS}
    compared: set[int] = set()
    for setting, way in WAYS.items():
        # theirs attends to the padding of these, and counts it as a repetition: each text alone
        if name in ("openai-gpt", "reformer") or (name in ALONE and way.get("no_repeat_ngram_size") == 1):
            batches = [
                {key: tensor[row : row + 1, keep.bool()] for key, tensor in given.items()}
                for row, keep in enumerate(given["attention_mask"])
            ]
        else:
            batches = [given]
        for batch in batches:
            start = batch["input_ids"].shape[1] if name in ALONE else 1
            with torch.no_grad():
                expected = theirs.generate(**batch, **tokens, **way, do_sample=False)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "local attention")
                found = ours.generate(**batch, **({} if name not in ALONE else tokens), **way)
            assert len(found) == len(expected), setting
            for row, other in zip(found, expected, strict=True):
                assert to_the_end(row, start) == to_the_end(other, start), setting
                assert row[:start].tolist() == other[:start].tolist(), setting
                compared |= {*to_the_end(row, start)}
    assert len(compared) > 5, "the texts compared have too few different words"


def save_with_generation_config(folder: Path, name: str, settings: dict[str, Any], **generation: Any) -> Any:
    """A random model whose generation_config.json has other tokens than its config.json."""
    theirs = their_model(getattr(transformers, name), **settings)
    for key, value in generation.items():
        setattr(theirs.generation_config, key, value)
    theirs.save_pretrained(folder)
    bert_tokenizer().save(folder)
    return theirs.double()


@pytest.mark.parametrize(
    "generation",
    [
        {"forced_bos_token_id": 9, "forced_eos_token_id": 8},
        {"decoder_start_token_id": 11},
        {"eos_token_id": 17},
        {"eos_token_id": [*range(7, 97, 3)]},
    ],
    ids=lambda generation: next(iter(generation)),
)
def test_tokens_of_generation_config_are_theirs(generation: dict[str, Any], tmp_path: Path) -> None:
    theirs = save_with_generation_config(tmp_path, *MODELS["bart"], **generation)
    opened = open_huggingface(tmp_path)
    given = prompts("bart")
    with torch.no_grad():
        expected = theirs.generate(**given, do_sample=False, max_new_tokens=9)
    found = opened.stored.model.double().generate(**given, max_new_tokens=9)
    assert found.tolist() == expected.tolist()
    several = isinstance(generation.get("eos_token_id"), list)
    assert any("eos_token_id" in note for note in opened.notes) == several


def test_each_end_token_of_a_decoder_ends_a_text(tmp_path: Path) -> None:
    ends = [*range(7, 97, 2)]
    theirs = save_with_generation_config(tmp_path, *MODELS["llama"], eos_token_id=ends)
    given = prompts("llama")
    with torch.no_grad():
        expected = theirs.generate(**given, do_sample=False, max_new_tokens=13)
    found = open_huggingface(tmp_path).stored.model.double().generate(**given, max_new_tokens=13)
    assert expected.shape[1] < given["input_ids"].shape[1] + 13
    assert found.tolist() == expected.tolist()
    edit_config(tmp_path, eos_token_id=ends)
    (tmp_path / "generation_config.json").unlink()
    again = open_huggingface(tmp_path).stored.model.double().generate(**given, max_new_tokens=13)
    assert again.tolist() == expected.tolist()


@pytest.mark.parametrize("ends", [[], ["x"], [-1], [True]])
def test_end_tokens_that_are_no_token_ids(ends: list[Any], tmp_path: Path) -> None:
    folder = save_random(tmp_path / "hf", "GPT2LMHeadModel")
    edit_config(folder, eos_token_id=ends)
    assert "eos_token_id=" in refused(folder)
