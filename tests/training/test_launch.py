"""Several processes from one: what they are, how they fail, and that none is left over."""

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import launch_targets
import psutil
import pytest
import torch

from homespun.errors import NotFinite, UserError
from homespun.training.devices import DistributedContext
from homespun.training.processes import launch


def processes_of(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in folder.iterdir()]


def left_over(folder: Path, seconds: float = 30.0) -> list[int]:
    """The processes that still run after ``seconds``, and none as soon as all have ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        running = [number for number in processes_of(folder) if is_running(number)]
        if not running:
            return []
        time.sleep(0.1)
    return running


def is_running(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
def test_processes_join_a_group_and_share_the_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    environment = dict(os.environ)
    launch(2, launch_targets.write_context, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]
    assert {path.read_text() for path in tmp_path.iterdir()} == {"2 cpu 2"}
    assert dict(os.environ) == environment


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_the_error_of_any_process_is_raised(tmp_path: Path, rank: int) -> None:
    with pytest.raises(NotFinite, match=r"^the loss is not finite$"):
        launch(2, launch_targets.fail, tmp_path, rank, "user")
    assert not left_over(tmp_path)


@pytest.mark.slow
def test_a_bug_keeps_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)process 2 .*launch_targets.py.*ZeroDivisionError: a bug"):
        launch(2, launch_targets.fail, tmp_path, 1, "bug")
    assert not left_over(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_ends_the_others(tmp_path: Path, rank: int) -> None:
    with pytest.raises(UserError, match=rf"process {rank + 1} of 2 .*SIGKILL.*--resume"):
        launch(2, launch_targets.fail, tmp_path, rank, "killed")
    assert not left_over(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 1), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)]
)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere children outlive a parent that is killed")
def test_no_process_outlives_the_one_that_started_it(tmp_path: Path, number: signal.Signals, code: int) -> None:
    parent = multiprocessing.get_context("spawn").Process(target=launch_targets.launch_hanging, args=(tmp_path,))
    parent.start()
    deadline = time.monotonic() + 120
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(parent.pid, number)
    parent.join(60)
    assert parent.exitcode == code
    assert not left_over(tmp_path)


def test_restarts_with_the_addresses_of_ended_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.raises(UserError, match=r"--standalone .*TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        DistributedContext.join()
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")
    assert DistributedContext.join().is_main
