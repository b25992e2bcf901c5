"""``train.processes``: commands in several processes."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from commands_world import World, assert_refused, read_lines

from homespun.commands import processes
from homespun.commands.plan import plan
from homespun.commands.recipe import load_recipe
from homespun.training.config import TrainConfig


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "homespun", *map(str, words)]


def pretraining(world: World, *more: str) -> list[str]:
    words = [*world.pretraining, "objective.kind=mlm", "model.hidden_dropout_prob=0", "train.precision=float32"]
    return [*words, "train.batch_size=6", *more]


def losses(run: Path) -> list[float]:
    return [line["loss/total"] for line in read_lines(run / "metrics.jsonl") if line["event"] == "step"]


@pytest.mark.slow
def test_a_pretraining_in_two_processes_has_the_losses_of_one(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = pretraining(world, "train.budget.steps=5")
    world.run(*words, "--out", tmp_path / "one")
    two = [*words, "train.processes=2", "--out", str(tmp_path / "two"), "--json"]
    done = subprocess.run(command(*two), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == caplog.messages  # those of one process, once
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["steps"] == 5
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    assert read_lines(tmp_path / "two" / "metrics.jsonl")[0]["processes"] == 2
    assert (tmp_path / "two" / "model").is_dir()


@pytest.mark.slow
def test_a_fine_tuning_in_two_processes(world: World, tmp_path: Path) -> None:
    words = (*world.finetuning, "train.budget.steps=3", "train.processes=2", "--from", world.base)
    result = world.run(*words, "--out", tmp_path / "two")
    assert result["steps"] == 3
    assert "majority" in result["baselines"]


@pytest.mark.slow
def test_a_mistake_is_one_line_of_one_process(world: World, tmp_path: Path) -> None:
    words = pretraining(world, "train.budget.steps=5", "train.processes=2", "data.max_length=100000")
    done = subprocess.run(command(*words, "--out", tmp_path / "out"), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_resumed(world: World, tmp_path: Path, number: signal.Signals) -> None:
    words = [*pretraining(world, "train.budget.steps=200", "train.processes=2"), "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command(*words), stderr=subprocess.PIPE, text=True)
    wait_for_steps(tmp_path / "run", 8)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2, errors
    assert re.match(r"error: .* step \d+", errors.splitlines()[-1])
    assert errors.count("--resume") == 1
    _, running = psutil.wait_procs(children, timeout=30)  # multiprocessing has one more, which ends after its parent
    assert not running
    before = losses(tmp_path / "run")
    assert len(before) < 200
    resumed = world.run(*words, "--resume")
    assert resumed["steps"] == 200
    assert losses(tmp_path / "run")[: len(before)] == before


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "count"), [("workers", 1), ("processes", 2)])
def test_a_run_that_lost_a_process_is_resumed(world: World, tmp_path: Path, setting: str, count: int) -> None:
    several = ("train.checkpoint_every=0.1", f"train.{setting}={count}")
    words = [*pretraining(world, "train.budget.steps=150", *several), "--out"]
    world.run(*words, tmp_path / "whole")
    run = tmp_path / "run"
    process = subprocess.Popen(command(*words, run), stderr=subprocess.PIPE, text=True)
    wait_for_steps(run, 8)
    children = psutil.Process(process.pid).children(recursive=True)
    of_training = [child for child in children if "resource_tracker" not in " ".join(child.cmdline())]
    assert len(of_training) == count
    of_training[-1].kill()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2, errors
    (error,) = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert "--resume" in error
    assert "Traceback" not in errors
    assert not psutil.wait_procs(children, timeout=30)[1]
    assert len(losses(run)) < 150
    world.run(*words, run, "--resume")  # refused if a lock is left
    assert losses(run) == losses(tmp_path / "whole")
    weights = [folder / "model" / "model.safetensors" for folder in (run, tmp_path / "whole")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert not list(run.rglob(".tmp-*"))


def wait_for_steps(run: Path, count: int) -> None:
    metrics, deadline = run / "metrics.jsonl", time.monotonic() + 300
    while time.monotonic() < deadline and (not metrics.exists() or metrics.read_text().count('"step"') < count):
        time.sleep(0.01)


def test_what_cannot_work_is_refused(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = ("--out", tmp_path / "out")
    assert_refused("processes=7 .*batch_size=6", *pretraining(world, "train.processes=7"), *out)
    limited = pretraining(world, "train.processes=2", "train.budget.memory=9GB")
    assert_refused(r"train\.budget\.memory .*one process", *limited, *out)
    streamed = ("pretrain", "lstm-mini", f"data.corpus={world.corpus}", "train.processes=2")
    assert_refused("stateful_clm .*1 process.* 2", *streamed, *out)
    monkeypatch.setattr(processes, "best_device", lambda: torch.device("cuda"))
    assert_refused(r"train\.processes=2 .*CPUs", *pretraining(world, "train.processes=2"), *out)
    assert not (tmp_path / "out").exists()


def test_no_processes_are_started_within_others(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig(processes=2)
    assert processes.processes_to_start(config) == 2
    assert processes.processes_to_start(TrainConfig(processes="auto")) == 1
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert processes.processes_to_start(config) == 1


@pytest.mark.slow
def test_a_plan_is_of_one_process() -> None:
    recipe = load_recipe("electra-tiny", ["model.vocab_size=499", "data.max_length=31", "train.batch_size=4"])
    train = recipe.train.model_copy(update={"processes": 2})
    alone = plan(recipe, steps=3)["warnings"]
    (warning,) = set(plan(recipe.model_copy(update={"train": train}), steps=3)["warnings"]).difference(alone)
    assert "one process" in warning
