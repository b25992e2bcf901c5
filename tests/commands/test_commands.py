"""The contract of the command line: every command on a small world, and messages for user errors."""

import csv
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands_world import TINY, World, assert_refused, read_lines, write_csv

import homespun
from homespun.commands.recipe import load_recipe
from homespun.errors import UserError
from homespun.models.presets import PRESETS
from homespun.recipes import recipe_names


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
    expected = json.loads((world.classifier / "result.json").read_text())["test"]
    assert (metrics["accuracy"], metrics["confusion"]) == (expected["accuracy"], expected["confusion"])
    assert metrics["truncated"] >= 0


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_predict_writes_a_line_a_text_in_order(world: World, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"predictions{suffix}"
    output = world.run("predict", world.classifier, "--input", world.test, "--out", out)
    given = [row["sentence"] for row in csv.DictReader(world.test.read_text().splitlines())]
    rows = read_lines(out) if suffix == ".jsonl" else list(csv.DictReader(out.read_text().splitlines()))
    assert [row["sentence"] for row in rows] == given
    assert output["rows"] == len(rows) == sum(output["labels"].values())
    result = json.loads((world.classifier / "result.json").read_text())
    right = sum(row["label"] == row["predicted_label"] for row in rows)  # `label` is the file's own column
    assert right / len(rows) == pytest.approx(result["test"]["accuracy"])


def test_lengths_by_class_and_split(world: World) -> None:
    rows = world.run(
        *("corpus", "lengths", "--input", world.train, "--input", world.test, "--text-field", "sentence"),
        *("--label-field", "label", "--tokenizer", world.tokenizer),
    )["lengths"]
    assert {(row["split"], row["class"]) for row in rows} == {
        (str(path), name) for path in (world.train, world.test) for name in (None, "sport", "money", "food")
    }
    assert world.run("corpus", "lengths", world.corpus)["lengths"][0]["count"] == 240


def test_recipes_can_be_listed_shown_and_have_a_schema(world: World) -> None:
    assert set(world.run("recipes", "list")["recipes"]) == set(recipe_names())
    assert world.run("recipes", "show", "electra-mini", "train.seed=3")["train"]["seed"] == 3
    assert world.run("recipes", "schema")["discriminator"]["propertyName"] == "kind"
    for name in recipe_names():
        assert load_recipe(name).description


def test_a_preset_that_is_no_recipe_is_refused_with_a_command_that_loads() -> None:
    refused = set()
    for name in {*PRESETS, "distil-base"} - {*recipe_names()}:
        with pytest.raises(UserError) as error:
            load_recipe(name)
        if found := re.search("`homespun pretrain (.+)`", str(error.value)):
            recipe, *settings = found[1].split(" ")
            assert load_recipe(recipe, settings).kind == "pretrain"
            refused.add(name)
    assert {"bert-base", "gpt3-175b", "t5-v1.1-xl", "elmo-original", "rnn-seq2seq-plain-mini", "distil-base"} <= refused


@pytest.mark.parametrize("objective", ["mlm", "electra"])
@pytest.mark.parametrize("attention", ["full", "sparse", "performer"])
def test_objective_and_attention_change_by_one_line_each(
    world: World, tmp_path: Path, objective: str, attention: str
) -> None:
    changes = (f"objective.kind={objective}", f"model.attention.kind={attention}", "train.batch_size=4")
    result = world.run(*world.pretraining, *changes, "train.budget.steps=2", "--out", tmp_path / "run")
    assert result["steps"] == 2
    own = {"mlm": "HomespunForMaskedLM", "electra": "HomespunModel"}
    theirs = {"mlm": "ElectraForMaskedLM", "electra": "ElectraForPreTraining"}
    assert result["export"]["architecture"] == (theirs if attention == "full" else own)[objective]


def test_warnings_are_of_what_can_be_trained(world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = ("pretrain", "bert-mini", f"data.corpus={world.corpus}", "data.max_length=32", "train.budget.steps=1")
    given += ("model.preset=bert-tiny", "model.attention={kind: linformer, k: 7}", "--out", tmp_path / "run")
    assert_refused(r"linformer .*causal", *given, "model.causal=true", "objective={kind: clm}")
    assert not caplog.messages
    world.run(*given, "objective={kind: mlm}")
    assert sum("linformer" in message and "documents" in message for message in caplog.messages) == 1


def test_next_sentences_need_a_corpus_with_sentences(world: World, tmp_path: Path) -> None:
    words = ("pretrain", "bert-mini", "data.max_length=32", *TINY[:2], "model.num_hidden_layers=1")
    words += ("model.num_attention_heads=2", "train.budget.steps=2", "train.batch_size=4", "--out", tmp_path / "run")
    assert_refused("sentences", *words, f"data.corpus={world.corpus}")
    world.run(
        *("corpus", "build", "--input", world.train, "--text-field", "sentence", "--sentences"),
        *("--tokenizer", world.tokenizer, "--out", tmp_path / "corpus"),
    )
    result = world.run(*words, f"data.corpus={tmp_path / 'corpus'}")
    assert {"mlm", "next_sentence"} <= result["validation"]["losses"].keys()


@pytest.mark.slow
def test_seeds_and_folds_are_runs_of_their_own(world: World, tmp_path: Path) -> None:
    words = (*world.finetuning, "train.budget.steps=3", "--from", world.base)
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


@pytest.mark.slow
def test_a_larger_budget_goes_on_with_a_finished_run(world: World, tmp_path: Path) -> None:
    words = (*world.pretraining, "train.batch_size=4", "--out", tmp_path / "run")
    assert world.run(*words, "train.budget.steps=3")["steps"] == 3
    assert_refused("--resume", *words, "train.budget.steps=5")
    assert world.run(*words, "train.budget.steps=5", "--resume")["steps"] == 5
    assert_refused(r"train\.seed", *words, "train.budget.steps=5", "train.seed=4", "--resume")


MISTAKES = {
    "no such recipe": ("pretrain electra-min --out {out}", "'electra-mini'"),
    "a preset": ("pretrain gpt2-xl --out {out}", "homespun pretrain gpt2-mini model.preset=gpt2-xl"),
    "a family of another recipe": ("pretrain gru-mini --out {out}", "lstm-mini model.preset=gru-mini"),
    "no such key": ("pretrain electra-tiny train.sed=1 --out {out}", "'train.seed'"),
    "no corpus given": ("pretrain electra-tiny --out {out}", "data.corpus="),
    "no corpus there": ("pretrain electra-tiny data.corpus=nowhere --out {out}", "nowhere"),
    "rows longer than the model": (
        "pretrain electra-tiny data.corpus={corpus} data.max_length=600 --out {out}",
        "max_position_embeddings=512",
    ),
    "a budget less than one step": (
        "pretrain electra-tiny data.corpus={corpus} train.budget.tokens=5 --out {out}",
        "less than one step",
    ),
    "no such column": (
        "finetune classify data.train={train} data.text=sentense --from {base} --out {out}",
        "sentence, label",
    ),
    "missing file": ("corpus build --input no.csv --tokenizer {tokenizer} --out {out}", "no.csv"),
    "no model to start from": ("finetune classify data.train={train} --out {out}", "--from"),
    "not a classifier": ("evaluate {base} --data {train}", "not a classifier"),
    "vocabulary too large": (
        "tokenizer train --input {train} --text-field sentence --vocab-size 50000 --out {out}",
        "vocab",
    ),
    "predictions of another suffix": ("predict {classifier} --input {test} --out {out}.xlsx", ".jsonl or .csv"),
    "predictions of texts into a file": ("predict {classifier} text --out {out}.jsonl", "--out needs --input"),
    "generation settings of a classifier of texts": (
        "predict {classifier} text --generation num_beams=2",
        "--generation",
    ),
    "a tokenizer into a file": ("tokenizer train --input {train} --out {train}", "train.csv is a file"),
    "a tokenizer extended into a file": (
        "tokenizer extend {base} --input {train} --add 3 --out {train}",
        "train.csv is a file",
    ),
    "a quickstart into a file": ("quickstart --out {train}", "train.csv is a file"),
    "a fine-tuning recipe for pretraining": ("pretrain classify --out {out}", "homespun finetune"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(world: World, tmp_path: Path, name: str) -> None:
    words, message = MISTAKES[name]
    places = vars(world) | {"out": tmp_path / "out"}
    assert_refused(re.escape(message), *(word.format(**places) for word in words.split()))
    assert not {"result.json", "model", "corpus.json"} & {path.name for path in (tmp_path / "out").glob("*")}


@pytest.mark.parametrize("name", ["data.train", "data.test"])
def test_files_that_are_no_names_are_refused_by_the_recipe(world: World, tmp_path: Path, name: str) -> None:
    words = ("finetune", "classify", f"data.train={world.train}", f"{name}=[1]", "--from", world.base)
    assert_refused(name, *words, "--out", tmp_path / "r")


def test_one_class_and_unseen_labels_are_errors(world: World, tmp_path: Path) -> None:
    header = ["sentence", "label"]
    single = write_csv(tmp_path / "single.csv", header, [["the team", "sport"], ["the goal", "sport"]])
    other = write_csv(tmp_path / "other.csv", header, [["the team", "chess"]])
    words = (*world.finetuning, "--from", world.base, "--out", tmp_path / "run")
    assert_refused("one class", *words, f"data.train={single}")
    assert_refused("chess", *words, f"data.test={other}")
    assert_refused("chess", "evaluate", world.classifier, "--data", other)


@pytest.mark.parametrize("damage", ["cut short", "altered"])
def test_a_model_cut_short_or_altered_is_refused(world: World, tmp_path: Path, damage: str) -> None:
    shutil.copytree(world.classifier / "model", tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    if damage == "cut short":
        del content[-100:]
    else:
        content[-50] ^= 1
    weights.write_bytes(content)
    with pytest.raises(UserError, match=damage):
        homespun.load(tmp_path / "model")


def test_another_tokenizer_s_corpus_is_refused(world: World, tmp_path: Path) -> None:
    read, tokenizer, corpus = (
        ("--input", world.train, "--text-field", "sentence"),
        tmp_path / "tok",
        tmp_path / "corpus",
    )
    world.run("tokenizer", "train", *read, "--kind", "wordpiece", "--vocab-size", "300", "--out", tokenizer)
    world.run("corpus", "build", *read, "--tokenizer", tokenizer, "--out", corpus)
    words = ("pretrain", "electra-tiny", f"data.corpus={corpus}", "data.max_length=32", "train.budget.steps=2")
    assert_refused("tokenizer", *words, "--from", world.base, "--out", tmp_path / "run")


def help_seconds() -> float:
    """Time of the processor, as tests may run with other work."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "homespun", "--help"], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_is_printed_before_torch_could_be_imported() -> None:
    assert min(help_seconds() for _ in range(3)) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["pretrain", "finetune"])
def test_two_processes_train_what_one_trains(world: World, tmp_path: Path, verb: str) -> None:
    words = (*world.finetuning, "train.budget.steps=3", "--from", world.base, "objective.head.dropout=0")
    if verb == "pretrain":
        words = (*world.pretraining, "train.budget.steps=3", "train.batch_size=6", "model.hidden_dropout_prob=0")
        words += ("objective.kind=mlm",)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "-m", "homespun"]
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    launch += [*map(str, words), "--out", str(tmp_path / "two"), "--json"]
    done = subprocess.run(launch, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    one = world.run(*words, "--out", tmp_path / "one")
    two = json.loads((tmp_path / "two" / "result.json").read_text())
    assert two["tokens"] == one["tokens"]
    if verb == "pretrain":  # the encoder of the other has dropout, drawn by each process for itself
        assert two["train"]["loss"] == pytest.approx(one["train"]["loss"], abs=1e-5)
