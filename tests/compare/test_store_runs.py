"""Comparisons whose runs are in a store: killed workers, a lost folder, and stores that cannot be used."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import killed
import pytest
from comparing import comparison, records
from failing_store import UNIT, Failing, contents, restored
from fsspec.registry import known_implementations

from homespun import cli
from homespun.compare import cluster
from homespun.compare import comparison as comparison_module
from homespun.compare.executor import Command, LocalExecutor
from homespun.compare.progress import share_of_run
from homespun.compare.store import Store
from homespun.errors import UserError


def losses(run: Path) -> list[float]:
    events = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [event["loss"] for event in events if event["event"] == "step"]


def start_worker(scratch: Path, store: Store, pause: str) -> "subprocess.Popen[bytes]":
    scratch.mkdir()
    script = Path(__file__).with_name("store_worker.py")
    return subprocess.Popen([sys.executable, str(script), str(scratch), store.url, str(store.out), pause, UNIT])


def test_a_killed_worker_resumes_in_another_folder(tmp_path: Path) -> None:
    stores = [Store(f"file://{tmp_path}/{name}", tmp_path / "nowhere") for name in ("killed", "once")]
    lost = start_worker(tmp_path / "lost", stores[0], "0.05")
    while "/checkpoint.json" not in manifest_of(stores[0]) and lost.poll() is None:
        time.sleep(0.01)
    lost.kill()
    assert lost.wait() == -signal.SIGKILL
    assert any((tmp_path / "lost").iterdir())
    shutil.rmtree(tmp_path / "lost", ignore_errors=True)  # its training may still write there
    workers = [start_worker(tmp_path / f"scratch-{number}", store, "0") for number, store in enumerate(stores)]
    assert [worker.wait() for worker in workers] == [0, 0]
    resumed, once = (tmp_path / f"copy-{number}" for number in range(2))
    for folder, store in zip((resumed, once), stores, strict=True):
        restored(store, folder)
    assert losses(resumed / UNIT) == losses(once / UNIT)
    assert len(losses(once / UNIT)) == 30
    first, second = (resumed / UNIT / "calls.txt").read_text().splitlines()
    assert first == "from 0"
    assert int(second.removeprefix("from ")) >= 6
    assert not any(tmp_path.glob("scratch-*/*"))  # temporary folders are removed
    assert not stores[0].out.exists()


def manifest_of(store: Store) -> str:
    for path in Path(store.url.removeprefix("file://"), UNIT).glob("*/manifest-*.json"):
        with suppress(FileNotFoundError):  # superseded
            return path.read_text()
    return ""


class Here:
    """Ray whose tasks run at once, in this process."""

    class exceptions:
        class RayError(Exception):
            pass

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.most = 100

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 1.0}}]

    def remote(self, **_: object) -> Callable[[Callable[..., object]], Any]:
        def submit(function: Callable[..., object]) -> Any:
            def run(arguments: list[str], *others: object) -> object:
                if len(self.commands) == self.most:
                    raise UserError("the cluster is lost")
                self.commands.append(arguments[0])
                return function(arguments, *others)

            return SimpleNamespace(remote=run)

        return submit

    def wait(self, references: list[object], timeout: float) -> tuple[list[object], list[object]]:
        return references, []

    def get(self, reference: object) -> object:
        return reference


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Here:
    ray = Here()
    monkeypatch.setattr(cluster, "connect", lambda: ray)
    monkeypatch.setattr(cluster, "START", killed.START)
    monkeypatch.setattr(cluster, "_PUBLISH", 0.02)
    monkeypatch.setattr(comparison_module, "check", lambda *_: [])
    monkeypatch.setattr(comparison_module, "LocalExecutor", partial(LocalExecutor, start=killed.START))
    monkeypatch.setattr("homespun.report.comparison.write_comparison", lambda out: out / "report")
    monkeypatch.setenv("FAKE_PAUSE", "0")
    return ray


RECIPE = comparison(
    pretrain={"recipe": "any", "settings": {"train.batch_size": 7}},
    finetune={"topics": {"recipe": "classify"}},
    variations={"good": {}, "poor": {"finetune": {"train.batch_size": 5}}},  # they share the pretraining
    budget={"steps": 30},
    seeds=1,
    benchmark={"lengths": [17, 19]},
)


def test_the_folder_of_the_comparison_is_complete_and_restored_from_the_store(
    here: Here, store: Store, tmp_path: Path
) -> None:
    run_comparison = partial(comparison_module.run_comparison, RECIPE)
    run_comparison(tmp_path / "alone")
    result = run_comparison(store.out, on_ray=True, store=store.url)
    assert result["done"] == 2
    assert sorted(here.commands) == ["baselines", "benchmark", "benchmark", "finetune", "finetune", "pretrain"]
    assert contents(store.out).keys() == contents(tmp_path / "alone").keys()
    for name, content in contents(store.out).items():
        if name.endswith(("predictions/model.jsonl", "predictions/majority.jsonl")):
            assert content == (tmp_path / "alone" / name).read_bytes()
    before = contents(store.out)
    shutil.rmtree(store.out)
    here.commands.clear()
    assert run_comparison(store.out, on_ray=True, store=store.url)["done"] == 2
    assert here.commands == []
    assert records(store.out)["poor/seed-0"]["seconds"] > 0
    for name, content in contents(store.out).items():
        if not name.endswith("trial.json"):  # its overhead has grown
            assert content == before[name]


def test_a_running_stage_is_downloaded_for_the_progress(
    here: Here, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cluster, "_REFRESH", 0.0)
    monkeypatch.setattr(here, "wait", lambda references, timeout: ([], references))
    store.out.mkdir()
    run = store.out / UNIT
    arguments = ("pretrain", "any", "train.batch_size=7", "--out", str(run), "--resume")
    command = Command(arguments, run.parent / "logs" / "pretrain.log", {}, tmp_path, 1)
    task = cluster.Cluster(store=store).start(command)
    assert task.poll() is None
    assert share_of_run(run) == 1.0
    monkeypatch.setattr(Store, "restore", refuse)
    assert task.poll() is None
    assert "the network is down" in caplog.text


def refuse(*_: object, **__: object) -> None:
    raise UserError("the network is down")


def test_a_stopped_comparison_goes_on_from_the_store(here: Here, store: Store) -> None:
    run_comparison = partial(comparison_module.run_comparison, RECIPE, store.out, on_ray=True, store=store.url)
    here.most = 2
    with pytest.raises(UserError, match="lost"):
        run_comparison()
    shutil.rmtree(store.out)
    here.most = 100
    run_comparison()
    assert sorted(here.commands) == ["baselines", "benchmark", "benchmark", "finetune", "finetune", "pretrain"]
    shutil.rmtree(store.out)
    for name in [name for name in Failing.store if "/comparison/" in name]:  # of a main process that was killed at once
        del Failing.store[name]
    here.commands.clear()
    run_comparison()
    runs = [path.parent for path in store.out.rglob("calls.txt")]
    assert [(run / "calls.txt").read_text() for run in runs] == ["from 0\nfrom 30\n"] * 3
    assert all(len(losses(run)) == 30 for run in runs)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--store", "failing://runs"], "add --ray"),
        (["--ray", "--store", "runs"], "s3://"),
        (["--ray", "--store", "nothing://runs"], "nothing"),
        (["--ray", "--store", "uninstalled://runs"], "install no_such_package"),
        (["--ray", "--store", "failing://runs"], os.strerror(errno.ENOSPC)),
    ],
)
def test_a_store_that_cannot_be_used_ends_the_command(
    here: Here,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    problem: str,
) -> None:
    uninstalled = {"class": "no_such_package.FileSystem", "err": "install no_such_package"}
    monkeypatch.setitem(known_implementations, "uninstalled", uninstalled)
    monkeypatch.setattr("homespun.compare.recipe.compare_recipe", lambda *_: RECIPE)
    Failing.left = 9  # the store is full during the first command
    monkeypatch.setattr(sys, "argv", ["homespun", "compare", "compare-small", "--out", str(store.out), *arguments])
    with pytest.raises(SystemExit) as ending:
        cli.main()
    assert ending.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert problem in line
    assert len(line) < 480
    assert here.commands == (["pretrain"] if Failing.left < 0 else [])
