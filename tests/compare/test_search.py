from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from comparing import FAKE, comparison

from homespun.compare.recipe import CompareRecipe
from homespun.compare.run import Runner
from homespun.compare.search import found_by
from homespun.compare.stage import Here
from homespun.compare.trials import trials
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
        measure=None,
    )


def runner_of(out: Path, recipe: CompareRecipe, slots: int = 2) -> Runner:
    places = Here(slots, start=FAKE)
    return Runner(out, recipe, places, Display(json=True), report=lambda folder: folder, begun=0.0)


def rates(out: Path, name: str) -> list[str]:
    found = [json.loads(path.read_text()) for path in sorted(out.glob(f"search/{name}/*/trial.json"))]
    return [next(s for s in record["settings"]["pretrain"] if "learning_rate" in s) for record in found]


def test_each_variation_is_searched_on_its_validation_and_compared_at_its_best(tmp_path: Path) -> None:
    recipe = searched()
    found = found_by(recipe, runner_of(tmp_path, recipe))
    for name in ("one", "two"):
        tried = [float(rate.partition("=")[2]) for rate in rates(tmp_path, name)]
        assert len(set(tried)) == 3
        assert found[name][RATE] == pytest.approx(min(tried))  # the stand-in's loss is its rate
        assert found[name]["pretrain.objective"] in ({"a": 1}, 2)
    written = json.loads((tmp_path / "search/found.json").read_text())
    assert written["two"]["settings"] == found["two"]
    assert written["two"]["trials"] == 3
    best = trials(recipe, found=found)[0].settings["pretrain"]
    assert float(best[0].partition("=")[2]) == pytest.approx(found["one"][RATE])


def test_a_search_that_is_done_is_not_done_again(tmp_path: Path) -> None:
    recipe = searched()
    before = found_by(recipe, runner_of(tmp_path, recipe))
    assert found_by(recipe, runner_of(tmp_path, recipe)) == before
    assert len(rates(tmp_path, "one")) == 3


def test_a_search_that_was_killed_goes_on_with_what_it_had_begun(tmp_path: Path) -> None:
    whole, cut = searched(), searched()
    wanted = found_by(whole, runner_of(tmp_path / "whole", whole, slots=1))
    runner, steps = runner_of(tmp_path / "cut", cut, slots=1), iter(range(5))
    step = runner.step

    def killed(*, idle: bool = False) -> bool:
        if next(steps, None) is None:
            raise MemoryError
        return step(idle=idle)

    runner.step = killed  # type: ignore[method-assign]
    with pytest.raises(MemoryError):
        found_by(cut, runner)
    assert 0 < len(rates(tmp_path / "cut", "one")) < 3
    assert found_by(cut, runner_of(tmp_path / "cut", cut, slots=1)) == wanted
    assert rates(tmp_path / "cut", "two") == rates(tmp_path / "whole", "two")


def test_folders_that_share_a_storage_share_the_trials(tmp_path: Path) -> None:
    recipe = searched(storage=f"sqlite:///{tmp_path}/shared.db")
    here = found_by(recipe, runner_of(tmp_path / "here", recipe))
    assert found_by(recipe, runner_of(tmp_path / "there", recipe)) == here
    assert not rates(tmp_path / "there", "one")


def test_another_measure_and_its_direction(tmp_path: Path) -> None:
    recipe = searched(measure="macro_f1", trials=5)
    found = found_by(recipe, runner_of(tmp_path, recipe, slots=3))
    tried = [float(rate.partition("=")[2]) for rate in rates(tmp_path, "one")]
    assert found["one"][RATE] == pytest.approx(min(tried, key=lambda rate: abs(rate - 0.25)))  # macro_f1 is best there


def test_mistakes_are_said(tmp_path: Path) -> None:
    recipe = searched(measure="test_accuracy", trials=1)
    with pytest.raises(
        UserError, match=r"'test_accuracy' is not measured on the validation; there are: loss, macro_f1"
    ):
        found_by(recipe, runner_of(tmp_path / "a", recipe))
    bad = comparison(pretrain={"recipe": "bad"}, search={"space": SPACE, "trials": 2}, measure=None)
    with pytest.raises(UserError, match="found nothing for base: all 2 trials failed"):
        found_by(bad, runner_of(tmp_path / "b", bad))
    nowhere = searched(storage="nonsense://x")
    with pytest.raises(UserError, match=r"search.storage=nonsense://x cannot be used"):
        found_by(nowhere, runner_of(tmp_path / "c", nowhere))
