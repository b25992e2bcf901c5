"""Answers are scored by their likelihood after a prompt: as one full pass over each would, alone or in a batch."""

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy.special import softmax

from homespun.errors import UserError
from homespun.inference.few_shot import (
    Prompts,
    PromptTemplate,
    calibrate_scores,
    generate_answers,
    match_answers,
    normalize_by_length,
    score_answers,
)
from homespun.models.config import ModelConfig
from homespun.models.model import Model
from homespun.text.tokenizer import Tokenizer

TEXTS = ["a fine film", "dull", "what a long and tedious evening that was"]
ANSWERS = ["good", "bad", "good enough", "terrible"]
EXAMPLES = [("I loved it", "good"), ("never again", "bad")]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([*TEXTS, "good good bad bad Answer: Answer:"] * 3, kind="bpe", vocab_size=283)


def causal(tokenizer: Tokenizer, **fields: Any) -> Model:
    return built(tokenizer, {"preset": "gpt2-tiny", "num_attention_heads": 4, "hidden_size": 28} | fields)


def built(tokenizer: Tokenizer, backbone: dict[str, Any], head: str = "causal_lm") -> Model:
    torch.manual_seed(3)
    sizes = {"vocab_size": tokenizer.vocab_size, "initializer_range": 0.3}
    tree = backbone | ({} if backbone.get("kind") == "encoder_decoder" else sizes)
    config = ModelConfig.model_validate({"backbone": tree, "head": {"kind": head}})
    return config.build().double().eval()


def pair(tokenizer: Tokenizer) -> Model:
    stack = {"vocab_size": tokenizer.vocab_size, "hidden_size": 28, "num_hidden_layers": 2, "initializer_range": 0.3}
    return built(tokenizer, {"kind": "encoder_decoder", "encoder": stack})


HASHED = {"kind": "lsh", "chunk_length": 512, "num_buckets": 2}
MODELS = {
    "full": lambda tokenizer: causal(tokenizer),
    "banded and dense": lambda tokenizer: causal(tokenizer, preset="gpt3-tiny"),
    "post-norm": lambda tokenizer: causal(tokenizer, preset="gpt-tiny"),
    "without a cache": lambda tokenizer: causal(tokenizer, attention=HASHED),
    "a causal BERT": lambda tokenizer: built(tokenizer, {"preset": "bert-tiny", "causal": True}, "masked_lm"),
    "encoder and decoder": pair,
}


def prompts(tokenizer: Tokenizer, **fields: Any) -> Prompts:
    given: dict[str, Any] = {"examples": EXAMPLES, "texts": TEXTS, "answers": ANSWERS} | fields
    return Prompts.of(PromptTemplate(instruction="Is it good?"), tokenizer, **given)


def in_full(model: Model, asked: Prompts, tokenizer: Tokenizer, question: int, answer: int) -> float:
    """The log-probability of one answer, by one pass over everything."""
    prompt, output = np.concatenate([asked.before, asked.questions[question]]), asked.answers[answer]
    with torch.no_grad():
        if model.backbone.causal:
            ids = torch.from_numpy(np.concatenate([prompt, output]))[None]
            table = model(ids)[0, len(prompt) - 1 : -1].log_softmax(-1)
        else:
            source = torch.from_numpy(np.concatenate([prompt, [tokenizer.sep_id]]))[None]
            read = torch.from_numpy(np.concatenate([[0], output[:-1]]))[None]
            table = model(source, decoder_input_ids=read)[0].log_softmax(-1)
    return float(table[torch.arange(len(output)), torch.from_numpy(output)].sum())


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_the_log_likelihoods_of_a_full_pass(tokenizer: Tokenizer, name: str) -> None:
    model = MODELS[name](tokenizer)
    asked = prompts(tokenizer)
    assert len({len(ids) for ids in asked.answers}) > 2
    scores = score_answers(model, asked, tokenizer, batch_size=2)
    expected = [[in_full(model, asked, tokenizer, q, a) for a in range(len(ANSWERS))] for q in range(len(TEXTS))]
    np.testing.assert_allclose(scores, expected, atol=1e-9)
    assert np.ptp(scores) > 1.0


@pytest.mark.parametrize("name", MODELS)
def test_a_text_alone_is_as_in_a_batch(tokenizer: Tokenizer, name: str) -> None:
    model = MODELS[name](tokenizer)
    together = score_answers(model, prompts(tokenizer), tokenizer)
    alone = [score_answers(model, prompts(tokenizer, texts=[text]), tokenizer)[0] for text in TEXTS]
    np.testing.assert_allclose(together, alone, atol=1e-9)
    again = score_answers(model, prompts(tokenizer), tokenizer)
    np.testing.assert_array_equal(together, again)  # what was read once is not changed by use


@pytest.mark.parametrize(("name", "seq2seq"), [("full", False), ("encoder and decoder", True)])
@pytest.mark.parametrize("answers", [["a"], ANSWERS])
def test_the_longest_prompt_is_what_a_model_just_reads(
    tokenizer: Tokenizer, name: str, seq2seq: bool, answers: list[str]
) -> None:
    asked = prompts(tokenizer, answers=answers)
    length = asked.max_length(seq2seq=seq2seq)
    for limit, read in ((length, True), (length - 1, False)):
        fields = {"vocab_size": tokenizer.vocab_size, "hidden_size": 28, "num_attention_heads": 4}
        stack = fields | {"max_position_embeddings": limit, "num_hidden_layers": 1, "initializer_range": 0.3}
        model = built(tokenizer, {"kind": "encoder_decoder", "encoder": stack} if seq2seq else stack | {"causal": True})
        if read:
            assert score_answers(model, asked, tokenizer).shape == (len(TEXTS), len(answers))
        else:
            with pytest.raises(UserError, match="max_position_embeddings"):
                score_answers(model, asked, tokenizer)


@pytest.mark.parametrize("name", ["full", "encoder and decoder"])
def test_what_is_written_alone_is_as_in_a_batch(tokenizer: Tokenizer, name: str) -> None:
    model = MODELS[name](tokenizer)
    texts = generate_answers(model, prompts(tokenizer), tokenizer)
    assert len(texts) == len(TEXTS)
    assert texts == [generate_answers(model, prompts(tokenizer, texts=[text]), tokenizer)[0] for text in TEXTS]


def test_a_prompt_is_instruction_examples_and_question() -> None:
    template = PromptTemplate(instruction="Judge.", example="Text: {text}\nIt is {answer}!", separator="\n--\n")
    assert template.before([("a {answer}\n b", "bad"), ("c", "good")]) == (
        "Judge.\n--\nText: a {answer} b\nIt is bad!\n--\nText: c\nIt is good!\n--\n"
    )
    assert template.question("d  {text}") == "Text: d {text}\nIt is"
    assert template.answer("good") == " good"
    assert PromptTemplate(example="{text}={answer}").answer("good") == "good"
    assert PromptTemplate().before([]) == ""


@pytest.mark.parametrize("example", ["{text}", "{answer} {text}", "{text} {text} {answer}", ""])
def test_an_example_has_a_text_and_then_an_answer(example: str) -> None:
    with pytest.raises(ValidationError, match="once and then"):
        PromptTemplate(example=example)


def test_bad_prompts_are_one_line(tokenizer: Tokenizer) -> None:
    template = PromptTemplate(example="{text}{answer}")
    for text, answers, message in (("a", ["", "b"], "--answers"), ("", ["a", "b"], "no tokens")):
        with pytest.raises(UserError, match=message):
            Prompts.of(template, tokenizer, examples=[], texts=[text], answers=answers)


def test_a_model_that_does_not_write_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="language model"):
        score_answers(built(tokenizer, {"preset": "bert-tiny"}, "discriminator"), prompts(tokenizer), tokenizer)
    for head in ("causal_lm", "masked_lm"):
        with pytest.raises(UserError, match="bidirectional"):
            score_answers(built(tokenizer, {"preset": "bert-tiny"}, head), prompts(tokenizer), tokenizer)


def test_calibration_removes_the_prior_of_the_prompt() -> None:
    scores = np.log([[0.6, 0.2], [0.9, 0.05]])
    content_free = np.log([[0.5, 0.1], [0.7, 0.3]])  # shares of 5/6 and 7/10 for the first answer
    prior = (5 / 6 + 0.7) / 2
    expected = np.array([0.6 / prior, 0.2 / (1 - prior)])
    np.testing.assert_allclose(softmax(calibrate_scores(scores, content_free), axis=1)[0], expected / expected.sum())
    # a text that says nothing is then undecided
    np.testing.assert_allclose(softmax(calibrate_scores(scores[:1], scores[:1]), axis=1), [[0.5, 0.5]])


def test_scores_per_token() -> None:
    answers = [np.zeros(1), np.zeros(3)]
    np.testing.assert_allclose(normalize_by_length(np.array([[-1.0, -3.0]]), answers), [[-1.0, -1.0]])


def test_an_answer_is_recognised_by_its_beginning() -> None:
    output = ["Good enough, I think", "good\n\nmore", "terribly", "badly", ""]
    np.testing.assert_array_equal(match_answers(output, ANSWERS), [2, 0, -1, 1, -1])
