import json
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from comparing import FAKE, calls, change_record, comparison, records, run, runner_of

from homespun.commands.recipe import finetune_recipe
from homespun.commands.trials import baseline_settings
from homespun.compare import comparison as comparison_module
from homespun.compare import runner as runner_module
from homespun.compare.comparison import run_comparison
from homespun.compare.executor import Command, LocalExecutor, Process, last_object, reason, shares
from homespun.compare.folder import open_records
from homespun.compare.progress import seconds_left, share_of_run, share_of_trial
from homespun.compare.sharing import Baselines
from homespun.compare.trials import trials
from homespun.errors import UserError
from homespun.io.lock import locked

TASK = {"topics": {"recipe": "classify"}}


def of(*recipes: str, **more: Any) -> Any:
    """A comparison whose variations pretrain by these recipes."""
    tree = {"pretrain": {"recipe": "good"}, "finetune": TASK, "seeds": 1, "benchmark": None}
    return comparison(**tree | {"variations": {name: {"pretrain": {"recipe": name}} for name in recipes}} | more)


SHARED: dict[str, Any] = {"tuned": {}, "frozen": {"finetune": {"objective.frozen": True}}}
ADDED: dict[str, Any] = {"cnn": {"finetune": {"objective.head": {"kind": "cnn"}}}}


def pretrained(out: Path) -> list[str]:
    return [name for name in calls(out) if name.endswith("pretrain")]


def without_vectors(out: Path) -> None:
    """Records as they were before there were vectors."""
    for name, record in records(out).items():
        del record["stages"]["pretrain"]["vectors"]
        change_record(out, name, stages=record["stages"])


def test_failed_trial_is_reported_and_others_continue(tmp_path: Path) -> None:
    result = run(of("bad", "crash", "memory", "good"), tmp_path)
    found = {name.removesuffix("/seed-0"): record for name, record in records(tmp_path).items()}
    states = {name: (record["status"], record["stage"]) for name, record in found.items() if name != "good"}
    assert states == dict.fromkeys(("bad", "crash", "memory"), ("failed", "pretrain"))
    assert found["bad"]["why"] == "the corpus is empty; give another"
    assert found["crash"]["why"] == "ended with exit code 1: RuntimeError: 7 is not 11"
    assert re.search("SIGKILL.* memory", found["memory"]["why"])
    assert (result["trials"], result["done"], len(result["failed"])) == (4, 1, 3)
    assert found["good"]["status"] == "done"
    stages = found["good"]["stages"].values()
    for stage in stages:
        assert stage["finished"]
        assert stage["seconds"] > 0
        assert stage["processor_seconds"] > 0
    assert found["good"]["seconds"] == pytest.approx(sum(stage["seconds"] for stage in stages))


def test_what_is_finished_is_not_run_again(tmp_path: Path) -> None:
    recipe = of("bad", "good", benchmark={"lengths": [17]})
    run(recipe, tmp_path)
    trained = ["bad/seed-0/pretrain", "good/seed-0/pretrain", "good/seed-0/topics"]
    expected = ["baselines/topics", *(f"trials/{name}" for name in trained)]
    assert calls(tmp_path) == expected
    result = run(recipe, tmp_path)
    assert calls(tmp_path) == expected
    assert (result["done"], len(result["failed"])) == (1, 1)
    (measured,) = records(tmp_path)["good/seed-0"]["inference"]
    assert measured == {"length": 17, "batch_size": 1, "seconds_per_text": 0.5, "peak_bytes": 19}


def test_what_failed_is_run_again_only_when_asked(tmp_path: Path) -> None:
    recipe = of("second", "good")
    assert run(recipe, tmp_path)["done"] == 1
    assert run(recipe, tmp_path)["done"] == 1
    assert run(recipe, tmp_path, retry_failed=True)["done"] == 2
    assert records(tmp_path)["second/seed-0"]["why"] is None
    assert calls(tmp_path).count("trials/second/seed-0/pretrain") == 2
    assert calls(tmp_path).count("trials/good/seed-0/pretrain") == 1


def test_trials_with_equal_pretraining_share_one_run(tmp_path: Path) -> None:
    assert run(of(variations=SHARED, seeds=2), tmp_path, slots=2)["done"] == 4
    trials = tmp_path / "trials"
    assert pretrained(tmp_path) == [f"trials/tuned/seed-{seed}/pretrain" for seed in (0, 1)]
    assert len([name for name in calls(tmp_path) if name.endswith("topics")]) == 4 + 1  # and the baselines
    shared = records(tmp_path)["frozen/seed-1"]["stages"]["pretrain"]
    assert shared["shared_with"] == "tuned/seed-1"
    assert (trials / "frozen/seed-1" / shared["path"]).resolve() == trials / "tuned/seed-1/pretrain"
    words = (trials / "frozen/seed-1/topics/calls.txt").read_text()
    assert "objective.frozen=true" in words
    assert f"--from {trials}/frozen/seed-1/../../tuned/seed-1/pretrain" in words


def test_word_vectors_are_handed_on_and_part_what_is_shared(tmp_path: Path) -> None:
    glove = {"pretrain": {"vectors": "glove"}}
    recipe = of(variations={"drawn": {}, "begun": glove, "frozen": glove | SHARED["frozen"]})
    assert run(recipe, tmp_path)["done"] == 3
    found = records(tmp_path)
    assert "shared_with" not in found["begun/seed-0"]["stages"]["pretrain"]
    assert found["frozen/seed-0"]["stages"]["pretrain"]["shared_with"] == "begun/seed-0"
    assert "--vectors glove" in (tmp_path / "trials/begun/seed-0/pretrain/calls.txt").read_text()
    assert "--vectors" not in (tmp_path / "trials/drawn/seed-0/pretrain/calls.txt").read_text()
    without_vectors(tmp_path)
    with pytest.raises(UserError, match=r"None .*glove"):
        run(recipe, tmp_path)


def test_record_without_vectors_resumes(tmp_path: Path) -> None:
    run(of("good"), tmp_path)
    without_vectors(tmp_path)
    assert run(of("good"), tmp_path)["done"] == 1


def test_trial_reports_failed_shared_pretraining(tmp_path: Path) -> None:
    recipe = of(variations={"a": {}, "b": {}}, pretrain={"recipe": "bad"})
    run(recipe, tmp_path)
    why = records(tmp_path)["b/seed-0"]["why"]
    assert re.search("^a/seed-0.* the corpus is empty; give another$", why)


def test_added_variant_shares_finished_pretraining(tmp_path: Path) -> None:
    run(of(variations=SHARED), tmp_path)
    before = records(tmp_path)
    assert run(of(variations=ADDED | SHARED), tmp_path)["done"] == 3
    assert pretrained(tmp_path) == ["trials/tuned/seed-0/pretrain"]
    after = records(tmp_path)
    assert {name: after[name] for name in before} == before
    assert after["cnn/seed-0"]["stages"]["pretrain"]["shared_with"] == "tuned/seed-0"


def test_added_variant_shares_started_pretraining(tmp_path: Path) -> None:
    runner = runner_of(of(variations=SHARED), tmp_path)
    runner.step()
    while not (tmp_path / "trials/tuned/seed-0/pretrain/config.yaml").is_file():
        time.sleep(0.01)
    runner._kill()
    assert run(of(variations=ADDED | SHARED), tmp_path)["done"] == 3
    assert set(pretrained(tmp_path)) == {"trials/tuned/seed-0/pretrain"}


@pytest.mark.parametrize("lost", ["pretrain", ""])
def test_a_trial_whose_shared_pretraining_was_deleted_makes_its_own(tmp_path: Path, lost: str) -> None:
    run(of(variations=SHARED), tmp_path)
    shutil.rmtree(tmp_path / "trials/tuned/seed-0" / lost)
    change_record(tmp_path, "frozen/seed-0", status="waiting")  # of whatever came after
    variations = SHARED if lost else {"frozen": SHARED["frozen"]}
    assert run(of(variations=variations), tmp_path)["done"] == len(variations)
    shared = records(tmp_path)["frozen/seed-0"]["stages"]["pretrain"]
    assert (shared["path"], "shared_with" in shared) == ("pretrain", False)
    assert "trials/frozen/seed-0/pretrain" in pretrained(tmp_path)


def test_baselines_are_measured_once_a_task(tmp_path: Path) -> None:
    recipe = of("good", "other", finetune={**TASK, "tone": {}}, seeds=2)
    run(recipe, tmp_path, slots=3)
    assert [name for name in calls(tmp_path) if name.startswith("baselines")] == ["baselines/tone", "baselines/topics"]
    assert "baselines=" not in (tmp_path / "baselines/topics/calls.txt").read_text()
    assert "baselines=false" in (tmp_path / "trials/other/seed-1/topics/calls.txt").read_text()


OTHER_ROWS = {"tasks": {"topics": {"data.train": "small.csv"}}}
OTHER_LENGTH = {"finetune": {"data.max_length": 61, "objective.head": {"kind": "cnn"}, "train.batch_size": 7}}


@pytest.mark.parametrize("order", [("small", "whole", "long", "slight"), ("whole", "small", "slight", "long")])
def test_trials_of_other_examples_have_baselines_of_their_own(tmp_path: Path, order: tuple[str, ...]) -> None:
    variations = {"whole": {}, "long": OTHER_LENGTH, "small": OTHER_ROWS, "slight": OTHER_ROWS | OTHER_LENGTH}
    run(of(variations={name: variations[name] for name in order}, seeds=2), tmp_path)
    baseline_sets = {name: record["stages"]["topics"]["baselines"] for name, record in records(tmp_path).items()}
    first, second = {"topics", "topics@2"}, {name: baseline_sets[f"{name}/seed-0"] for name in variations}
    assert set(baseline_sets.values()) == first
    assert second["whole"] == second["long"] != second["small"] == second["slight"]
    assert all(baseline_sets[f"{name}/seed-1"] == folder for name, folder in second.items())
    assert [name for name in calls(tmp_path) if "baselines" in name] == ["baselines/topics", "baselines/topics@2"]
    recorded = {name: (tmp_path / "baselines" / name / "calls.txt").read_text() for name in first}
    assert "small.csv" in recorded[second["small"]]
    assert "small.csv" not in recorded[second["whole"]]


def test_baselines_stay_those_of_what_they_were_measured_of(tmp_path: Path) -> None:
    recipe = of(variations={"whole": {}, "small": OTHER_ROWS})
    found = open_records(tmp_path / "out", recipe, trials(recipe))
    stages = [record.trial.stages[-1] for record in found]
    expected = [baseline_settings(finetune_recipe(stage.recipe, stage.settings)) for stage in stages]

    def names() -> list[str]:
        Baselines(tmp_path).add(found)
        return [record.stage("topics").baselines for record in found]

    assert names() == ["topics", "topics@2"]
    (tmp_path / "topics").mkdir()
    (tmp_path / "topics" / "result.json").write_text(json.dumps({"of": expected[1]}))
    assert names() == ["topics@2", "topics"]
    (tmp_path / "topics" / "result.json").write_text("{}")  # of before it was said
    assert names() == ["topics", "topics@2"]


def test_baseline_failure_is_written_for_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_BASELINES_FAIL", "1")
    result = run(of("good"), tmp_path)
    assert result["done"] == 1
    (note,) = result["notes"]
    assert re.search("topics .*: no scikit-learn$", note)
    assert (tmp_path / "baselines/topics/why.txt").read_text() == "no scikit-learn"
    monkeypatch.delenv("FAKE_BASELINES_FAIL")
    before = calls(tmp_path / "trials")
    assert run(of("good"), tmp_path)["notes"] == []
    assert (tmp_path / "baselines/topics/result.json").is_file()
    assert not (tmp_path / "baselines/topics/why.txt").exists()
    assert calls(tmp_path / "trials") == before


def test_the_time_of_a_process_is_kept_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "_SHOW", 0.0)
    kept: list[dict[str, Any]] = []

    def killed() -> bool:
        kept[:] = records(tmp_path).values()
        if len(kept) == 1 and kept[0]["seconds"] > 0.2:
            raise KeyboardInterrupt
        return True

    runner = runner_of(of("slow"), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        runner.run(killed)
    before = kept[0]["seconds"]
    assert kept[0]["stages"]["pretrain"]["seconds"] == pytest.approx(before)
    runner = runner_of(of("slow"), tmp_path)
    (record,) = runner._records
    seconds = record.result.seconds
    assert seconds >= before
    runner._executor = LocalExecutor(1, start=(sys.executable, "-c", "import time; time.sleep(0.3)"))
    started = time.monotonic()
    runner.step()
    while len(runner._jobs) == 1 and not record.stage("pretrain").finished:
        runner._write_time()
        runner.step(idle=True)
        time.sleep(0.02)
    assert 0.3 <= record.result.seconds - seconds <= time.monotonic() - started  # no part of it is counted twice


def test_slots_run_side_by_side_and_share_the_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    runner = runner_of(of("slow", "good", "other"), tmp_path, slots=2)
    started = time.monotonic()
    while len(records_done(tmp_path)) < 2 and time.monotonic() < started + 20:
        runner.step()
        time.sleep(0.02)
    assert records_done(tmp_path) == ["good/seed-0", "other/seed-0"]  # beside one that does not end
    runner._kill()
    assert records(tmp_path)["slow/seed-0"]["status"] == "waiting"
    assert "pretrain good 3" in (tmp_path / "trials/good/seed-0/logs/pretrain.log").read_text()


def records_done(out: Path) -> list[str]:
    return [name for name, record in records(out).items() if record["status"] == "done"]


def test_gpus_go_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert [shares(slot, 3)["CUDA_VISIBLE_DEVICES"] for slot in range(3)] == ["3", "5", "3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert "CUDA_VISIBLE_DEVICES" not in shares(1, 3)


def test_a_trial_has_several_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7,11")
    assert [shares(slot, 2, 2)["CUDA_VISIBLE_DEVICES"] for slot in range(2)] == ["3,5", "7,11"]
    with pytest.raises(UserError, match=r"gpus_per_trial=2 .*3 trials.* 6 GPUs.* 4;"):
        LocalExecutor(3, gpus=2)


def test_what_a_killed_runner_left_running_goes_on(tmp_path: Path) -> None:
    recipe = of("good")
    runner = runner_of(recipe, tmp_path)
    runner.step()
    assert records(tmp_path)["good/seed-0"]["status"] == "running"
    (left,) = runner._jobs
    left.running.kill()  # and the runner writes nothing more
    assert run(recipe, tmp_path)["done"] == 1
    words = (tmp_path / "trials/good/seed-0/pretrain/calls.txt").read_text()
    assert all("--resume" in line for line in words.splitlines())


def test_incomplete_run_folder_is_recreated(tmp_path: Path) -> None:
    left = tmp_path / "trials/good/seed-0/pretrain/checkpoints"
    recipe = of("good")
    runner_of(recipe, tmp_path)
    left.mkdir(parents=True)
    assert run(recipe, tmp_path)["done"] == 1
    assert not left.exists()


def test_a_measurement_that_fails_costs_nobody_the_trial(tmp_path: Path) -> None:
    recipe = of("good", benchmark={"lengths": [17]})
    runner = runner_of(recipe, tmp_path)
    runner._executor = LocalExecutor(1, start=(sys.executable, "-c", "raise SystemExit('no such length')"))
    record = runner._records[0]
    for stage in record.trial.stages:
        record.stage(stage.name).finished = True
        record.path_of(stage.name).mkdir()
        (record.path_of(stage.name) / "result.json").write_text("{}")
    runner.run()
    assert (record.status, record.result.inference) == ("done", [])
    (note,) = record.result.notes
    assert re.search("benchmark failed: .* 1: no such length$", note)
    assert runner_of(of("good", benchmark={"lengths": [17]}), tmp_path)._records[0].result == record.result


def test_a_changed_benchmark_is_measured_when_the_comparison_is_resumed(tmp_path: Path) -> None:
    kept = {"length": 23, "batch_size": 1, "seconds_per_text": 0.5, "peak_bytes": 19}
    for benchmark, length in (({"lengths": [17]}, 17), (None, 23), ({"lengths": [17, 19]}, 17)):
        result = run(of("good", benchmark=benchmark), tmp_path)
        assert result["done"] == 1
        (record,) = records(tmp_path).values()
        assert [cost["length"] for cost in record["inference"]] == [length]
        change_record(tmp_path, "good/seed-0", inference=[kept])
    run(of("good", benchmark={"lengths": [17, 19]}), tmp_path)
    assert records(tmp_path)["good/seed-0"]["inference"] == [kept]  # unchanged
    assert len(pretrained(tmp_path)) == 1


def test_overhead_is_what_measuring_and_running_took(tmp_path: Path) -> None:
    result = run(of("good", "other", benchmark={"lengths": [17]}), tmp_path)
    found = records(tmp_path).values()
    own = sum(stage["processor_seconds"] for record in found for stage in record["stages"].values())
    assert result["overhead"]["trials_processor_seconds"] == pytest.approx(own)
    assert result["overhead"]["processor_seconds"] >= sum(r["overhead"]["processor_seconds"] for r in found) > 0


def test_other_settings_are_refused_with_what_differs(tmp_path: Path) -> None:
    run(of("good"), tmp_path)
    changed = of("good", pretrain={"recipe": "good", "settings": {"train.batch_size": 13}})
    with pytest.raises(UserError, match=r"None .*train\.batch_size=13.*--out"):
        run(changed, tmp_path)


def test_a_recipe_of_ones_own_that_was_edited_is_refused(tmp_path: Path) -> None:
    recipe, out = tmp_path / "mine.yaml", tmp_path / "out"
    recipe.write_text("kind: pretrain\ntrain: {batch_size: 7}\n")
    variations = {"mine": {"pretrain": {"recipe": str(recipe)}}}
    comparison = of(variations=variations)
    for record in open_records(out, comparison, trials(comparison)):
        record.write()
    recipe.write_text("# the same in other words\nkind: pretrain\ntrain:\n  batch_size: 7\n")
    (record,) = open_records(out, comparison, trials(comparison))
    record.stage("pretrain").model_fields_set.remove("recipe_digest")  # as it was written before there were any
    recipe.write_text("kind: pretrain\ntrain: {batch_size: 13}\n")
    with pytest.raises(UserError, match=r"mine\.yaml.*edited.*--out"):
        open_records(out, comparison, trials(comparison))
    record.write()
    assert len(open_records(out, comparison, trials(comparison))) == 1


def test_trials_of_another_comparison_are_refused(tmp_path: Path) -> None:
    run(of("good", "other"), tmp_path)
    with pytest.raises(UserError, match=r"not in this comparison \(1\): other/seed-0"):
        run(of("good"), tmp_path)


def test_more_seeds_and_variations_may_be_added(tmp_path: Path) -> None:
    run(of("good"), tmp_path)
    assert run(of("other", "good", seeds=2), tmp_path)["done"] == 4
    assert calls(tmp_path).count("trials/good/seed-0/pretrain") == 1


def test_a_record_of_another_version_is_refused(tmp_path: Path) -> None:
    run(of("good"), tmp_path)
    change_record(tmp_path, "good/seed-0", version=7)
    with pytest.raises(UserError, match=r"trial\.json .*version 7.* 1; .*--out"):
        run(of("good"), tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": 3}'])
def test_a_record_cut_short_is_refused(tmp_path: Path, text: str) -> None:
    run(of("good"), tmp_path)
    (tmp_path / "trials/good/seed-0/trial.json").write_text(text)
    with pytest.raises(UserError, match=r"delete .*seed-0"):
        run(of("good"), tmp_path)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    letters, other = tmp_path / "letters.txt", tmp_path / "other"
    other.mkdir()
    for path in (letters, other / "letters.txt"):
        path.write_text("dear")
    for start, out, message in (
        (run, tmp_path, "other things"),
        (run, letters, "is a file"),
        (run_comparison, letters / "under", "is a file"),
        (run_comparison, other, "other things"),
        (run_comparison, tmp_path / "new", "cannot be built"),
    ):
        with pytest.raises(UserError, match=message):
            start(of("good"), out)
    assert [path.name for path in other.iterdir()] == ["letters.txt"]  # no lock
    assert not (tmp_path / "new").exists()


def test_a_folder_killed_before_it_was_a_comparison_is_one(tmp_path: Path) -> None:
    (tmp_path / ".tmp-comparison.yaml").write_text("kin")
    assert run(of("good"), tmp_path)["done"] == 1


def test_the_lock_is_held_by_what_a_killed_runner_left(tmp_path: Path) -> None:
    with locked(tmp_path) as descriptors:
        executor = LocalExecutor(1, inherit=descriptors, start=FAKE)
        left = executor.start(Command(("pretrain", "slow", "--out", str(tmp_path / "out")), tmp_path / "log"))
    with pytest.raises(UserError, match="is written by"), locked(tmp_path):
        pass
    left.kill()
    with locked(tmp_path):
        pass


def test_one_runner_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison_module, "_PATIENCE", 0.0)
    monkeypatch.setattr(comparison_module, "check", lambda *_: [])
    monkeypatch.setattr(comparison_module, "plan_variants", lambda *_: ({}, []))
    with locked(tmp_path), pytest.raises(UserError, match="is written by"):
        run_comparison(of("good"), tmp_path)


def started(tmp_path: Path, *lines: str) -> Process:
    """A process that runs the lines and then waits."""
    code = "\n".join(["import signal, sys, time", *lines, "print('up', flush=True)", "time.sleep(600)"])
    process = Process(Command((), tmp_path / "log"), (sys.executable, "-c", code), {})
    deadline = time.monotonic() + 60
    while "up" not in process.output() and time.monotonic() < deadline:
        time.sleep(0.02)
    return process


def test_a_stage_ends_with_what_started_it(tmp_path: Path) -> None:
    process = started(tmp_path, "from homespun.compare.worker import exit_with_parent", "exit_with_parent()")
    assert process.poll() is None
    process._process.stdin.close()  # as the system does when the starter ends
    assert process._process.wait(60) == -signal.SIGKILL


def test_a_process_is_asked_to_stop_alone(tmp_path: Path) -> None:
    process = started(tmp_path, "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))")
    assert os.getpgid(process._process.pid) != os.getpgrp()  # a Ctrl-C in the terminal does not reach it
    process.stop()
    while (outcome := process.poll()) is None:
        time.sleep(0.02)
    assert outcome.why == "ended with exit code 3: up"


@pytest.mark.parametrize(
    ("code", "output", "why"),
    [
        (2, "error: one\nerror: two\n", "two"),
        (1, "", "ended with exit code 1"),
        (-15, "error: stopped after step 3", "killed by SIGTERM"),
        (-250, "", "killed by 250"),
        (1, "  traceback : Signal 11 (SIGSEGV) received by PID 17\n======\n", "killed by SIGSEGV"),
    ],
)
def test_reasons(code: int, output: str, why: str) -> None:
    assert reason(code, output) == why


def test_no_slots_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--max-parallel .*1 .*0"):
        run_comparison(of("good"), tmp_path, max_parallel=0)


def test_a_report_that_fails_on_the_way_costs_nobody_the_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner_module, "_FIRST_REPORT", 0.0)
    runner = runner_of(of("good"), tmp_path)
    runner._write_report = lambda out: Path(str(out / "none")).resolve(strict=True)
    runner.run()
    assert records(tmp_path)["good/seed-0"]["status"] == "done"
    assert "report" in caplog.text
    with pytest.raises(FileNotFoundError):
        runner.close()


def test_a_report_that_came_too_soon_is_written_later(tmp_path: Path) -> None:
    """Not with the end of the next stage, which may be hours off."""
    runner, reports = runner_of(of("good", "slow"), tmp_path), []
    runner._write_report = lambda out: reports.append(out) or out
    try:
        while "slow" not in "".join(job.what for job in runner._jobs):
            runner.step()
            time.sleep(0.01)
        assert reports == []
        runner._reported -= 3600.0
        runner.step()
        runner.step()
        assert reports == [tmp_path]
    finally:
        runner._kill()


def test_how_far_a_run_is(tmp_path: Path) -> None:
    assert share_of_run(tmp_path) == 0.0
    lines = [json.dumps({"event": "step", "share": n / 700, "note": "x" * 30}) for n in range(700)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"event": "validation"}', '{"event": "st']))
    assert share_of_run(tmp_path) == pytest.approx(699 / 700)


def test_how_far_a_run_of_several_trainings_is(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seeds: 2\nfolds: null\ntrain_sizes: [13, 61, all]\n")
    for name, share in (("first", 1.0), ("second", 0.25)):
        write_step(tmp_path / "trials" / name, share)
    (tmp_path / "trials" / "first" / "result.json").write_text("{}")
    assert share_of_run(tmp_path) == pytest.approx(1.25 / 6)


def write_step(run: Path, share: float) -> None:
    run.mkdir(parents=True, exist_ok=True)
    (run / "metrics.jsonl").write_text(json.dumps({"event": "step", "share": share}))


def test_how_long_a_comparison_has_still_to_go(tmp_path: Path) -> None:
    recipe = of("first", "second", "third")
    first, second, third = found = open_records(tmp_path, recipe, trials(recipe))
    assert seconds_left(found, slots=1) == (None, ["pretrain", "topics"])
    first.stage("pretrain").seconds = 10.0
    write_step(first.path_of("pretrain"), 0.01)  # too early to tell
    assert seconds_left(found, slots=1) == (None, ["pretrain", "topics"])
    write_step(first.path_of("pretrain"), 0.1)
    assert share_of_trial(first) == pytest.approx(0.05)
    left, without = seconds_left(found, slots=1)
    assert (left, without) == (pytest.approx(90 + 100 + 100), ["topics"])
    first.stage("pretrain").finished, first.stage("pretrain").seconds = True, 100.0
    second.stage("pretrain").seconds = 30.0  # and was stopped before it told how far it was
    assert share_of_trial(first) == 0.5  # while the baselines of topics are measured, too
    first.stage("topics").seconds = 20.0
    write_step(first.path_of("topics"), 0.5)
    assert seconds_left(found, slots=1) == (pytest.approx(20 + (70 + 40) + (100 + 40)), [])
    assert seconds_left(found, slots=2) == (pytest.approx(140), [])  # one trial after the other is no shorter
    assert seconds_left(found, slots=1, to_come=2) == (pytest.approx(270 + 2 * 140), [])
    second.result.status = "failed"
    third.stage("pretrain").shared_with = "first/seed-0"
    third.stage("pretrain").path = "../../first/seed-0/pretrain"
    assert seconds_left(found, slots=1) == (pytest.approx(20 + 40), [])
    for record in found:
        record.result.status = "done"
    assert seconds_left(found, slots=1) == (0.0, [])


def test_progress_of_a_running_comparison(tmp_path: Path) -> None:
    recorded: list[dict[str, Any]] = []

    class Heard:
        def update(self, done: float, **more: Any) -> None:
            recorded.append({"done": done, **more})

    recipe = of("good", "bad")
    runner = runner_of(recipe, tmp_path)
    runner.run()
    runner._show(Heard(), 2)
    assert recorded == [{"done": 2, "note": "1 done; 1 failed", "rate": "", "left": 0.0}]


def test_a_result_with_a_line_separator_is_read(tmp_path: Path) -> None:
    (tmp_path / "log").write_text('{"model": "a\u2028b"}\nwarning: slow\n', encoding="utf-8")
    assert last_object(tmp_path / "log") == {"model": "a\u2028b"}
