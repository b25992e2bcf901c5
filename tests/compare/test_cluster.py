import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import killed
import pytest
from comparing import comparison, records

from homespun.compare import cluster
from homespun.compare.cluster import Cluster, run_command
from homespun.compare.executor import Command, Executor, LocalExecutor, Outcome, Running
from homespun.compare.folder import open_records
from homespun.compare.recipe import CompareRecipe
from homespun.compare.runner import Runner
from homespun.compare.store import Store
from homespun.compare.trials import trials
from homespun.errors import UserError
from homespun.io.lock import PATIENCE
from homespun.report.console import Display

_FAST = {"health_check_period_ms": 300, "health_check_failure_threshold": 3, "health_check_initial_delay_ms": 0}


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two nodes of one processor, on this machine, whose stages are not trainings."""
    ray = pytest.importorskip("ray")
    import fake_on_ray  # imports Ray
    from ray.cluster_utils import Cluster as Nodes

    monkeypatch.setattr(cluster, "run_command", fake_on_ray.run_command)
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": _FAST})
    try:
        nodes.add_node(num_cpus=1)
        nodes.scratch = tmp_path_factory.mktemp("scratch")
        variables = {"PYTHONPATH": path, "FAKE_PAUSE": "0.2", "FAKE_SCRATCH": str(nodes.scratch)}
        environment = {"env_vars": variables}
        ray.init(address=nodes.address, log_to_driver=False, logging_level="error", runtime_env=environment)
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()


def compare(
    out: Path, recipe: CompareRecipe, executor: Executor, feed: Callable[[], bool] = lambda: False
) -> dict[str, dict[str, Any]]:
    out.mkdir(exist_ok=True)
    runner = Runner(out, recipe, executor, Display(json=True), report=lambda folder: folder, started=0.0)
    runner.add(open_records(out, recipe, trials(recipe)))
    runner.run(feed)
    return records(out)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray's own processes and files
def test_trials_run_as_tasks_of_a_cluster(two_nodes: Any, tmp_path: Path) -> None:
    names = ("good", "bad", "memory", "other")
    recipe = comparison(
        pretrain={"recipe": "good"},
        finetune={"topics": {}},
        variations={name: {"pretrain": {"recipe": name}} for name in names},
        seeds=1,
        benchmark={"lengths": [17]},
    )
    executor = Cluster(2)
    assert executor.slots == 2
    found = compare(tmp_path, recipe, executor)
    assert [found[f"{name}/seed-0"]["status"] for name in names] == ["done", "failed", "failed", "done"]
    assert found["bad/seed-0"]["why"] == "the corpus is empty; give another"
    assert found["memory/seed-0"]["why"].startswith("killed by SIGKILL")
    assert found["other/seed-0"]["inference"][0]["length"] == 17
    assert all(stage["processor_seconds"] > 0 for stage in found["good/seed-0"]["stages"].values())
    assert len({path.read_text() for path in tmp_path.rglob("worker-*.txt")}) == 2  # nodes


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray's own processes and files
def test_a_trial_has_several_gpus_of_one_node(two_nodes: Any) -> None:
    with pytest.raises(UserError, match=r"gpus_per_trial=2, .* 0"):
        Cluster(gpus=2)
    two_nodes.add_node(num_cpus=3, num_gpus=2)
    assert Cluster(gpus=2)._resources()["num_gpus"] == 2
    with pytest.raises(UserError, match=r"gpus_per_trial=3, .* 2"):
        Cluster(gpus=3)


def losses(run: Path) -> list[float]:
    events = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [event["loss"] for event in events if event["event"] == "step"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray's own processes and files
@pytest.mark.parametrize("shared", [True, False], ids=["folder", "store"])
def test_a_trial_of_a_lost_worker_is_resumed(
    two_nodes: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, shared: bool
) -> None:
    names = ("first", "second", "third")
    recipe = comparison(
        pretrain={"recipe": "any", "settings": {"train.batch_size": 7}},
        variations={name: {"pretrain": {"train.batch_size": 11 + index}} for index, name in enumerate(names)},
        budget={"steps": 30},
        seeds=1,
    )
    runs = [tmp_path / "cluster/trials" / name / "seed-0/pretrain" for name in names]
    store = None if shared else Store(f"file://{tmp_path}/store", tmp_path / "cluster")
    executor = Cluster(store=store)
    sizes = [executor.slots]

    def has_checkpoint(run: Path) -> bool:
        if shared:
            return (run / "checkpoint.json").is_file()
        for manifest in (tmp_path / "store" / run.relative_to(tmp_path / "cluster")).glob("*/manifest-*.json"):
            with suppress(FileNotFoundError):  # superseded
                return "/checkpoint.json" in manifest.read_text()
        return False

    def running() -> dict[str, int]:
        """Process of the worker of a trial that has a checkpoint, by node."""
        found = {}
        for run in runs:
            if has_checkpoint(run) and not (run / "result.json").is_file():
                last = max((run.parent / "logs").glob("worker-*.txt"), key=lambda path: path.stat().st_mtime)
                found[last.read_text()] = int(last.stem.removeprefix("worker-"))
        return found

    def disturb() -> Iterator[bool]:
        """Remove the second node while it runs a trial, add a node, and kill a worker."""
        (node,) = two_nodes.worker_nodes
        while node.node_id not in running():
            yield True
        lost = running()[node.node_id]
        two_nodes.remove_node(node, allow_graceful=False)
        shutil.rmtree(two_nodes.scratch / str(lost), ignore_errors=True)  # its process may still write there
        while executor.slots == 2:
            yield True
        sizes.append(executor.slots)
        two_nodes.add_node(num_cpus=1)
        sizes.append(executor.slots)
        while not (workers := [pid for name, pid in running().items() if name != node.node_id]):
            yield True
        os.kill(workers[0], signal.SIGKILL)
        shutil.rmtree(two_nodes.scratch / str(workers[0]), ignore_errors=True)

    disturbing, deadline = disturb(), time.monotonic() + 200
    feed = lambda: time.monotonic() < deadline and next(disturbing, False)  # noqa: E731
    found = compare(tmp_path / "cluster", recipe, executor, feed)
    assert sizes == [2, 1, 2]
    assert {record["status"] for record in found.values()} == {"done"}
    compare(tmp_path / "alone", recipe, LocalExecutor(1, start=killed.START))
    for run in runs:
        alone = tmp_path / "alone" / run.relative_to(tmp_path / "cluster")
        assert losses(run) == losses(alone)
        assert (alone / "calls.txt").read_text() == "from 0\n"
    resumed = [call for run in runs for call in (run / "calls.txt").read_text().splitlines() if call != "from 0"]
    assert resumed  # once, if a worker was killed before its stage had started again
    assert caplog.text.count("another one resumes") == 2


class FakeRay:
    """A cluster of one live node; each task has the next outcome."""

    class exceptions:
        class RayError(Exception):
            cause: Exception | None = None

        class WorkerCrashedError(RayError):
            pass

        class NodeDiedError(RayError):
            pass

    def __init__(self, *outcomes: dict[str, object] | Exception) -> None:
        self.outcomes = iter(outcomes)
        self.calls: list[tuple[Any, ...]] = []

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 3.0}}, {"Alive": False, "Resources": {"CPU": 1.0}}]

    def remote(self, **options: object) -> Callable[..., Any]:
        assert options == {"num_cpus": 3, "num_gpus": 0, "max_retries": 0}

        class Task:
            @staticmethod
            def remote(*arguments: object) -> dict[str, object] | Exception:
                self.calls.append(arguments)
                return next(self.outcomes)

        return lambda function: Task

    def wait(self, references: list[object], timeout: float) -> tuple[list[object], list[object]]:
        return references, []

    def get(self, outcome: dict[str, object] | Exception) -> dict[str, object]:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def cancel(self, reference: object, force: bool) -> None:
        pass


DONE: dict[str, object] = {"why": None, "seconds": 7.0, "processor_seconds": 5.0}


def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: FakeRay) -> Running:
    monkeypatch.setattr(cluster, "connect", lambda: fake)
    assert Cluster().slots == 1
    return Cluster().start(Command(("pretrain", "any"), tmp_path / "logs" / "pretrain.log", {"A": "1"}))


def test_a_task_of_a_lost_machine_is_submitted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = FakeRay.exceptions
    fake = FakeRay(errors.WorkerCrashedError(), errors.NodeDiedError(), DONE)
    running = start(tmp_path, monkeypatch, fake)
    assert [running.poll(), running.poll(), running.poll()] == [None, None, Outcome(None, 7.0, 5.0)]
    assert [call[2] for call in fake.calls] == [{"A": "1"}, *[{"A": "1", PATIENCE: "120"}] * 2]
    fake = FakeRay(*[errors.NodeDiedError("the node died")] * 4)  # a stage that ends every worker
    running = start(tmp_path, monkeypatch, fake)
    assert [running.poll() for _ in range(3)] == [None] * 3
    assert running.poll() == Outcome("NodeDiedError of Ray: the node died")
    fake = FakeRay(errors.WorkerCrashedError("cancelled"))
    running = start(tmp_path, monkeypatch, fake)
    running.kill()
    assert running.poll() == Outcome("WorkerCrashedError of Ray: cancelled")


def test_workers_that_cannot_run_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="not 0; install one version"):
        run_command(["pretrain"], str(tmp_path / "log"), {}, str(tmp_path), 1, "0")
    with pytest.raises(UserError, match=r"does not see .* share"):
        run_command(["pretrain"], str(tmp_path / "log"), {}, str(tmp_path), 1, version("homespun"))
    for cause, problem in (
        (UserError("a worker has homespun 0"), "a worker has homespun 0"),
        (RuntimeError("ModuleNotFoundError: No module named 'homespun'"), "a worker has no homespun; install"),
    ):
        error = FakeRay.exceptions.RayError(str(cause))
        error.cause = cause
        with pytest.raises(UserError, match=problem):
            start(tmp_path, monkeypatch, FakeRay(error)).poll()
