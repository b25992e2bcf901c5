"""The contract of the command line: every command on a small world, and messages for user errors."""

import csv
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from commands_world import TINY, World

import homespun
from homespun.errors import UserError


def test_a_run_directory_holds_what_it_promises(world: World) -> None:
    for run in (world.base, world.classifier):
        for name in ("config.yaml", "environment.json", "metrics.jsonl", "result.json", "report/index.html"):
            assert (run / name).is_file(), name
        assert (run / "model" / "homespun.json").is_file()
        assert (run / "hf" / "config.json").is_file()
        assert list((run / "checkpoints").glob("step-*"))
    result = json.loads((world.classifier / "result.json").read_text())
    assert result["measured_on"] == "test"
    assert all(isinstance(result[name], int) for name in ("steps", "tokens", "peak_bytes", "parameters"))
    assert result["test"]["rows"] == 61
    of_test = [row for row in result["lengths"] if row["split"] == "test"]
    assert [row["class"] for row in of_test] == [None, *result["labels"]]
    assert of_test[0]["count"] == 61 == sum(row["count"] for row in of_test[1:])
    assert {"majority", "tfidf"} <= result["baselines"].keys()
    assert result["test"]["accuracy"] > result["baselines"]["majority"]["accuracy"] + 0.2


def test_evaluate_gives_what_finetune_measured(world: World) -> None:
    metrics = world.run("evaluate", world.classifier, "--data", world.test)
    result = json.loads((world.classifier / "result.json").read_text())
    assert metrics["accuracy"] == result["test"]["accuracy"]
    assert metrics["confusion"] == result["test"]["confusion"]
    assert metrics["truncated"] >= 0


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_predict_writes_a_line_a_text_in_order(world: World, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"predictions{suffix}"
    output = world.run("predict", world.classifier, "--input", world.test, "--out", out)
    with world.test.open() as stream:
        given = [row["sentence"] for row in csv.DictReader(stream)]
    with out.open() as stream:
        rows = [json.loads(line) for line in stream] if suffix == ".jsonl" else list(csv.DictReader(stream))
    assert [row["sentence"] for row in rows] == given
    assert output["rows"] == len(rows) == sum(output["labels"].values())
    metrics = world.run("evaluate", world.classifier, "--data", world.test)
    right = sum(row["label"] == row["predicted_label"] for row in rows)  # `label` is the file's own column
    assert right / len(rows) == pytest.approx(metrics["accuracy"])


def test_load_gives_logits_and_hidden_states(world: World) -> None:
    ids = torch.tensor([[2, 17, 23, 3]])
    assert homespun.load(world.classifier)(input_ids=ids, attention_mask=torch.ones_like(ids)).shape == (1, 3)
    assert homespun.load(world.base)(input_ids=ids).shape == (1, 4)  # the discriminator's, one a token


def test_lengths_by_class_and_split(world: World) -> None:
    rows = world.run(
        *("corpus", "lengths", "--input", world.train, "--input", world.test, "--text-field", "sentence"),
        *("--label-field", "label", "--tokenizer", world.folder / "tokenizer"),
    )["lengths"]
    assert {(row["split"], row["class"]) for row in rows} == {
        (str(path), name) for path in (world.train, world.test) for name in (None, "sport", "money", "food")
    }
    assert world.run("corpus", "lengths", world.corpus)["lengths"][0]["count"] == 240


def test_recipes_can_be_listed_shown_and_have_a_schema() -> None:
    from commands_world import run

    from homespun.commands.recipe import load_recipe
    from homespun.recipes import recipe_names

    assert set(run("recipes", "list")["recipes"]) == set(recipe_names())
    assert run("recipes", "show", "electra-mini", "train.seed=3")["train"]["seed"] == 3
    assert run("recipes", "schema")["discriminator"]["propertyName"] == "kind"
    for name in recipe_names():
        assert load_recipe(name).description


def test_a_preset_that_is_no_recipe_is_refused_with_a_command_that_loads() -> None:
    from homespun.commands.recipe import load_recipe
    from homespun.models.presets import PRESETS
    from homespun.recipes import recipe_names

    refused = []
    for name in {*PRESETS, "distil-base"} - {*recipe_names()}:
        with pytest.raises(UserError) as error:
            load_recipe(name)
        if found := re.search("`homespun pretrain (.+)`", str(error.value)):
            recipe, *settings = found[1].split(" ")
            assert load_recipe(recipe, settings).kind == "pretrain"
            refused.append(name)
    assert {"bert-base", "gpt3-175b", "t5-v1.1-xl", "elmo-original", "rnn-seq2seq-plain-mini", "distil-base"} <= {
        *refused
    }


@pytest.mark.parametrize("objective", ["mlm", "electra"])
@pytest.mark.parametrize("attention", ["full", "sparse", "performer"])
def test_objective_and_attention_change_by_one_line_each(
    world: World, tmp_path: Path, objective: str, attention: str
) -> None:
    result = world.run(
        *("pretrain", "electra-tiny", f"data.corpus={world.corpus}", "data.max_length=32", *TINY),
        *(f"objective.kind={objective}", f"model.attention.kind={attention}"),
        *("train.budget.steps=2", "train.batch_size=4", "--out", tmp_path / "run"),
    )
    assert result["steps"] == 2
    assert (result["export"]["architecture"] is None) == (attention != "full")


def test_warnings_are_of_what_can_be_trained(world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = ("pretrain", "bert-mini", f"data.corpus={world.corpus}", "data.max_length=32", "train.budget.steps=1")
    small = ("model.preset=bert-tiny", "model.attention={kind: linformer, k: 7}", "objective={kind: mlm}")
    with pytest.raises(UserError, match=r"linformer .*causal"):
        world.run(*given, *small, "model.causal=true", "objective={kind: clm}", "--out", tmp_path / "refused")
    assert not caplog.messages
    world.run(*given, *small, "--out", tmp_path / "run")
    assert sum("linformer" in message and "documents" in message for message in caplog.messages) == 1


def test_next_sentences_need_a_corpus_with_sentences(world: World, tmp_path: Path) -> None:
    words = ("pretrain", "bert-mini", "data.max_length=32", *TINY[:2], "model.num_hidden_layers=1")
    words += ("model.num_attention_heads=2", "train.budget.steps=2", "train.batch_size=4")
    with pytest.raises(UserError, match="sentences"):
        world.run(*words, f"data.corpus={world.corpus}", "--out", tmp_path / "a")
    world.run(
        *("corpus", "build", "--input", world.train, "--text-field", "sentence", "--sentences"),
        *("--tokenizer", world.folder / "tokenizer", "--out", tmp_path / "corpus"),
    )
    result = world.run(*words, f"data.corpus={tmp_path / 'corpus'}", "--out", tmp_path / "b")
    assert {"mlm", "next_sentence"} <= result["validation"]["losses"].keys()


@pytest.mark.slow
def test_seeds_and_folds_are_runs_of_their_own(world: World, tmp_path: Path) -> None:
    words = ("finetune", "classify", f"data.train={world.train}", "data.text=sentence", "data.max_length=24")
    words += ("train.budget.steps=3", "--from", world.base)
    seeds = world.run(*words, f"data.test={world.test}", "seeds=2", "--out", tmp_path / "seeds")
    assert len(seeds["seeds"]) == 2
    assert seeds["test"]["std"]["accuracy"] is not None
    assert len(list((tmp_path / "seeds" / "trials").iterdir())) == 2
    assert (tmp_path / "seeds" / "model" / "homespun.json").is_file()
    folds = world.run(*words, "folds=3", "--out", tmp_path / "folds")
    assert len(folds["seeds"]) == 3
    assert sum(test["rows"] for test in folds["seeds"]) == 240
    assert folds["measured_on"] == "folds"
    assert 0 < folds["baselines"]["tfidf"]["accuracy"] <= 1


def test_frozen_encoders_stay_as_they_are(world: World, tmp_path: Path) -> None:
    world.run(
        *("finetune", "classify-frozen", f"data.train={world.train}", "data.text=sentence", "data.max_length=24"),
        *("train.budget.steps=3", "baselines=false", "--from", world.base, "--out", tmp_path / "run"),
    )
    before = homespun.load(world.base).backbone.state_dict()
    after = homespun.load(tmp_path / "run").backbone.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.slow
def test_a_larger_budget_goes_on_with_a_finished_run(world: World, tmp_path: Path) -> None:
    words = ("pretrain", "electra-tiny", f"data.corpus={world.corpus}", "data.max_length=32", *TINY)
    words += ("train.batch_size=4", "--out", tmp_path / "run")
    assert world.run(*words, "train.budget.steps=3")["steps"] == 3
    with pytest.raises(UserError, match="--resume"):
        world.run(*words, "train.budget.steps=5")
    assert world.run(*words, "train.budget.steps=5", "--resume")["steps"] == 5
    with pytest.raises(UserError, match=r"train\.seed"):
        world.run(*words, "train.budget.steps=5", "train.seed=4", "--resume")


MISTAKES = {
    "no such recipe": (["pretrain", "electra-min", "--out", "{out}"], "did you mean 'electra-mini'"),
    "a preset": (["pretrain", "gpt2-xl", "--out", "{out}"], "homespun pretrain gpt2-mini model.preset=gpt2-xl"),
    "a family of another recipe": (["pretrain", "gru-mini", "--out", "{out}"], "lstm-mini model.preset=gru-mini"),
    "no such key": (["pretrain", "electra-tiny", "train.sed=1", "--out", "{out}"], "did you mean 'seed'"),
    "no corpus given": (["pretrain", "electra-tiny", "--out", "{out}"], "data.corpus="),
    "no corpus there": (["pretrain", "electra-tiny", "data.corpus=nowhere", "--out", "{out}"], "nowhere"),
    "rows longer than the model": (
        ["pretrain", "electra-tiny", "data.corpus={corpus}", "data.max_length=600", "--out", "{out}"],
        "max_position_embeddings=512",
    ),
    "a budget less than one step": (
        ["pretrain", "electra-tiny", "data.corpus={corpus}", "train.budget.tokens=5", "--out", "{out}"],
        "less than one step",
    ),
    "no such column": (
        ["finetune", "classify", "data.train={train}", "data.text=sentense", "--from", "{base}", "--out", "{out}"],
        "sentence, label",
    ),
    "missing file": (["corpus", "build", "--input", "no.csv", "--tokenizer", "{tok}", "--out", "{out}"], "no.csv"),
    "no model to start from": (["finetune", "classify", "data.train={train}", "--out", "{out}"], "--from"),
    "not a classifier": (["evaluate", "{base}", "--data", "{train}"], "not a classifier"),
    "vocabulary too large": (
        [
            "tokenizer",
            "train",
            "--input",
            "{train}",
            "--text-field",
            "sentence",
            "--vocab-size",
            "50000",
            "--out",
            "{out}",
        ],
        "vocab",
    ),
    "predict into a folder of another kind": (
        ["predict", "{classifier}", "--input", "{test}", "--out", "{out}.xlsx"],
        ".jsonl, .csv",
    ),
    "predictions of texts into a file": (
        ["predict", "{classifier}", "a text", "--out", "{out}.jsonl"],
        "--out needs --input",
    ),
    "generation settings of a classifier of texts": (
        ["predict", "{classifier}", "a text", "--generation", "num_beams=2"],
        "--generation",
    ),
    "a tokenizer into a file": (
        ["tokenizer", "train", "--input", "{train}", "--out", "{train}"],
        "train.csv is a file",
    ),
    "a tokenizer extended into a file": (
        ["tokenizer", "extend", "{base}", "--input", "{train}", "--add", "3", "--out", "{train}"],
        "train.csv is a file",
    ),
    "a quickstart into a file": (["quickstart", "--out", "{train}"], "train.csv is a file"),
    "a frozen recipe for pretraining": (["pretrain", "classify", "--out", "{out}"], "homespun finetune"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(world: World, tmp_path: Path, name: str) -> None:
    words, message = MISTAKES[name]
    out = tmp_path / "out"
    paths = {"out": out, "corpus": world.corpus, "train": world.train, "test": world.test, "base": world.base}
    paths |= {"tok": world.folder / "tokenizer", "classifier": world.classifier}
    with pytest.raises(UserError) as raised:
        world.run(*(word.format(**paths) for word in words))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (out / "result.json").exists()
    assert not (out / "model").exists()
    assert not (out / "corpus.json").exists()


def test_one_class_and_unseen_labels_are_errors(world: World, tmp_path: Path) -> None:
    single = tmp_path / "single.csv"
    single.write_text("sentence,label\nthe team,sport\nthe goal,sport\n")
    words = ("finetune", "classify", "data.text=sentence", "--from", world.base, "--out", tmp_path / "run")
    with pytest.raises(UserError, match="one class"):
        world.run(*words, f"data.train={single}")
    other = tmp_path / "other.csv"
    other.write_text("sentence,label\nthe team,chess\n")
    with pytest.raises(UserError, match="chess"):
        world.run(*words, f"data.train={world.train}", f"data.test={other}")
    with pytest.raises(UserError, match="chess"):
        world.run("evaluate", world.classifier, "--data", other)


def test_a_model_cut_short_or_altered_is_refused(world: World, tmp_path: Path) -> None:
    for damage in ("cut", "altered"):
        copy = tmp_path / damage
        shutil.copytree(world.classifier / "model", copy)
        weights = copy / "model.safetensors"
        content = bytearray(weights.read_bytes())
        if damage == "cut":
            del content[-100:]
        else:
            content[-50] ^= 1
        weights.write_bytes(content)
        with pytest.raises(UserError, match="cut short" if damage == "cut" else "altered"):
            homespun.load(copy)


def test_another_tokenizer_s_corpus_is_refused(world: World, tmp_path: Path) -> None:
    world.run(
        *("tokenizer", "train", "--input", world.train, "--text-field", "sentence"),
        *("--kind", "wordpiece", "--vocab-size", "300", "--out", tmp_path / "tokenizer"),
    )
    world.run(
        *("corpus", "build", "--input", world.train, "--text-field", "sentence"),
        *("--tokenizer", tmp_path / "tokenizer", "--out", tmp_path / "corpus"),
    )
    with pytest.raises(UserError, match="tokenizer"):
        world.run(
            *("pretrain", "electra-tiny", f"data.corpus={tmp_path / 'corpus'}", "data.max_length=32"),
            *("train.budget.steps=2", "--from", world.base, "--out", tmp_path / "run"),
        )


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "homespun", *map(str, words)]


@pytest.mark.slow
def test_the_process_exits_with_2_and_one_line(tmp_path: Path) -> None:
    done = subprocess.run(command("recipes", "show", "electra-smal"), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_help_is_instant() -> None:
    """By the processor's time, as tests may run beside other work; torch alone takes longer to be imported."""
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command("--help"), capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.5


@pytest.mark.slow
def test_interrupted_and_resumed_is_never_interrupted(world: World, tmp_path: Path) -> None:
    words = ("pretrain", "electra-tiny", f"data.corpus={world.corpus}", "data.max_length=32", *TINY)
    words += ("train.budget.steps=60", "train.batch_size=4", "train.checkpoint_every=0.1")
    uninterrupted = world.run(*words, "--out", tmp_path / "whole")
    process = subprocess.Popen(
        command(*words, "--out", tmp_path / "cut"),
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    metrics = tmp_path / "cut" / "metrics.jsonl"
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and (not metrics.exists() or metrics.read_text().count('"step"') < 8):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=300)
    if process.returncode == 0:
        pytest.skip("the run was over before the signal came")
    assert process.returncode == 2
    assert "--resume" in message
    assert not (tmp_path / "cut" / "result.json").exists()
    resumed = world.run(*words, "--out", tmp_path / "cut", "--resume")
    assert resumed["validation"] == uninterrupted["validation"]
    assert (tmp_path / "cut/model/model.safetensors").read_bytes() == (
        tmp_path / "whole/model/model.safetensors"
    ).read_bytes()


@pytest.mark.slow
def test_two_processes_train_what_one_trains(world: World, tmp_path: Path) -> None:
    pretrain = ("pretrain", "electra-tiny", f"data.corpus={world.corpus}", "data.max_length=32", *TINY)
    pretrain += ("train.budget.steps=3", "train.batch_size=6", "model.hidden_dropout_prob=0", "objective.kind=mlm")
    finetune = ("finetune", "classify", f"data.train={world.train}", "data.text=sentence", "data.max_length=24")
    finetune += ("train.budget.steps=3", "--from", world.base, "objective.head.dropout=0")
    for name, words in (("pretrain", pretrain), ("finetune", finetune)):
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "-m", "homespun"]
        done = subprocess.run(
            [*launch, *map(str, words), "--out", str(tmp_path / f"{name}-two"), "--json"],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr[-2000:]
        one = world.run(*words, "--out", tmp_path / f"{name}-one")
        two = json.loads((tmp_path / f"{name}-two" / "result.json").read_text())
        assert two["tokens"] == one["tokens"]
        if name == "pretrain":  # the encoder of the other has dropout, drawn by each process for itself
            assert two["train"]["loss"] == pytest.approx(one["train"]["loss"], abs=1e-5)
