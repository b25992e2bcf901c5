"""Continuous batching: the text of each request is its text alone, whichever requests join and leave with it.

Rows of a batch differ from a single row by rounding, by how much depends on the machine: compared in float64.
"""

import random
import warnings
from contextlib import closing
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import homespun.inference.continuous
import homespun.models.generation.steps
from homespun.errors import UserError
from homespun.inference.continuous import ContinuousGenerator, GenerationRequest
from homespun.inference.generation import TextGenerator
from homespun.models.bundle import ModelBundle
from homespun.models.config import ModelConfig
from homespun.models.generation.steps import RaggedSteps, Writer
from homespun.text.tokenizer import Tokenizer

TEXTS = ["Small models spun from your own text, on your own machine.", "Größe, naïveté und 50 € – 日本語."] * 7
TOKENIZER = Tokenizer.train(TEXTS, kind="bpe", vocab_size=271)
SIZES: dict[str, Any] = {"vocab_size": TOKENIZER.vocab_size, "pad_token_id": TOKENIZER.pad_id, "type_vocab_size": 0}
SIZES |= {"hidden_size": 44, "num_attention_heads": 2, "intermediate_size": 23, "num_hidden_layers": 2}
SIZES |= {"max_position_embeddings": 67, "initializer_range": 0.5}
ROTARY: dict[str, Any] = {"positions": {"kind": "rotary"}, "residual": {"kind": "pre"}, "embedding_norm": False}
WINDOW: dict[str, Any] = {"kind": "sparse", "patterns": [{"kind": "window", "radius": 3}]}
BAND: dict[str, Any] = {"kind": "sparse", "patterns": [{"kind": "band", "width": 5}]}
SHARED: dict[str, dict[str, Any]] = {
    "gpt2": {"residual": {"kind": "pre"}, "embedding_norm": False, "hidden_act": "gelu_new"},
    "llama": ROTARY | {"norm": "rms_norm", "gated_feed_forward": True, "num_key_value_heads": 1},
    "qwen3": ROTARY | {"norm": "rms_norm", "qk_norm": True, "num_key_value_heads": 1, "hidden_act": "relu2"},
    "band": {"attention": {"kind": "alternating", "cycle": [{"kind": "full"}, BAND]}},
    "window": {"attention": WINDOW},
    "relative bias": {"attention": {"kind": "relative_bias"}, "positions": {"kind": "none"}},
    "disentangled": {"attention": {"kind": "disentangled"}, "positions": {"kind": "none"}},
    "performer": {"attention": {"kind": "performer", "num_features": 19}},
    "shared weights": {"num_hidden_groups": 1, "positions": {"kind": "sinusoidal"}},
    "lstm": {"kind": "recurrent", "cell": "lstm"},
}
SINGLE: dict[str, dict[str, Any]] = {
    "global token": {"attention": WINDOW | {"global_tokens": {"first": 1}}},
    "no cache": {"attention": {"kind": "lsh", "chunk_length": 3}},
    "encoder-decoder": {"kind": "encoder_decoder"},
}
ENDS = list(range(7, TOKENIZER.vocab_size, 8))  # tokens that end a text, so that many texts end early
every = pytest.mark.parametrize("name", [*SHARED, *SINGLE])


def build(name: str) -> ModelBundle:
    own = (SHARED | SINGLE)[name]
    backbone = SIZES | {"causal": True} | own
    if own.get("kind") == "encoder_decoder":
        backbone = {"kind": "encoder_decoder", "encoder": SIZES}
    if own.get("kind") == "recurrent":
        names = ("vocab_size", "pad_token_id", "hidden_size", "num_hidden_layers", "max_position_embeddings")
        backbone = {name: SIZES[name] for name in names} | own
    config = ModelConfig.model_validate({"backbone": backbone, "head": {"kind": "causal_lm"}})
    torch.manual_seed(5)
    return ModelBundle(config.build().eval(), config, TOKENIZER)


@pytest.fixture(autouse=True)
def _pack_small_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homespun.models.generation.steps, "_MIN_NUMBERS", 1)


def continuous(bundle: ModelBundle, **arguments: Any) -> ContinuousGenerator:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "LSH attention")
        return ContinuousGenerator(bundle, **arguments)


def alone(bundle: ModelBundle, prompt: str, stop: tuple[str, ...], arguments: Any) -> tuple[str, int]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "LSH attention")
        ((text,),) = TextGenerator(bundle, stop=stop).generate([prompt], **arguments)
    return text.text, text.tokens


@pytest.mark.parametrize("name", [*SHARED][:2])
def test_many_prompts_in_their_order(name: str) -> None:
    bundle = build(name)
    number = random.Random(4)
    prompts = ["on" * number.randint(1, 13) for _ in range(29)]
    with closing(continuous(bundle, max_rows=4)) as generator:
        arguments: Any = {"max_new_tokens": 9, "do_sample": True, "top_k": 3, "seed": 5}
        found = list(generator.generate(prompts, stop=("ow",), **arguments))
        assert [(one.text, one.tokens) for one in found] == [alone(bundle, p, ("ow",), arguments) for p in prompts]
        with pytest.raises(UserError, match=r"prompt 8: .* empty"):
            list(generator.generate(["on", ""], first=7))


@pytest.mark.parametrize("name", ["gpt2", "encoder-decoder"])
def test_texts_of_a_stream_that_ended_early_do_not_run_on(name: str) -> None:
    with closing(continuous(build(name), max_rows=2)) as generator:
        with pytest.raises(UserError, match="prompt 3"):
            list(generator.generate(["on", "your", ""], max_new_tokens=9))
        stream = generator.generate(["on"] * 9, max_new_tokens=9)
        next(stream)
        stream.close()  # type: ignore[attr-defined]
        assert len(list(generator.generate(["own", "text"], max_new_tokens=3))) == 2
        assert not generator.requests


@every
def test_texts_do_not_depend_on_the_requests_that_join_and_leave(name: str) -> None:
    bundle = build(name)
    bundle.model.double()
    number = random.Random(3)
    generator = continuous(bundle, max_rows=4)
    calls, texts, cancelled = {}, {}, set()
    rest = [one_call(number) for _ in range(23)]
    while rest or generator.requests:
        while rest and number.random() < 0.4:
            prompt, stop, arguments = rest.pop()
            request = generator.request(prompt, stop=stop, **arguments)
            calls[request], texts[request] = (prompt, stop, arguments), ""
            generator.add(request)
        if generator.requests and number.random() < 0.06:
            request = number.choice(generator.requests)
            texts[request] += request.end("cancelled")
            cancelled.add(request)
        for request, piece in generator.step():
            texts[request] += piece
    assert 0 < len(cancelled) < 10
    assert {"stop", "length"} <= {request.finish_reason for request in calls}
    for request, (prompt, stop, arguments) in calls.items():
        text, tokens = alone(bundle, prompt, stop, arguments)
        if request in cancelled:
            assert request.finish_reason == "cancelled"
            assert request.tokens < tokens
        else:
            assert (texts[request], request.tokens) == (text, tokens)


def one_call(number: random.Random) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    start = number.randrange(40)
    prompt = TEXTS[0][start : start + number.choice((1, 3, 9, 30))]
    arguments: dict[str, Any] = {"max_new_tokens": number.choice((1, 5, 13, 23)), "eos_token_id": ENDS}
    match number.randrange(5):
        case 0:
            arguments |= {"do_sample": True, "seed": number.randrange(99), "top_p": 0.9, "temperature": 1.3}
        case 1:
            arguments |= {"do_sample": True, "seed": number.randrange(99), "top_k": 11}
        case 2:
            arguments |= {"no_repeat_ngram_size": 2, "min_new_tokens": arguments["max_new_tokens"] // 2}
        case 3:
            arguments |= {"do_sample": True}
    stop = number.choice(((), (), ("e",), ("ow", "\n"))) if "do_sample" in arguments else ()
    return prompt or "on", stop, arguments


@pytest.mark.slow
@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
@pytest.mark.parametrize("name", SHARED)
def test_logits_are_those_of_each_text(name: str, data: st.DataObject) -> None:
    model = build(name).model.double()
    texts: list[torch.Tensor] = []
    steps = RaggedSteps(Writer(model.backbone, model.lm_head, steps=64))
    ids = torch.randint(7, TOKENIZER.vocab_size, (99,), generator=torch.Generator().manual_seed(1))

    def check(logits: torch.Tensor, rows: list[torch.Tensor]) -> None:
        for row, text in zip(logits, rows, strict=True):
            expected = model(text[None])[0, -1].float()  # as those of a step
            torch.testing.assert_close(row, expected, rtol=1e-6, atol=1e-6)

    with torch.no_grad():
        for _ in range(data.draw(st.integers(1, 6))):
            lengths = data.draw(st.lists(st.integers(1, 19), max_size=3))
            if lengths:  # join, read in two parts
                new = [ids[length : 2 * length] for length in lengths]
                longest, other = max(lengths), RaggedSteps(steps.writer)
                padded = torch.stack([torch.cat([ids.new_zeros(longest - len(text)), text]) for text in new])
                part = data.draw(st.integers(0, longest - 1))
                counts = torch.tensor(lengths)
                if part:
                    other.read(padded[:, :part], (counts - (longest - part)).clamp(min=0))
                hidden = other.read(padded[:, part:], counts)
                check(steps.writer.logits(hidden), new)
                steps.join(other)
                texts += new
            for _ in range(data.draw(st.integers(0, 4)) if texts else 0):
                tokens = ids[torch.arange(len(texts)) + data.draw(st.integers(0, 50))]
                texts = [torch.cat([text, token[None]]) for text, token in zip(texts, tokens, strict=True)]
                check(steps.advance(tokens), texts)
            for row in sorted(data.draw(st.sets(st.integers(0, 9), max_size=4)), reverse=True):
                if row < len(texts):
                    steps.drop(row)
                    texts[row] = texts[-1]
                    texts.pop()
    assert steps.cache.length == max(map(len, texts), default=steps.cache.length)


def test_a_long_prompt_is_read_in_parts_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homespun.inference.continuous, "_PROMPT_TOKENS", 8)
    bundle = build("gpt2")
    generator = continuous(bundle)
    prompts = {"Small": 30, TEXTS[0]: 5, "on your own": 5}
    requests = [generator.request(prompt, max_new_tokens=n, eos_token_id=None) for prompt, n in prompts.items()]
    assert requests[1].prompt_tokens > 3 * 8
    texts = dict.fromkeys(requests, "")
    generator.add(requests[0])
    texts.update(generator.step())
    generator.add(requests[1])
    generator.add(requests[2])
    started: dict[GenerationRequest, int] = {}
    while generator.requests:
        for request, piece in generator.step():
            texts[request] += piece
            started.setdefault(request, requests[0].tokens)
    assert started[requests[1]] >= 4  # tokens of the first text while the long prompt was read
    for request, prompt in zip(requests, prompts, strict=True):
        arguments = {"max_new_tokens": request.tokens, "eos_token_id": None}
        assert texts[request] == alone(bundle, prompt, (), arguments)[0]


def test_prompts_that_fail_or_are_cancelled_are_not_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homespun.inference.continuous, "_PROMPT_TOKENS", 8)
    bundle = build("gpt2")
    generator = continuous(bundle)
    generator.add(long := generator.request(TEXTS[0]))
    generator.step()
    long.end("cancelled")
    assert generator.step() == []
    assert not generator.requests
    generator.add(failing := generator.request(TEXTS[0]))
    generator.step()
    with monkeypatch.context() as patch:
        patch.setattr(bundle.model.backbone.layers[1], "forward", None)  # after the cache of the first layer
        with pytest.raises(TypeError):
            generator.step()
    failing.end("cancelled")
    generator.add(request := generator.request("Small", max_new_tokens=5))
    text = "".join(piece for _ in range(5) for _, piece in generator.step())
    assert (text, request.tokens) == alone(bundle, "Small", (), {"max_new_tokens": 5})


def test_refusals() -> None:
    bundle = build("gpt2")
    generator = continuous(bundle)
    for arguments in ({"num_beams": 2}, {"max_new_tokens": 999}, {"max_new_tokens": 0}, {"temperature": 2.0}):
        with pytest.raises(UserError):
            generator.request("Small", **arguments)
    with pytest.raises(UserError, match="empty"):
        generator.request("")
    with pytest.raises(UserError, match="stop string"):
        generator.request("Small", stop=[""])
    with pytest.raises(UserError, match="max_rows"):
        ContinuousGenerator(bundle, max_rows=0)
    encoder = ModelConfig.model_validate({"backbone": SIZES, "head": {"kind": "masked_lm"}})
    with pytest.raises(UserError, match="cannot generate"):
        ContinuousGenerator(ModelBundle(encoder.build(), encoder, TOKENIZER))
