import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from comparing import FAKE, calls, comparison

from homespun.compare import comparison as comparison_module
from homespun.compare import search as search_module
from homespun.compare.executor import LocalExecutor
from homespun.compare.recipe import CompareRecipe
from homespun.compare.runner import Runner
from homespun.compare.search import SettingsSearch, search_settings
from homespun.compare.trials import to_yaml, trials
from homespun.errors import UserError
from homespun.report.console import Display

optuna = pytest.importorskip("optuna")

RATE = "pretrain.train.optimizer.learning_rate"
SPACE: dict[str, Any] = {
    RATE: {"low": 1e-4, "high": 1.0, "log": True},
    "pretrain.objective": {"choices": [{"a": 1}, 2]},
}


def searched(**search: Any) -> CompareRecipe:
    return comparison(
        pretrain={"recipe": "good"},
        variations={"one": {}, "two": {"pretrain": {"recipe": "better"}}},
        search={"space": SPACE, "trials": 3} | search,
        seeds=1,
        benchmark=None,
    )


def runner_of(out: Path, recipe: CompareRecipe, slots: int = 2, start: tuple[str, ...] = FAKE) -> Runner:
    executor = LocalExecutor(slots, start=start)
    return Runner(out, recipe, executor, Display(json=True), report=lambda folder: folder, started=0.0)


def rates(out: Path, name: str) -> list[float]:
    """Learning rates of the trials of a variation."""
    found = [json.loads(path.read_text()) for path in sorted(out.glob(f"search/{name}/*/trial.json"))]
    settings = [setting for record in found for setting in record["settings"]["pretrain"]]
    return [float(setting.partition("=")[2]) for setting in settings if "learning_rate" in setting]


def search(recipe: CompareRecipe, out: Path, *, retry_failed: bool = False, **options: Any) -> dict[str, Any]:
    return search_settings(recipe, runner_of(out, recipe, **options), retry_failed=retry_failed)


@pytest.mark.slow
def test_each_variation_is_searched_on_its_validation_and_compared_at_its_best(tmp_path: Path) -> None:
    recipe = searched()
    found = search(recipe, tmp_path)
    for name in ("one", "two"):
        tried = rates(tmp_path, name)
        assert len(set(tried)) == 3
        assert found[name][RATE] == pytest.approx(min(tried))  # the stand-in's loss is its rate
        assert found[name]["pretrain.objective"] in ({"a": 1}, 2)
    results = json.loads((tmp_path / "search/found.json").read_text())
    assert results["two"]["settings"] == found["two"]
    assert results["two"]["trials"] == 3
    best = trials(recipe, found=found)[0].settings["pretrain"]
    assert float(best[0].partition("=")[2]) == pytest.approx(found["one"][RATE])


def test_a_search_that_is_done_is_not_done_again(tmp_path: Path) -> None:
    recipe = searched()
    before = search(recipe, tmp_path)
    assert search(recipe, tmp_path) == before
    assert len(rates(tmp_path, "one")) == 3


@pytest.mark.slow
def test_killed_search_resumes_started_trials(tmp_path: Path) -> None:
    uninterrupted, cut = searched(), searched()
    expected = search(uninterrupted, tmp_path / "whole", slots=1)
    runner, steps = runner_of(tmp_path / "cut", cut, slots=1), iter(range(5))
    step = runner.step

    def killed(*, idle: bool = False) -> bool:
        if next(steps, None) is None:
            raise MemoryError
        return step(idle=idle)

    runner.step = killed
    with pytest.raises(MemoryError):
        search_settings(cut, runner)
    assert 0 < len(rates(tmp_path / "cut", "one")) < 3
    assert search(cut, tmp_path / "cut", slots=1) == expected
    assert rates(tmp_path / "cut", "two") == rates(tmp_path / "whole", "two")


def test_folders_that_share_a_storage_share_the_trials(tmp_path: Path) -> None:
    recipe = searched(storage=f"sqlite:///{tmp_path}/shared.db")
    first = search(recipe, tmp_path / "here")
    assert search(recipe, tmp_path / "there") == first
    assert not rates(tmp_path / "there", "one")


def studies(recipe: CompareRecipe) -> list[Any]:
    storage = recipe.search.storage
    return [optuna.load_study(study_name=name, storage=storage) for name in optuna.get_all_study_names(storage)]


@pytest.mark.slow
def test_a_folder_keeps_what_it_found_though_others_go_on(tmp_path: Path) -> None:
    recipe = searched(storage=f"sqlite:///{tmp_path}/shared.db", trials=1)
    first = search(recipe, tmp_path / "here")
    for study in studies(recipe):
        later = study.ask(study.best_trial.distributions)
        study.tell(later, 0.0)
    assert search(recipe, tmp_path / "here") == first
    second = search(recipe, tmp_path / "there")
    assert all(second[name] != first[name] for name in ("one", "two"))
    more = searched(storage=f"sqlite:///{tmp_path}/shared.db", trials=2)  # a search of more is another
    assert search(more, tmp_path / "here") == second


def test_the_trials_of_others_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = searched(storage=f"sqlite:///{tmp_path}/shared.db", trials=1)
    other = SettingsSearch(recipe, tmp_path / "there")
    started = [other.ask(), other.ask()]
    wait = SettingsSearch.wait

    def meanwhile(searching: SettingsSearch) -> bool:
        waits = wait(searching)
        for entry in other._open:
            entry.study.tell(entry.number, 0.25)
        other._open.clear()
        return waits

    monkeypatch.setattr(search_module, "_POLL", 0.0)
    monkeypatch.setattr(SettingsSearch, "wait", meanwhile)
    found = search(recipe, tmp_path / "here")
    assert re.search(r"waiting .*\(2\).* 1", caplog.text)
    for record, name in zip(started, found, strict=True):
        assert f"train.optimizer.learning_rate={to_yaml(found[name][RATE])}" in record.trial.settings["pretrain"]


@pytest.mark.slow
def test_a_machine_that_died_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(search_module, "_POLL", 0.0)
    monkeypatch.setattr(search_module, "_PATIENCE", 0.0)
    recipe = searched(storage=f"sqlite:///{tmp_path}/shared.db", trials=2)
    died = SettingsSearch(recipe, tmp_path / "there")
    assert died.ask() is not None
    assert died.ask() is not None
    first = search(recipe, tmp_path / "here")
    assert re.search(r"\(2\) take too long", caplog.text)
    assert [len(rates(tmp_path / "here", name)) for name in first] == [1, 1]
    monkeypatch.setattr(search_module, "_UNKNOWN", 0.0)
    alone = searched(storage=f"sqlite:///{tmp_path}/shared.db", trials=1, seed=7)
    died = SettingsSearch(alone, tmp_path / "also there")
    assert died.ask() is not None
    with pytest.raises(UserError, match="1 of its trials"):
        search(alone, tmp_path / "other")


def test_requested_trial_that_never_started_is_run(tmp_path: Path) -> None:
    recipe = searched(trials=1)
    killed = SettingsSearch(recipe, tmp_path)
    for name in ("one", "two"):
        assert killed.ask() is not None
        shutil.rmtree(tmp_path / "search" / name)  # as if its record was not written yet
    search(recipe, tmp_path)
    assert [len(rates(tmp_path, name)) for name in ("one", "two")] == [1, 1]


def test_a_search_that_was_killed_shares_its_pretraining_still(tmp_path: Path) -> None:
    tree: dict[str, Any] = {"pretrain": {"recipe": "good"}, "finetune": {"topics": {}}, "benchmark": None}
    space = {"finetune.train.optimizer.learning_rate": {"low": 0.1, "high": 0.9}}
    first, more = (comparison(**tree, max_parallel=1, search={"space": space, "trials": trials}) for trials in (1, 3))
    search(first, tmp_path, slots=1)
    killed = runner_of(tmp_path, more, slots=1)
    searching = SettingsSearch(more, tmp_path)
    killed.add(searching.reopen())
    asked = searching.ask()
    assert asked is not None
    killed.add([asked])  # and killed
    search(more, tmp_path, slots=1)
    started = [name for name in calls(tmp_path) if name.startswith("search")]
    assert [name for name in started if name.endswith("pretrain")] == ["search/base/0000/pretrain"]
    assert len([name for name in started if name.endswith("topics")]) == 3


def test_search_runs_before_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison_module, "LocalExecutor", partial(LocalExecutor, start=FAKE))
    monkeypatch.setattr(comparison_module, "check", lambda *_: [])  # of data that there is not
    monkeypatch.setattr("homespun.report.comparison.write_comparison", lambda folder: folder)
    recipe = searched(trials=1)
    assert comparison_module.run_comparison(recipe, tmp_path / "out")["done"] == 2
    assert comparison_module.run_comparison(recipe, tmp_path / "out")["done"] == 2
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "letters.txt").write_text("dear")
    with pytest.raises(UserError, match="other things"):
        comparison_module.run_comparison(recipe, tmp_path / "letters")
    assert not (tmp_path / "letters" / "search").exists()


@pytest.mark.slow
def test_another_measure_and_its_direction(tmp_path: Path) -> None:
    recipe = searched(metric="macro_f1", trials=5)
    found = search(recipe, tmp_path, slots=3)
    nearest = min(rates(tmp_path, "one"), key=lambda rate: abs(rate - 0.25))  # macro_f1 is best there
    assert found["one"][RATE] == pytest.approx(nearest)


@pytest.mark.parametrize(("measure", "best"), [("ece", 0.125), ("roc_auc", 0.75), ("absolute_error", 0.125)])
def test_the_better_way_of_a_measure_and_what_has_none(tmp_path: Path, measure: str, best: float) -> None:
    searching = SettingsSearch(searched(metric=measure, trials=3), tmp_path)
    for value in (0.125, 0.125, None, None, 0.75, 0.75):  # of one and two by turns
        record = searching.ask()
        run = record.path_of("pretrain")
        run.mkdir(parents=True)
        metrics = {"validation": {"loss": 0.5}, "validation_metrics": {measure: value}}
        (run / "result.json").write_text(json.dumps(metrics))
        record.update(status="done")
        searching.tell()
    assert searching.ask() is None
    assert [results[measure] for results in searching.found().values()] == [best, best]


@pytest.mark.slow
def test_a_search_whose_trials_all_failed_is_tried_again_when_that_is_asked_for(tmp_path: Path) -> None:
    recipe = searched()
    for start in (("false",), FAKE):  # the second time nothing would fail, and nothing is asked for
        with pytest.raises(UserError, match=r"all 3 trials .*--retry-failed"):
            search(recipe, tmp_path, start=start)
    found = search(recipe, tmp_path, retry_failed=True)
    tried = rates(tmp_path, "two")
    assert len(tried) == 6
    assert found["two"][RATE] == pytest.approx(min(tried[3:]))


@pytest.mark.slow
def test_mistakes_are_named(tmp_path: Path) -> None:
    bad = comparison(pretrain={"recipe": "bad"}, search={"space": SPACE, "trials": 2}, benchmark=None)
    for name, recipe, message in (
        ("a", searched(metric="accuracy", trials=1), r"'accuracy' .*validation.*: loss, macro_f1"),
        ("b", searched(metric="test_accuracy", trials=1), "'test_accuracy'"),
        ("c", bad, "all 2 trials failed"),
        ("d", searched(storage="nonsense://x"), r"search\.storage=nonsense://x"),
    ):
        with pytest.raises(UserError, match=message):
            search(recipe, tmp_path / name)
