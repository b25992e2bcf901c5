"""Runs in processes of their own: killed, interrupted, shared by two."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file
from training_parts import Objective, events, make_trainer, train_config, without_clock

from homespun.errors import UserError
from homespun.training.config import Budget
from homespun.training.processes import Interruption
from homespun.training.trainer import Interrupted

SCRIPT = str(Path(__file__).with_name("training_script.py"))
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}


def start(folder: Path, steps: int, *, dropout: float = 0.2, pause: float = 0.0, **environment: str):
    arguments = [sys.executable, SCRIPT, str(folder), str(steps), str(dropout), str(pause)]
    return subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT | environment
    )


def wait_for(process, line: str) -> None:
    for printed in process.stdout:
        if printed.strip() == line:
            return
    pytest.fail(f"no {line!r}: {process.stderr.read()}")


def in_this_process(path: Path, steps: int, **changes):
    config = train_config(budget=Budget(steps=steps), checkpoint_every=1e-9, validate_every=0.2, **changes)
    torch.manual_seed(5)
    return make_trainer(path, config, objective=Objective(0.2), resume=True)


def signal_at(number: int, what: signal.Signals, trainer) -> None:
    for step in trainer:
        if step.number == number:
            os.kill(os.getpid(), what)


def last_weights(path: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(path / "checkpoints" / f"step-{step}" / "model.safetensors")


@pytest.mark.slow
def test_killed_and_resumed_is_never_interrupted(tmp_path):
    list(in_this_process(tmp_path / "whole", 40))
    with start(tmp_path / "killed", 40, pause=0.005) as process:
        wait_for(process, "12")
        process.kill()
    assert 0 < len(events(tmp_path / "killed", "step")) < 40
    list(in_this_process(tmp_path / "killed", 40))
    assert without_clock(events(tmp_path / "killed", "step")) == without_clock(events(tmp_path / "whole", "step"))
    uninterrupted, killed = (last_weights(tmp_path / name, 40) for name in ("whole", "killed"))
    assert all(torch.equal(uninterrupted[name], killed[name]) for name in uninterrupted)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_is_saved_and_names_resume(tmp_path, number):
    trainer = in_this_process(tmp_path, 40)
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match=r"step 9.*--resume"):
        signal_at(9, number, trainer)
    assert signal.getsignal(number) is before
    assert events(tmp_path, "end")[0]["reason"] == "interrupted"
    assert trainer.run.latest_checkpoint().step == 9
    assert next(iter(in_this_process(tmp_path, 40))).number == 10


def test_an_interruption_before_the_first_step_leaves_a_run_that_begins(tmp_path):
    trainer = in_this_process(tmp_path, 3)
    take = trainer._begin

    def interrupted_begin():
        os.kill(os.getpid(), signal.SIGINT)
        return take()

    trainer._begin = interrupted_begin
    with pytest.raises(Interrupted, match="step 0"):
        list(trainer)
    assert len(list(in_this_process(tmp_path, 3))) == 3


def test_a_second_ctrl_c_stops_at_once():
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGINT)
        assert interruption.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_with_workers_is_interrupted_from_the_terminal_or_by_a_service(tmp_path, number):
    trainer = in_this_process(tmp_path, 40, workers=1)
    with pytest.raises(Interrupted):
        for step in trainer:
            if step.number == 3:  # another process sends it to all of them, workers first
                workers = psutil.Process().children()
                pids = [*(worker.pid for worker in workers), os.getpid()]
                subprocess.run(["kill", f"-{number.value}", *map(str, pids)], check=True)
                psutil.wait_procs(workers, timeout=0.3)
    plain = in_this_process(tmp_path / "plain", 40)
    losses = [step.loss for step, _ in zip(plain, range(3), strict=False)]
    assert [line["loss/total"] for line in events(tmp_path, "step")] == losses


@pytest.mark.parametrize(("processes", "error"), [(2, UserError), (1, RuntimeError)])
def test_a_survivor_of_another_process_names_resume(tmp_path, processes, error):
    trainer = in_this_process(tmp_path, 3)
    trainer.world_size = processes

    def lost(batches):
        raise RuntimeError("Connection closed by peer [127.0.0.1]:4711")

    trainer._step = lost
    with pytest.raises(error, match="--resume" if processes == 2 else "peer"):
        list(trainer)


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path):
    config = train_config(budget=Budget(steps=6), checkpoint_every=1e-9, validate_every=0.2)
    torch.manual_seed(5)
    list(make_trainer(tmp_path / "one", config, objective=Objective(0.0)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        start(tmp_path / "two", 6, dropout=0.0, RANK=str(rank), LOCAL_RANK=str(rank), **common) for rank in range(2)
    ]
    outputs = []
    for process in processes:
        with process:
            output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        *_, norm, threads = output.splitlines()
        outputs.append(norm)
        assert threads.startswith("threads")
        assert "gloo" not in threads  # which may abort a process at its end
    assert outputs[0].startswith("rank 0 of 2")
    assert outputs[0].partition("norm")[2] == outputs[1].partition("norm")[2]
    one, two = (events(tmp_path / name, "step") for name in ("one", "two"))
    assert [line["tokens"] for line in two] == [line["tokens"] for line in one]
    assert [line["loss/total"] for line in two] == pytest.approx([line["loss/total"] for line in one], rel=1e-6)
    assert [line["loss/token_accuracy"] for line in two] == [line["loss/token_accuracy"] for line in one]
    a, b = (last_weights(tmp_path / name, 6) for name in ("one", "two"))
    for name in a:
        torch.testing.assert_close(b[name], a[name], rtol=0, atol=1e-6)
    alone = in_this_process(tmp_path / "two", 7)
    assert len(list(alone)) == 1
    assert alone.loader.micro_batch_size == 6  # the larger share of 11 rows: a forward pass takes the same memory
    assert alone.loader.batch_size == 11
