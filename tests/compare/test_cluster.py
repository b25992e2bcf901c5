import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from comparing import comparison, records

from homespun.compare import cluster
from homespun.compare.cluster import Cluster
from homespun.compare.folder import open_records
from homespun.compare.runner import Runner
from homespun.compare.trials import trials
from homespun.report.console import Display

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    tests = str(Path(__file__).parent)
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])}},
    )
    yield
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray's own processes and files
def test_trials_run_as_tasks_of_a_cluster(two_workers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fake_on_ray

    monkeypatch.setattr(cluster, "run_command", fake_on_ray.run_command)
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
    runner = Runner(tmp_path, recipe, executor, Display(json=True), report=lambda folder: folder, started=0.0)
    runner.add(open_records(tmp_path, recipe, trials(recipe)))
    runner.run()
    found = records(tmp_path)
    assert [found[f"{name}/seed-0"]["status"] for name in names] == ["done", "failed", "failed", "done"]
    assert found["bad/seed-0"]["why"] == "the corpus is empty; give another"
    assert found["memory/seed-0"]["why"].startswith("killed by SIGKILL")
    assert found["other/seed-0"]["inference"][0]["length"] == 17
    assert all(stage["processor_seconds"] > 0 for stage in found["good/seed-0"]["stages"].values())
    workers = {p.read_text() for p in tmp_path.rglob("worker-*.txt")}
    assert len(workers) == 2  # two processes took part
