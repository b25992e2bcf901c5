import getpass
import json
import logging
import os
import platform

import pytest
import torch
import yaml
from training_parts import events, train_config

from homespun.errors import UserError
from homespun.io.atomic import write_text
from homespun.training.config import Budget
from homespun.training.run import Run


def save(run: Run, step: int, *, score: float | None = None, keep: int = 2) -> None:
    state = {"step": step, "score": score, "metrics_bytes": run.sync_metrics()}
    run.save_checkpoint({"model": {"w": torch.full((3,), float(step))}}, state, keep=keep)


def steps(run: Run) -> list[str]:
    return sorted(entry.name for entry in (run.path / "checkpoints").iterdir())


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path / "run", train_config(), resume=False)


def test_a_new_run_has_its_config_and_environment(run):
    assert yaml.safe_load((run.path / "config.yaml").read_text()) == train_config().model_dump(mode="json")
    text = (run.path / "environment.json").read_text()
    assert {"python", "packages", "cpu", "cores", "memory_bytes", "gpus", "commit"} <= json.loads(text).keys()
    for private in (platform.node(), os.getcwd(), os.path.expanduser("~"), f'"{getpass.getuser()}"'):
        assert private not in text


def test_a_run_is_not_overwritten(run):
    with pytest.raises(UserError, match=r"holds a run.*--resume"):
        Run.create(run.path, train_config(), resume=False)
    run.write_result({"kind": "pretrain"})
    with pytest.raises(UserError, match="finished run"):
        Run.create(run.path, train_config(), resume=False)


def test_resuming_wants_the_same_config_and_names_what_differs(run):
    Run.create(run.path, train_config(), resume=True)
    with pytest.raises(UserError, match=r"seed .*0 .*3; validate_every .*0\.1 .*0\.5"):
        Run.create(run.path, train_config(seed=3, validate_every=0.5), resume=True)


def test_resuming_refuses_a_budget_below_what_is_used(run):
    progress = {"steps": 3, "tokens": 90, "seconds": 40.5}
    state = {"step": 3, "score": None, "metrics_bytes": run.sync_metrics(), "progress": progress}
    run.save_checkpoint({"model": {"w": torch.zeros(3)}}, state, keep=2)
    run.write_result({"kind": "pretrain"})
    for budget, message in [({"time": 20.0}, "time=20.* 40.5"), ({"steps": 2}, "steps=2 .* 3"), ({"tokens": 89}, "90")]:
        with pytest.raises(UserError, match=f"budget.*{message}"):
            Run.create(run.path, train_config(budget=Budget(**budget)), resume=True)
    assert (run.path / "result.json").is_file()
    assert yaml.safe_load((run.path / "config.yaml").read_text()) == train_config().model_dump(mode="json")
    for budget in (Budget(steps=4), Budget(time=41.0), Budget(epochs=0.1)):
        Run.create(run.path, train_config(budget=budget), resume=True)


def test_resume_without_a_run_starts_one(tmp_path):
    assert Run.create(tmp_path / "new", train_config(), resume=True).latest_checkpoint() is None


@pytest.mark.parametrize("resume", [False, True])
def test_other_folders_and_files_are_left_alone(tmp_path, resume):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="other files"):
        Run.create(tmp_path, train_config(), resume=resume)
    with pytest.raises(UserError, match="is a file"):
        Run.create(tmp_path / "thesis.tex", train_config(), resume=resume)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_empty_folder_becomes_a_run(tmp_path):
    Run.create(tmp_path, train_config(), resume=False)
    assert (tmp_path / "config.yaml").is_file()


@pytest.mark.parametrize("last", ["environment.json", "config.yaml"])
def test_a_run_killed_before_its_config_starts_again(tmp_path, monkeypatch, last):
    def killed(path, text):
        if path.name == last:
            raise KeyboardInterrupt
        write_text(path, text)

    with monkeypatch.context() as patched:
        for module in ("training.run", "io.json"):
            patched.setattr(f"homespun.{module}.write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            Run.create(tmp_path, train_config(), resume=False)
    assert (tmp_path / "checkpoints").is_dir()
    (tmp_path / "checkpoints" / "step-3").mkdir()
    with pytest.raises(UserError, match="other files"):
        Run.create(tmp_path, train_config(), resume=True)
    (tmp_path / "checkpoints" / "step-3").rmdir()
    assert Run.create(tmp_path, train_config(), resume=True).latest_checkpoint() is None
    assert (tmp_path / "config.yaml").is_file()


def test_processes_that_are_not_the_main_one_write_nothing(tmp_path):
    run = Run.create(tmp_path / "run", train_config(), resume=False, main=False)
    run.log("start", time=0.0)
    save(run, 1)
    run.rewind(None, keep=2)
    run.write_result({})
    assert not run.path.exists()


def test_metrics_are_json_even_where_figures_are_not_finite(run):
    run.log("step", time=1.23456, loss=float("nan"), losses={"a": float("inf")}, labels=("é", 2))
    text = (run.path / "metrics.jsonl").read_text(encoding="utf-8")
    assert text == '{"event": "step", "time": 1.235, "loss": null, "losses": {"a": null}, "labels": ["é", 2]}\n'


def test_the_last_checkpoints_and_the_best_are_kept(run):
    for step, score in [(1, -3.0), (2, -1.0), (3, None), (4, -2.0), (5, None)]:
        save(run, step, score=score)
    assert steps(run) == ["step-2", "step-4", "step-5"]
    assert run.best_checkpoint().step == 2
    assert run.latest_checkpoint().step == 5
    assert run.latest_checkpoint().tensors("model")["w"].tolist() == [5.0] * 3


def test_of_equally_good_checkpoints_the_first_is_the_best(run):
    for step in (1, 2, 3):
        save(run, step, score=0.5, keep=5)
    assert run.best_checkpoint().step == 1


def test_without_a_validation_the_last_checkpoint_is_the_best(run):
    assert run.best_checkpoint() is None
    save(run, 1)
    save(run, 2)
    assert run.best_checkpoint().step == 2


def damage(kind: str, folder) -> None:
    if kind == "missing":
        (folder / "model.safetensors").unlink()
        return
    path = folder / ("state.json" if "state" in kind else "model.safetensors")
    data = bytearray(path.read_bytes())
    if "cut" in kind:
        data = data[:-2]
    else:
        data[-4] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("cut", "model.safetensors was cut short"),
        ("altered", "model.safetensors was altered"),
        ("missing", "model.safetensors is missing"),
        ("cut state", "state.json is missing or cut short"),
        ("altered state", "state.json"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_taken(run, caplog, kind, message):
    save(run, 3)
    save(run, 7, score=1.0)
    damage(kind, run.path / "checkpoints" / "step-7")
    with caplog.at_level(logging.WARNING):
        assert run.latest_checkpoint().step == 3
        assert run.best_checkpoint().step == 3
    assert message in caplog.text
    damage(kind, run.path / "checkpoints" / "step-3")
    with pytest.raises(UserError, match=r"no checkpoint"):
        run.latest_checkpoint()


def test_a_changed_number_in_the_state_is_noticed(run):
    save(run, 3)
    path = run.path / "checkpoints" / "step-3" / "state.json"
    path.write_text(path.read_text().replace('"step": 3', '"step": 4'))
    with pytest.raises(UserError, match=r"state\.json"):
        run.latest_checkpoint()


def test_a_checkpoint_half_written_is_none(run, monkeypatch):
    save(run, 3)

    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("homespun.io.atomic.os.replace", killed)
        with pytest.raises(KeyboardInterrupt):
            save(run, 7)
    assert steps(run) == ["step-3"]
    (run.path / "checkpoints" / ".tmp-11-step-7").mkdir()  # of a process that was killed
    checkpoint = run.latest_checkpoint()
    assert checkpoint.step == 3
    run.rewind(checkpoint, keep=2)
    assert steps(run) == ["step-3"]
    save(run, 7)
    assert run.latest_checkpoint().step == 7


def test_rewinding_cuts_the_metrics_to_what_they_were(run):
    run.log("step", time=0.1, step=1)
    save(run, 1)
    run.log("step", time=0.2, step=2)
    save(run, 2)
    run.log("end", time=0.2)
    damage("cut", run.path / "checkpoints" / "step-2")
    run.rewind(run.latest_checkpoint(), keep=2)
    assert [line["step"] for line in events(run.path)] == [1]
    assert steps(run) == ["step-1"]
    run.rewind(None, keep=2)
    assert events(run.path) == []
    assert steps(run) == []


def test_checkpoints_hold_no_pickle(run):
    save(run, 1)
    for path in (run.path / "checkpoints" / "step-1").iterdir():
        if path.suffix == ".json":
            json.loads(path.read_bytes())
            continue
        assert path.suffix == ".safetensors"
        header = int.from_bytes(path.read_bytes()[:8], "little")
        json.loads(path.read_bytes()[8 : 8 + header])


def test_a_failed_result_leaves_the_old_one(run):
    run.write_result({"accuracy": 0.5})
    with pytest.raises(ValueError, match="object"):
        run.write_result({"accuracy": object()})
    assert json.loads((run.path / "result.json").read_text()) == {"accuracy": 0.5}


def test_rewinding_removes_old_checkpoints_that_a_killed_process_left(run):
    for step in (1, 2, 3):
        save(run, step, keep=50)
    run.rewind(run.latest_checkpoint(), keep=2)
    assert steps(run) == ["step-2", "step-3"]
