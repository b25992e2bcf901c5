"""Old names are rejected in one line that gives the new name; files that an earlier version wrote are read."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
import yaml

from homespun.cli import main
from homespun.commands.few_shot import Prompting
from homespun.commands.provenance import InitialWeights, check_inputs
from homespun.commands.recipe import load_recipe
from homespun.compare.recipe import compare_recipe
from homespun.config import dump, validate
from homespun.errors import UserError
from homespun.migration import (
    RENAMED_COMMANDS,
    RENAMED_FILES,
    RENAMED_FLAGS,
    RENAMED_KEYS,
    RENAMED_KINDS,
    RENAMED_RECIPES,
    migrate,
)
from homespun.models.bundle import load_model, save_model
from homespun.models.config import ModelConfig
from homespun.recipes import recipe_names
from homespun.report.comparison_records import read_comparison
from homespun.report.records import architecture, read_run
from homespun.text.tokenizer import Tokenizer
from homespun.training.run import Run

SPACE = "search={space: {pretrain.train.batch_size: {low: 1, high: 4%s}}%s}"
KEYS = {
    "about": ("bert-mini", "about=x"),
    "apart": ("elmo-mini", "model.apart=true"),
    "data.length": ("bert-mini", "data.length=64"),
    "data.long_inputs": ("classify", "data.long_inputs.kind=chunk_mean"),
    "data.question_length": ("question-answering", "data.question_length=8"),
    "data.source_length": ("summarize", "data.source_length=8"),
    "data.target_length": ("summarize", "data.target_length=8"),
    "data.writing": ("summarize", "data.writing.num_beams=2"),
    "everywhere": ("longformer-mini", "model.attention={kind: sparse, everywhere: {first: 1}}"),
    "examples": ("classify", "examples=[10, all]"),
    "measure": ("compare-small", "measure={lengths: [8]}"),
    "objective.by": ("ordinal-regression", "objective.by=squared"),
    "objective.outside": ("similarity", "objective.outside=leave_out"),
    "paragraphs.most": ("summarize-documents", "data.paragraphs.most=2"),
    "schedule.final": ("bert-mini", "train.schedule.final=0.1"),
    "search.measure": ("compare-small", SPACE % ("", ", measure: f1")),
    "slots": ("compare-small", "slots=2"),
    "space.whole": ("compare-small", SPACE % (", whole: true", "")),
    "tuning": ("classify", "tuning.thresholds=half"),
}
KINDS = {
    "bilm": ("elmo-mini", "objective"),
    "pairs": ("pairs", "data"),
    "pairs_of_texts": ("summarize", "data"),
    "ratings": ("ordinal-regression", "objective"),
    "sentence_labels": ("classify-sentences", "objective"),
    "span_answers": ("question-answering", "objective"),
    "streamed_clm": ("lstm-mini", "objective"),
    "tagging": ("tag", "objective"),
    "tags": ("tag", "data"),
    "text_to_text": ("summarize", "objective"),
}
COMMANDS = {
    "measure": ["measure", "runs/base"],
    "prompt": ["prompt", "runs/base", "--data", "x.csv"],
    "vectors begin": ["vectors", "begin", "lstm-mini"],
}
FLAGS = {
    "--draws": ["few-shot", "runs/base", "--data", "x.csv", "--draws", "2"],
    "--fresh": ["distill", "pretrain", "distil-mini", "--teacher", "runs/base", "--fresh"],
    "--how": ["vectors", "map", "vectors", "--out", "map.png", "--how=tsne"],
    "--slots": ["compare", "compare-small", "--slots", "2"],
    "--writing": ["evaluate", "runs/base", "--data", "x.csv", "--writing", "num_beams=2"],
}


def test_every_row_has_a_case() -> None:
    assert KEYS.keys() | {"draws"} == RENAMED_KEYS.keys()
    assert KINDS.keys() == RENAMED_KINDS.keys()
    assert COMMANDS.keys() == RENAMED_COMMANDS.keys()
    assert FLAGS.keys() == RENAMED_FLAGS.keys()


@pytest.mark.parametrize("old", KEYS)
def test_old_keys_are_rejected(old: str) -> None:
    recipe, assignment = KEYS[old]
    new, name = RENAMED_KEYS[old], old.rpartition(".")[2]
    load = compare_recipe if recipe.startswith("compare-") else load_recipe
    with pytest.raises(UserError, match=rf"^{recipe}: (\S*\b){name} was renamed to \1{new}$"):
        load(recipe, [assignment])


def test_old_key_of_few_shot_is_rejected() -> None:
    with pytest.raises(UserError, match=r"^few-shot: draws was renamed to repeats$"):
        validate(Prompting, {"draws": 2}, source="few-shot")


@pytest.mark.parametrize("old", KINDS)
def test_old_kinds_are_rejected(old: str) -> None:
    recipe, part = KINDS[old]
    message = f"{recipe}: {part}.kind={old} was renamed to {part}.kind={RENAMED_KINDS[old]}"
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        load_recipe(recipe, [f"{part}.kind={old}"])


@pytest.mark.parametrize(("old", "new"), RENAMED_RECIPES.items())
def test_old_recipes_are_rejected(old: str, new: str) -> None:
    assert new in recipe_names()
    with pytest.raises(UserError, match=f"^recipe {old} was renamed to {new}$"):
        load_recipe(old)


def run_main(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", ["homespun", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("old", COMMANDS)
def test_old_commands_are_rejected(
    old: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    message = f"error: homespun {old} was renamed to homespun {RENAMED_COMMANDS[old]}\n"
    assert run_main(COMMANDS[old], monkeypatch, capsys) == message


@pytest.mark.parametrize("old", FLAGS)
def test_old_flags_are_rejected(old: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    error = run_main(FLAGS[old], monkeypatch, capsys)
    assert re.fullmatch(rf"error: .*: {old} was renamed to {RENAMED_FLAGS[old]}\n", error)


# files of earlier versions

OLD_RECIPE = {
    "kind": "finetune",
    "about": "x",
    "data": {"kind": "pairs_of_texts", "target_length": 16, "paragraphs": {"most": 3, "length": 9}, "writing": {}},
    "objective": {"kind": "text_to_text"},
    "train": {"budget": {"epochs": 1}, "schedule": {"kind": "linear", "final": 0.1}},
    "examples": [10, "all"],
    "tuning": {"thresholds": "half"},
}
NEW = [
    "data.kind=source_target",
    "data.max_target_length=16",
    "data.paragraphs={max_paragraphs: 3, max_length: 9}",
    "description=x",
    "train={budget: {epochs: 1}, schedule: {kind: linear, min_lr_ratio: 0.1}}",
    "train_sizes=[10, all]",
    "calibration.thresholds=half",
]


def test_config_of_an_old_run_is_resumed(tmp_path: Path) -> None:
    now = load_recipe("summarize", NEW)
    run = Run.create(tmp_path, now, resume=False)
    assert validate(type(now), migrate(OLD_RECIPE), source="x").train_sizes == now.train_sizes
    old = yaml.safe_load(dump(now))
    for key, value in {"description": "about", "train_sizes": "examples", "calibration": "tuning"}.items():
        old[value] = old.pop(key)
    old["data"] |= {"kind": "pairs_of_texts", "target_length": old["data"].pop("max_target_length")}
    old["objective"]["kind"] = "text_to_text"
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(old))
    assert Run.create(tmp_path, now, resume=True).path == run.path
    with pytest.raises(UserError, match=r"was run with another config: data\.max_target_length was 16 and is 17$"):
        Run.create(tmp_path, load_recipe("summarize", [*NEW, "data.max_target_length=17"]), resume=True)


def test_inputs_of_an_old_run_are_checked(tmp_path: Path) -> None:
    ((old, _),) = RENAMED_FILES.items()
    (tmp_path / old).write_text(json.dumps({"--from": {"name": "a", "fingerprint": "1"}}))
    check_inputs(tmp_path, {"--from": InitialWeights(name="b", fingerprint="1")})
    with pytest.raises(UserError, match="--from b"):
        check_inputs(tmp_path, {"--from": InitialWeights(name="b", fingerprint="2")})


def test_old_model_folder_is_read(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(["the quick brown fox jumps over the lazy dog"] * 3, kind="words", vocab_size=12)
    sizes = {"hidden_size": 14, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 17}
    sizes |= {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 23}
    sparse = {"kind": "sparse", "patterns": [{"kind": "window", "radius": 3}], "global_tokens": {"first": 1}}
    backbone = {"kind": "encoder", "attention": sparse, **sizes}
    config = validate(ModelConfig, {"backbone": backbone, "head": {"kind": "token_classification"}}, source="x")
    torch.manual_seed(1)
    task = {"kind": "token_classification", "data": "token_labels", "max_length": 23, "tags": "tags"}
    save_model(tmp_path, config.build(), config, tokenizer, task=task)
    path = tmp_path / "homespun.json"
    described = json.loads(path.read_text())
    attention = described["model"]["backbone"]["attention"]
    attention["everywhere"] = attention.pop("global_tokens")
    described["task"] = {"kind": "tagging", "data": "tags", "length": 23, "tags": "tags"}
    path.write_text(json.dumps(described))
    stored = load_model(tmp_path)
    assert stored.config == config
    assert stored.task == task


def test_old_runs_are_reported(tmp_path: Path) -> None:
    config = {"model": {"kind": "recurrent", "num_hidden_layers": 2, "hidden_size": 8, "cell": "lstm", "apart": True}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    old = {"task": "span_answers", "frequencies": {"mlm": 6.5}, "most_wrong": [{"text": "x"}], "tuning": {"rows": 7}}
    (tmp_path / "result.json").write_text(json.dumps(old))
    record = read_run(tmp_path)
    assert record.result.to_json() == {
        "task": "question_answering",
        "unigram_baseline": {"mlm": 6.5},
        "top_errors": [{"text": "x"}],
        "decision_rule": {"rows": 7},
    }
    assert architecture(record) == "2 LSTM layers × 8, independent directions"
    (tmp_path / "comparison.yaml").write_text(yaml.safe_dump({"kind": "compare", "about": "x", "measure": None}))
    assert read_comparison(tmp_path).recipe == {"kind": "compare", "description": "x", "benchmark": None}
