"""A comparison killed at any moment and resumed equals an uninterrupted one, except for times."""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import killed
import pytest
from comparing import records

from homespun.compare.sharing import Baselines
from homespun.io.lock import LOCK

pytestmark = pytest.mark.slow
CONTEXT = multiprocessing.get_context("forkserver")
TIMES = {"time", "seconds", "tokens/s", "seconds per iteration", "peak memory, training", "peak memory, inference"}
_PATIENCE = 300  # seconds; what hangs fails all the same
MEASURED = {"latency", "inference-memory", "crossovers-latency", "crossovers-memory"}


def start_process(target: Callable[..., Any], *arguments: object) -> Any:
    process = CONTEXT.Process(target=target, args=arguments)
    process.start()
    return process


def killed_by(process: Any) -> bool:
    process.join(_PATIENCE)
    return bool(process.exitcode == -signal.SIGKILL)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One that was never interrupted, and one killed in a trial, between two, and in its report."""
    CONTEXT.set_forkserver_preload(["killed"])
    folder = tmp_path_factory.mktemp("killed")
    (folder / "once").mkdir()
    once, again = folder / "once" / "runs", folder / "runs"
    uninterrupted = start_process(killed.run_comparison, once)
    runner = start_process(killed.run_comparison, again)
    checkpoint = again / "trials/good/seed-0/topics/checkpoint.json"
    deadline = time.monotonic() + _PATIENCE
    while not checkpoint.is_file() and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(runner.pid, signal.SIGKILL)
    assert killed_by(runner)
    assert records(again)["good/seed-0"]["status"] == "running"
    assert killed_by(start_process(killed.until_done, again, "poor/seed-0"))
    states = {name: record["status"] for name, record in records(again).items()}
    assert states == {"good/seed-0": "done", "poor/seed-0": "done", "good/seed-1": "waiting", "poor/seed-1": "waiting"}
    assert killed_by(start_process(killed.until_page, again))
    last = start_process(killed.run_comparison, again)
    for process in (last, uninterrupted):
        process.join(_PATIENCE)
        assert process.exitcode == 0
    return once, again


def results(folder: Path) -> dict[str, Any]:
    """Of every stage, without what it took."""
    found = {str(path.relative_to(folder)): json.loads(path.read_text()) for path in folder.rglob("result.json")}
    for content in found.values():
        for key in ("seconds", "tokens_per_second", "peak_bytes"):
            content.pop(key, None)
    return found


def tables(folder: Path) -> dict[str, Any]:
    content = json.loads((folder / "comparison.json").read_text())
    for name, table in content["tables"].items():
        hidden = [i for i, title in enumerate(table["columns"]) if title in TIMES]
        for row in table["rows"]:
            for column in hidden if name not in MEASURED else range(1, len(row)):
                row[column] = None
    return {name: table for name, table in content["tables"].items() if not name.startswith("crossovers")}


def test_what_was_cut_off_went_on_from_its_checkpoint(folders: tuple[Path, Path]) -> None:
    _, again = folders
    calls = {str(path.parent.relative_to(again)): path.read_text().splitlines() for path in again.rglob("calls.txt")}
    first, second = calls.pop("trials/good/seed-0/topics")
    assert first == "from 0"
    assert int(second.removeprefix("from ")) > 0
    assert set(map(tuple, calls.values())) == {("from 0",)}  # nothing else was trained twice
    assert len(calls) == 2 * 2 * 2 - 1
    lines = (again / "trials/good/seed-0/topics/metrics.jsonl").read_text().splitlines()
    steps = [event["step"] for event in map(json.loads, lines) if event["event"] == "step"]
    assert steps == list(range(1, 31))


def test_its_results_are_the_same(folders: tuple[Path, Path]) -> None:
    once, again = folders
    assert results(again) == results(once)
    assert len(results(once)) == 2 * 2 * 2 + 1
    predictions = sorted(path.relative_to(once) for path in once.rglob("predictions/*.jsonl"))
    assert len(predictions) == 2 * 2 + 1
    for path in predictions:
        assert (again / path).read_bytes() == (once / path).read_bytes()


def test_its_report_is_the_same(folders: tuple[Path, Path]) -> None:
    once, again = folders
    assert tables(again) == tables(once)
    content, expected = (json.loads((folder / "comparison.json").read_text()) for folder in (again, once))
    for key in ("trials", "tasks", "advice", "notices"):
        assert content[key] == expected[key]
    assert expected["tasks"]["topics"]["best"] == "good"
    assert [c["alike"] for c in expected["tasks"]["topics"]["contenders"]] == [True, False, False]
    reports = [{str(p.relative_to(f)) for p in (f / "report").rglob("*") if p.is_file()} for f in (once, again)]
    optional = {name for name in set.union(*reports) if "crossovers" in name}  # of what was measured by the clock
    assert reports[0] - optional == reports[1] - optional


def test_the_lock_of_killed_baselines_with_a_result_is_removed(tmp_path: Path) -> None:
    lock = tmp_path / "topics" / LOCK
    lock.parent.mkdir()
    lock.touch()
    Baselines(tmp_path)
    assert not lock.exists()
