"""Sharded training: the losses and weights of one process, and checkpoints for any number of processes."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from launch_targets import train_sharded
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import nn
from training_parts import Objective, events, make_trainer, sharded_config, train_config

from homespun.errors import UserError
from homespun.models.bundle import weights_of
from homespun.training.checkpoint import read_checkpoint
from homespun.training.processes import launch
from homespun.training.step import TrainingStep


def losses(run: Path) -> list[float]:
    return [line["loss/total"] for line in events(run) if line["event"] in ("step", "validation")]


@pytest.mark.slow
def test_shards_train_as_one_process_and_resume_in_any_number(tmp_path: Path) -> None:
    for name in ("plain", "bf16"):
        train_sharded(tmp_path / "one", {name: 7})
    train_sharded(tmp_path / "several", {"from one": 4})
    launch(2, train_sharded, tmp_path / "several", {"plain": 7, "bf16": 7, "from one": 7, "to one": 4})
    launch(3, train_sharded, tmp_path / "several", {"to three": 4})
    saved = tmp_path / "several" / "to three" / "checkpoints" / "step-4"
    assert {path.relative_to(saved).parts[0] for path in saved.rglob("*.*")} == {"model", "optimizer", "state.json"}
    assert len(list(saved.rglob("*.safetensors"))) == 6
    shutil.copytree(saved, tmp_path / "damaged")
    next(iter((tmp_path / "damaged/model").iterdir())).unlink()
    with pytest.raises(UserError, match=r"model/shard-\S+ is missing: the checkpoint is incomplete"):
        read_checkpoint(tmp_path / "damaged")
    train_sharded(tmp_path / "several", {"to one": 7, "to three": 7})
    for name in ("plain", "from one", "to one", "to three"):
        assert losses(tmp_path / "several" / name) == pytest.approx(losses(tmp_path / "one/plain"), rel=1e-5)
    expected, found = (load_file(tmp_path / name / "plain/model.safetensors") for name in ("one", "several"))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert losses(tmp_path / "several/bf16") == pytest.approx(losses(tmp_path / "one/bf16"), rel=5e-3)
    assert losses(tmp_path / "one/bf16") != pytest.approx(losses(tmp_path / "one/plain"), rel=1e-5)


def test_shards_of_one_process_are_an_ordinary_training(tmp_path: Path) -> None:
    objective = Objective()
    trainer = make_trainer(tmp_path, sharded_config("plain"), objective=objective)
    assert len(list(trainer)) == 7
    assert type(objective) is Objective
    assert all(type(parameter) is nn.Parameter for parameter in objective.parameters())
    assert weights_of(objective).keys() == trainer.run.latest_checkpoint().tensors("model").keys()


def test_a_parameter_of_one_number_is_refused(tmp_path: Path) -> None:
    objective = Objective()
    objective.scale = nn.Parameter(torch.ones(()))
    with pytest.raises(UserError, match="cannot shard scale"):
        make_trainer(tmp_path, sharded_config("plain"), objective=objective)


@pytest.mark.parametrize(
    "changes",
    [{"optimizer": {"kind": "soap"}}, {"optimizer": {"kind": "adafactor"}}, {"precision": "fp16"}, {"compile": True}],
)
def test_settings_that_cannot_be_sharded_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="parallel=fsdp"):
        train_config(parallel="fsdp", **changes)
    train_config(**changes)


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[Path], None]]:
    """Writers that steps call for their shards, one for each save; the tensors are those of the time of the save."""
    made: list[Callable[[Path], None]] = []

    def shards_writer(step: TrainingStep) -> Callable[[Path], None]:
        tensors = {
            name: {key: t.detach().clone() for key, t in group.items()} for name, group in step.tensors().items()
        }
        hook = made.pop(0) if made else lambda folder: None

        def write(folder: Path) -> None:
            hook(folder)
            folder.mkdir()
            for name, group in tensors.items():
                save_file(group, folder / f"{name}.safetensors")

        return write

    monkeypatch.setattr(TrainingStep, "shards_writer", shards_writer)
    return made


def saved_steps(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").glob("step-*"))


def test_training_goes_on_while_shards_are_written(tmp_path: Path, writers: list[Callable[[Path], None]]) -> None:
    config = train_config(checkpoint_every=3.0)
    expected = list(make_trainer(tmp_path / "expected", config, clock=lambda: 0.0))
    go, seconds = threading.Event(), iter(range(1000))
    writers.append(lambda folder: go.wait(60))
    trainer = make_trainer(tmp_path / "run", config, clock=lambda: float(next(seconds)))
    found = []
    for step in trainer:
        found.append(step.loss)
        if step.number == 2:
            assert trainer._saved  # a save has started
            assert saved_steps(tmp_path / "run") == []
            go.set()
        if step.number == 5:
            break
    last = saved_steps(tmp_path / "run")[-1]
    assert last == "step-5"
    state = read_checkpoint(tmp_path / "run" / "checkpoints" / last).state
    assert len((tmp_path / "run" / "metrics.jsonl").read_bytes()) > state["metrics_bytes"] > 0
    found += [step.loss for step in make_trainer(tmp_path / "run", config, resume=True)]
    assert found == [step.loss for step in expected]


def test_an_error_of_writing_ends_the_training(tmp_path: Path, writers: list[Callable[[Path], None]]) -> None:
    def full(folder: Path) -> None:
        raise UserError("cannot write the checkpoint")

    seconds = iter(range(1000))
    writers.append(full)
    trainer = make_trainer(tmp_path / "run", train_config(checkpoint_every=3.0), clock=lambda: float(next(seconds)))
    with pytest.raises(UserError, match="cannot write the checkpoint"):
        list(trainer)
    assert saved_steps(tmp_path / "run") == []
    writers.append(full)  # of the last step
    trainer = make_trainer(tmp_path / "last", train_config(checkpoint_every=1e9))
    with pytest.raises(UserError, match="cannot write the checkpoint"):
        list(trainer)
