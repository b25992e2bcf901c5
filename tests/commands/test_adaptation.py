"""Continued pretraining from a checkpoint: heads, generators, new tokens, length, attention, depth, resume."""

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands_world import TINY, World, assert_refused, run
from tokenizers import Tokenizer as Engine

import homespun
from homespun.choices import TokenizerKind
from homespun.commands import pretrain as job
from homespun.commands.adaptation import open_start
from homespun.commands.adaptation_metrics import _tokens_per_word
from homespun.data.corpus import Corpus
from homespun.data.corpus_build import build_corpus
from homespun.models.bundle import save_model, weights_of
from homespun.models.config import ModelConfig
from homespun.objectives.electra import Electra
from homespun.objectives.mlm import MaskedLM
from homespun.text.sources import Document
from homespun.text.tokenizer import Tokenizer
from homespun.text.vocabulary_extension import extend, find_added_tokens
from homespun.training.trainer import Trainer

STEPS = ("train.budget.steps=3", "train.batch_size=7", "data.max_length=32")
SMALL = (*TINY, "model.hidden_dropout_prob=0", *STEPS)
WINDOW = "model.attention={kind: sparse, patterns: [{kind: window, radius: 5}], global_tokens: {projections: true}}"


@pytest.fixture(scope="module")
def masked(world: World) -> Path:
    sizes = ("model.num_attention_heads=4", "model.max_position_embeddings=32", "model.num_hidden_layers=2")
    out = world.runs / "masked"
    world.run("pretrain", "roberta-mini", f"data.corpus={world.corpus}", *SMALL, *sizes, "--out", out)
    return out


def continuing(world: World, source: Path, out: Path, *words: str | Path, recipe: str = "roberta-mini") -> list[Any]:
    corpus = f"data.corpus={world.corpus}"  # of several, the last counts
    return ["pretrain", recipe, corpus, *STEPS, *words, "--from", source, "--out", out]


def go_on(*arguments: Any, **options: Any) -> dict[str, Any]:
    return run(*continuing(*arguments, **options))


def test_the_masked_lm_head_goes_on_too(world: World, masked: Path, tmp_path: Path) -> None:
    before = json.loads((masked / "result.json").read_text())
    after = go_on(world, masked, tmp_path / "run")
    # the same rows under the same masks: what the checkpoint ended with is where this begins
    assert after["adaptation"]["loss"] == pytest.approx(before["validation"]["loss"], abs=1e-6)
    assert after["validation"]["loss"] != pytest.approx(after["adaptation"]["loss"], abs=1e-6)
    assert after["adaptation"]["tensors"]["fresh"] == []
    assert after["adaptation"]["tensors"]["changed"] == {}
    assert after["adaptation"]["moved"] == []
    assert after["adaptation"]["vocabulary"] == {"before": 400, "after": 400, "new_words": 0}


def test_extra_heads_are_initialized(world: World, tmp_path: Path) -> None:
    tokenizer = Corpus.open(world.corpus).tokenizer
    sizes = {"vocab_size": 400, "hidden_size": 22, "num_attention_heads": 2, "num_hidden_layers": 1}
    config = ModelConfig.model_validate({"backbone": sizes, "head": {"kind": "masked_lm"}})
    save_model(tmp_path, config.build(), config, tokenizer)
    begin = open_start(str(tmp_path), tokenizer, corpus="corpus")
    built = MaskedLM().build(begin.config, tokenizer)
    assert begin.fill(built, *built.export_model()).initialized == ()
    paired = MaskedLM(next_sentence=True).build(begin.config, tokenizer)
    fresh = begin.fill(paired, *paired.export_model()).initialized
    assert fresh
    assert all(name.startswith("next_sentence.") for name in fresh)


@pytest.mark.slow
def test_the_causal_head_goes_on_with_its_own_words(world: World, tmp_path: Path) -> None:
    words = (f"data.corpus={world.corpus}", *SMALL, "model.embedding_size=32", "model.num_hidden_layers=2")
    before = world.run("pretrain", "causal-mini", *words, "--out", tmp_path / "base")
    after = go_on(world, tmp_path / "base", tmp_path / "tied", recipe="causal-mini")
    assert after["adaptation"]["loss"] == pytest.approx(before["validation"]["loss"], abs=1e-6)
    stored = homespun.hf.open.open_model(tmp_path / "base")
    tree = stored.config.model_dump()
    tree["head"]["tie_word_embeddings"] = False
    config = ModelConfig.model_validate(tree)
    save_model(tmp_path / "untied", config.build(), config, stored.tokenizer)
    go_on(world, tmp_path / "untied", tmp_path / "own", recipe="causal-mini")
    assert "head.words.weight" in weights_of(homespun.load(tmp_path / "own"))


@pytest.mark.slow
def test_a_discriminator_goes_on_with_a_fresh_generator_or_a_given_one(world: World, tmp_path: Path) -> None:
    tokenizer, folder = Corpus.open(world.corpus).tokenizer, tmp_path / "generator"
    alone = go_on(world, world.base, tmp_path / "fresh", recipe="electra-tiny")
    drawn = alone["adaptation"]["tensors"]["fresh"]
    assert {"generator.head.transform.weight", "generator.backbone.projection.weight"} < set(drawn)
    assert all(name.startswith("generator.") and ".embeddings." not in name for name in drawn)
    objective = Electra()
    begin = open_start(str(world.base), tokenizer, corpus="corpus")
    head = objective.build(begin.config, tokenizer).generator_config.head
    small = ModelConfig(backbone=objective.generator(begin.backbone), head=head)
    torch.manual_seed(3)
    save_model(folder, small.build(), small, tokenizer)
    begin = open_start(str(world.base), tokenizer, corpus="corpus", generator=str(folder))
    built = objective.build(begin.config, tokenizer)
    origins = begin.fill(built, *built.export_model())
    assert origins.initialized == ()
    assert set(drawn) <= set(origins.copied)
    given = weights_of(homespun.load(folder))
    taken, kept = built.generator.state_dict(), homespun.load(world.base).state_dict()
    for name, tensor in taken.items():
        shared = name.startswith("backbone.embeddings.") or name == "head.weight"
        other = kept["backbone.embeddings.words.weight" if name == "head.weight" else name] if shared else given[name]
        assert torch.equal(tensor, other), name
    assert torch.equal(built.discriminator.head.dense.weight, kept["head.dense.weight"])
    words = ("--generator", folder)
    wrong = continuing(
        world, world.base, tmp_path / "no", "objective.generator_size=0.5", *words, recipe="electra-tiny"
    )
    assert_refused(r"hidden_size=8 .*objective\.generator_size", *wrong)
    output = go_on(world, world.base, tmp_path / "yes", *words, recipe="electra-tiny")
    assert output["adaptation"]["losses"]["generator"] != alone["adaptation"]["losses"]["generator"]


def test_new_words_from_the_tokenizer_to_the_report(world: World, masked: Path, tmp_path: Path) -> None:
    read = ("--input", str(world.test), "--text-field", "sentence")
    output = world.run("tokenizer", "extend", masked, *read, "--add", "5", "--out", tmp_path / "tokenizer")
    assert output["vocab_size"] == 405
    assert len(output["words"]) == 5
    corpus = tmp_path / "corpus"
    world.run("corpus", "build", *read, "--tokenizer", tmp_path / "tokenizer", "--out", corpus)
    result = go_on(world, masked, tmp_path / "run", f"data.corpus={corpus}")
    adaptation = result["adaptation"]
    assert adaptation["vocabulary"] == {"before": 400, "after": 405, "new_words": 5}
    words, opened = adaptation["tokens_per_word"], Corpus.open(corpus)
    assert words["after"] < words["before"]
    with world.test.open(encoding="utf-8", newline="") as stream:
        count = sum(len(row["sentence"].split()) for row in csv.DictReader(stream))
    assert opened.num_words == count
    assert words["after"] == pytest.approx(opened.num_tokens / count)
    assert round((words["before"] - words["after"]) * count) == output["tokens_saved"]
    assert list(adaptation["tensors"]["changed"]) == ["backbone.embeddings.words.weight", "head.bias"]
    page = (tmp_path / "run" / "report" / "report.md").read_text()
    for words_ in ("| vocabulary | 400 | 405 |", "tokens per word", "New words: 5", "5 new rows"):
        assert words_ in page
    assert homespun.load(tmp_path / "run").backbone.embeddings.words.num_embeddings == 405


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_tokens_per_word_are_those_of_the_text(tmp_path: Path, kind: TokenizerKind) -> None:
    known = "the cat sat on the mat, and the dog trusted trees."
    before = Tokenizer.train([known] * 5, kind=kind, vocab_size={"wordpiece": 53, "bpe": 271}[kind])
    texts = [
        f"{known} (it's a so-called mattress; a mattress!) #cat @dog 5.0%",
        "the mattress\n \u65e5\u672c\u3002 on",
    ] * 3
    more = extend(before, texts, 1)[0]
    corpus = build_corpus([Document(text) for text in texts], more, tmp_path / "corpus")
    new = find_added_tokens(before, more)
    assert new is not None
    count = sum(len(text.split()) for text in texts)
    expected = [sum(map(len, one.encode_batch(texts))) / count for one in (before, more)]
    assert _tokens_per_word(corpus, new) == pytest.approx(dict(zip(("before", "after"), expected, strict=True)))
    assert expected[0] > expected[1]
    same = find_added_tokens(more, more)
    assert same is not None
    assert _tokens_per_word(corpus, same) == {"before": expected[1], "after": expected[1]}


def test_no_tokens_per_word_without_words(world: World, masked: Path, tmp_path: Path) -> None:
    shutil.copytree(world.corpus, tmp_path / "corpus")
    description = json.loads((tmp_path / "corpus" / "corpus.json").read_text())
    description["words"] = 0
    (tmp_path / "corpus" / "corpus.json").write_text(json.dumps(description))
    result = go_on(world, masked, tmp_path / "run", f"data.corpus={tmp_path / 'corpus'}")
    assert result["adaptation"]["tokens_per_word"] is None
    assert "tokens per word" not in (tmp_path / "run" / "report" / "report.md").read_text()


@pytest.mark.slow
def test_a_token_that_stood_for_nothing_begins_as_the_mean_of_all(world: World, tmp_path: Path) -> None:
    read = ("--input", world.test, "--text-field", "sentence")
    made = ("tokenizer", "train", *read, "--kind", "wordpiece", "--vocab-size", "97")
    world.run(*made, "--out", tmp_path / "tokenizer")
    world.run("corpus", "build", *read, "--tokenizer", tmp_path / "tokenizer", "--out", tmp_path / "corpus")
    before = Tokenizer.load(tmp_path / "tokenizer")
    engine = Engine.from_str(before.content)
    engine.add_tokens(["\n"])
    Tokenizer(engine.to_str(), before.roles).save(tmp_path / "more")
    world.run("corpus", "build", *read, "--tokenizer", tmp_path / "more", "--out", tmp_path / "new")
    small = (f"data.corpus={tmp_path / 'corpus'}", *SMALL, "model.num_attention_heads=4")
    world.run("pretrain", "roberta-mini", *small, "--out", tmp_path / "base")
    output = go_on(world, tmp_path / "base", tmp_path / "run", f"data.corpus={tmp_path / 'new'}")
    assert np.isfinite(output["adaptation"]["loss"])
    how = output["adaptation"]["tensors"]["changed"]["backbone.embeddings.words.weight"]
    assert re.search("1 new row, .* pieces; 1 .* all rows", how)


@pytest.mark.slow
def test_longer_sparser_and_deeper_at_once(world: World, masked: Path, tmp_path: Path) -> None:
    changes = ("model.max_position_embeddings=61", WINDOW, "model.num_hidden_layers=4", "data.max_length=61")
    result = go_on(world, masked, tmp_path / "run", *changes)
    adaptation = result["adaptation"]
    assert adaptation["max_position_embeddings"] == {"before": 32, "after": 61}
    assert adaptation["attention"] == {"before": "full", "after": "sparse"}
    assert adaptation["layers"] == [0, 0, 1, 1]
    own, new = adaptation["moved"]
    assert (own["tokens"], own["pieces"]) == (32, 1)
    assert (new["tokens"], new["pieces"]) == (61, 2)
    for row in (own, new):
        assert -1 <= row["cosine"] < 1
        assert row["relative_distance"] > 0
    page = (tmp_path / "run" / "report" / "report.md").read_text()
    for words in ("| layers | 2 | 4 |", "Change of the hidden states", "repeated to 61", r"query\_global"):
        assert words in page
    again = go_on(world, tmp_path / "run", tmp_path / "again", "model.attention.patterns=[{kind: window, radius: 2}]")
    assert again["adaptation"]["attention"] == {"before": "sparse", "after": "sparse"}
    assert homespun.hf.open.open_model(tmp_path / "again").config.backbone.attention.global_tokens.projections


def test_another_depth_has_no_second_way_and_no_model_of_the_recipe(world: World, masked: Path, tmp_path: Path) -> None:
    result = go_on(world, masked, tmp_path / "run", "model.num_hidden_layers=1")
    assert result["adaptation"]["num_hidden_layers"] == {"before": 2, "after": 1}
    assert result["adaptation"]["layers"] == [0]
    assert len(homespun.load(tmp_path / "run").backbone.layers) == 1


def test_a_longer_run_that_was_killed_resumes_to_the_same_weights(
    world: World, masked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("model.max_position_embeddings=61", "data.max_length=61", "train.budget.steps=7")
    uninterrupted = go_on(world, masked, tmp_path / "whole", *words)
    own, new = uninterrupted["adaptation"]["moved"]
    assert own["cosine"] == pytest.approx(1, abs=1e-6)  # nothing moves at the old length
    assert own["relative_distance"] == pytest.approx(0, abs=1e-5)
    assert new["relative_distance"] > 1e-3

    def cut(trainer: Trainer, *rest: Any) -> None:
        for step in trainer:
            if step.number == 3:
                raise InterruptedError

    with monkeypatch.context() as patched, pytest.raises(InterruptedError):
        patched.setattr(job, "watch", cut)
        go_on(world, masked, tmp_path / "cut", *words)
    measured = (tmp_path / "cut" / "adaptation.json").read_bytes()
    resumed = go_on(world, masked, tmp_path / "cut", *words, "--resume")
    assert resumed["validation"] == uninterrupted["validation"]
    assert resumed["adaptation"] == uninterrupted["adaptation"]
    assert (tmp_path / "cut" / "adaptation.json").read_bytes() == measured
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("cut", "whole")]
    assert weights[0] == weights[1]


MISTAKES = {
    "another width": ("model.hidden_size=64", r"model\.hidden_size cannot change"),
    "no layers": ("model.num_hidden_layers=0", "num_hidden_layers.* 1"),
    "rows longer than the model": ("data.max_length=64", "max_position_embeddings=32"),
    "cut below its rows": ("model.max_position_embeddings=17", "max_position_embeddings=17"),
    "a generator for nothing": ("--generator", "--generator "),
    "no mapping": ("model=3", "not a mapping"),
    "another preset": ("model.preset=bert-base", r"model\.preset cannot change"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_line(world: World, masked: Path, tmp_path: Path, mistake: str) -> None:
    word, message = MISTAKES[mistake]
    words = (word, masked) if word == "--generator" else (word,)
    assert_refused(message, *continuing(world, masked, tmp_path / "run", *words))
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_that_is_no_extension_and_a_model_with_a_decoder(
    world: World, masked: Path, tmp_path: Path
) -> None:
    read = ("--input", world.test, "--text-field", "sentence")
    world.run("tokenizer", "train", *read, "--vocab-size", "401", "--out", tmp_path / "tokenizer")
    world.run("corpus", "build", *read, "--tokenizer", tmp_path / "tokenizer", "--out", tmp_path / "corpus")
    assert_refused(
        "tokenizer extend", *continuing(world, masked, tmp_path / "run", f"data.corpus={tmp_path / 'corpus'}")
    )
    tokenizer = Corpus.open(world.corpus).tokenizer
    sizes = {"vocab_size": 400, "hidden_size": 22, "num_attention_heads": 2, "num_hidden_layers": 1}
    config = ModelConfig.model_validate({"backbone": {"kind": "encoder_decoder", "encoder": sizes}})
    save_model(tmp_path / "two", config.build(), config, tokenizer)
    assert_refused("one stack", *continuing(world, tmp_path / "two", tmp_path / "run"))
    words = ("pretrain", "roberta-mini", f"data.corpus={world.corpus}", *STEPS, "--out", tmp_path / "run")
    assert_refused("need --from", *words, "--generator", masked)


def test_a_tokenizer_is_extended_wherever_it_lies(world: World, masked: Path, tmp_path: Path) -> None:
    read = ("--input", world.test, "--text-field", "sentence", "--add", "2")
    shutil.copytree(world.tokenizer, tmp_path / "tokenizer")
    sources = (masked, masked / "model", tmp_path / "tokenizer", tmp_path / "tokenizer" / "tokenizer.json")
    output = [world.run("tokenizer", "extend", p, *read, "--out", tmp_path / str(n)) for n, p in enumerate(sources)]
    assert len({one["fingerprint"] for one in output}) == 1
    assert {one["vocab_size"] for one in output} == {402}
    assert_refused(r"tokenizer.*--out", "tokenizer", "extend", masked, *read, "--out", masked)
