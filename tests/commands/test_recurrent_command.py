"""Recurrent models by the same commands: pretrained, written with, fine-tuned, predicted with, aligned."""

from pathlib import Path

import pytest
from commands_world import World, assert_refused, write_lines

SMALL = ["model.hidden_size=32", "model.embedding_size=16", "model.num_hidden_layers=1"]
STEPS = ["train.budget.time=null", "train.budget.steps=3", "train.batch_size=8"]


@pytest.mark.slow
def test_a_language_model_is_trained_over_streams_and_writes(world: World, tmp_path: Path) -> None:
    words = ["pretrain", "lstm-mini", f"data.corpus={world.corpus}", "data.max_length=13", *SMALL, *STEPS]
    result = world.run(*words, "--out", tmp_path / "lm")
    assert result["export"]["architecture"] == "HomespunForCausalLM"
    assert "recurrent" in result["export"]["notes"][0]
    assert {"causal", "causal_accuracy"} <= set(result["validation"]["losses"])
    assert 0 < result["unigram_baseline"]["causal"] < result["validation"]["losses"]["causal"]  # of three steps
    prompts = write_lines(tmp_path / "prompts.jsonl", [{"text": "the market"}])
    asked = ["generate", tmp_path / "lm", "--input", prompts, "--out", tmp_path / "written.jsonl"]
    assert world.run(*asked, "--max-new-tokens", "5")["rows"] == 1

    kept = [word for word in words[1:] if word not in SMALL]
    further = world.run("pretrain", *kept, "--from", tmp_path / "lm", "--out", tmp_path / "on")
    assert further["steps"] == 3

    data = [f"data.train={world.train}", f"data.test={world.test}", "data.text=sentence", "data.max_length=31"]
    fine = [*data, "baselines=false", "train.budget={steps: 3}", "train.batch_size=8", "--from", tmp_path / "lm"]
    assert_refused(
        "causal.*set objective", "finetune", "classify", *fine, "objective.head.kind=ffn", "--out", tmp_path / "no"
    )
    output = world.run("finetune", "classify", *fine, "objective.head={kind: last}", "--out", tmp_path / "told")
    assert output["test"]["rows"] > 0


@pytest.mark.slow
def test_an_encoder_of_two_directions_classifies(world: World, tmp_path: Path) -> None:
    words = [f"data.corpus={world.corpus}", "data.max_length=31", *SMALL, *STEPS]
    world.run("pretrain", "bilstm-mini", *words, "--out", tmp_path / "bi")
    data = [f"data.train={world.train}", f"data.test={world.test}", "data.text=sentence", "data.max_length=31"]
    fine = [*data, "baselines=false", "train.budget={steps: 3}", "train.batch_size=8", "--from", tmp_path / "bi"]
    output = world.run("finetune", "classify", *fine, "objective.head={kind: mean}", "--out", tmp_path / "told")
    assert output["parameters"] > 0
    predict = ("predict", tmp_path / "told", "--input", world.test, "--text-field", "sentence")
    assert world.run(*predict, "--out", tmp_path / "said.jsonl")["rows"] == output["test"]["rows"]
    causal = ("pretrain", "bilstm-mini", *words, "objective={kind: clm}", "--out", tmp_path / "no")
    assert_refused(r"objective clm .*model\.bidirectional=false", *causal)


@pytest.mark.slow
@pytest.mark.usefixtures("drawn_figures")
def test_two_stacks_are_taught_and_their_alignment_is_drawn(world: World, tmp_path: Path) -> None:
    sizes = ["model.encoder.hidden_size=32", "model.encoder.embedding_size=16", "model.decoder.hidden_size=24"]
    plain = ["objective.sentence_permutation=0"]  # whose corpus knows no sentences
    words = [f"data.corpus={world.corpus}", "data.max_length=31", *plain, *STEPS]
    run = tmp_path / "two"
    world.run("pretrain", "rnn-seq2seq-mini", *words, *sizes, "--out", run)
    drawn = world.run(
        *("show", "alignment", run, "--source", "the market of bread", "--target", "a market"),
        *("--out", tmp_path / "alignment.svg"),
    )
    picture = (tmp_path / "alignment.svg").read_text(encoding="utf-8")
    assert all(f">{token}<" in picture for token in [*drawn["source"], *drawn["target"]])
    assert len(drawn["alignment"]) == len(drawn["target"])
    for row in drawn["alignment"]:
        assert len(row) == len(drawn["source"])
        assert sum(row) == pytest.approx(1.0, abs=1e-4)
    assert world.run("show", "alignment", run, "--source", "the market")["written"] is not None
    assert_refused("--source is empty", "show", "alignment", run, "--source", "")
    assert_refused(r"\.svg or \.png", "show", "alignment", run, "--source", "a", "--out", tmp_path / "x.gif")
    assert_refused("additive attention", "show", "alignment", world.base, "--source", "the market")


def test_invalid_tbptt_settings_fail_before_training(world: World, tmp_path: Path) -> None:
    start = ["pretrain", "lstm-mini", f"data.corpus={world.corpus}", "data.max_length=13", *SMALL, *STEPS]
    for change, message in (
        ("objective.streams=5", "in one step"),
        ("model={preset: gpt-tiny}", "stateful_clm needs a recurrent model"),
        ("train.batch_size=100000", "100000 streams"),
        ("objective={kind: electra}", "is recurrent"),
    ):
        words = [word for word in start if not (change.startswith("model=") and word.startswith("model."))]
        assert_refused(message, *words, change, "--out", tmp_path / "no")
