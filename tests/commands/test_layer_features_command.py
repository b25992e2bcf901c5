"""Features of several layers, and the feature cache of a frozen encoder, through the commands."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands_world import TINY, World, assert_refused, write_lines

from homespun.hf.open import open_model
from homespun.models.composite_heads import ConcatLastLayers


@pytest.fixture(scope="module")
def base(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("vectors") / "base"
    sizes = [*TINY[:-1], "model.num_hidden_layers=3"]
    words = ("pretrain", "electra-tiny", f"data.corpus={world.corpus}", "data.max_length=32", *sizes)
    world.run(*words, "train.budget.steps=2", "train.batch_size=7", "--out", run)
    return run


def words(world: World, base: Path, *others: str) -> tuple[Any, ...]:
    data = (*world.labelled, f"data.test={world.test}", "train.budget.epochs=2", "baselines=false")
    return ("finetune", "classify-frozen", *data, *others, "--from", base)


@pytest.mark.slow
def test_a_head_on_the_last_layers_is_used_as_any_other(world: World, base: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = world.run(*words(world, base, "objective.last_layers=3", "objective.head.kind=bilstm"), "--out", run)
    stored = open_model(run)
    assert stored.model.reader == ConcatLastLayers(3)
    assert stored.model.head.lstm.input_size == 3 * 32
    metrics = world.run("evaluate", run, "--data", world.test)
    assert metrics["confusion"] == result["test"]["confusion"]
    assert metrics["log_loss"] == pytest.approx(result["test"]["log_loss"], abs=1e-6)
    source = write_lines(tmp_path / "new.jsonl", [{"sentence": "the match and the goal"}])
    assert world.run("predict", run, "--input", source, "--out", tmp_path / "out.jsonl")["rows"] == 1
    assert "last_layers" in json.dumps(result["export"])
    again = world.run(*words(world, base, "objective.head.kind=mean")[:-1], run, "--out", tmp_path / "again")
    assert again["test"]["rows"] == 61


def test_what_does_not_suit_the_encoder_is_refused(world: World, base: Path, tmp_path: Path) -> None:
    for message, *settings in (
        ("last_layers=4.* 3 layers", "objective.last_layers=4"),
        ("frozen=true.*cache", f"objective.cache={tmp_path}", "objective.frozen=false"),
    ):
        assert_refused(message, *words(world, base, *settings), "--out", tmp_path / "run")


@pytest.mark.slow
def test_vectors_are_computed_once_for_all_epochs_seeds_and_heads(world: World, base: Path, tmp_path: Path) -> None:
    cache = f"objective.cache={tmp_path / 'cache'}"
    first = world.run(*words(world, base, cache), "--out", tmp_path / "first")
    (vectors,) = (tmp_path / "cache").rglob("vectors")
    size = vectors.stat().st_size
    assert size > (240 + 61) * 10 * 32 * 2  # texts, tokens at least, width, bytes
    again = world.run(*words(world, base, cache), "--out", tmp_path / "again")
    world.run(*words(world, base, cache, "objective.head.kind=linear", "seeds=2"), "--out", tmp_path / "other")
    assert vectors.stat().st_size == size
    assert again["test"] == first["test"]
    assert again["train"] == first["train"]
    plain = world.run(*words(world, base), "--out", tmp_path / "plain")
    assert plain["test"]["log_loss"] == pytest.approx(first["test"]["log_loss"], abs=2e-3)
    metrics = world.run("evaluate", tmp_path / "first", "--data", world.test)
    assert metrics["log_loss"] == pytest.approx(first["test"]["log_loss"], abs=2e-3)
