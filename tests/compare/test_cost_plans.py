import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from comparing import comparison

from homespun.compare.checks import plan_variants
from homespun.compare.trials import trials
from homespun.errors import UserError
from homespun.planning.predict import Memory, NothingFits, Prediction, Workload, choose
from homespun.training.config import Budget, TrainConfig


@pytest.fixture(autouse=True)
def planner(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stands in for the planner, which has tests of its own."""
    asked: list[Any] = []

    def plan(recipe: Any, *, start_from: str | None = None, changes: Any = None) -> dict[str, Any]:
        asked.append((recipe, start_from, changes))
        least = 3e9 if recipe.model.hidden_size == 256 else 1e9
        if recipe.train.budget.memory < least:
            raise NothingFits(f"nothing fits into it: this recipe takes at least {least / 1e9:.2f} GB")
        return {"memory": {"peak": least}}

    monkeypatch.setitem(sys.modules, "homespun.commands.plan", SimpleNamespace(plan=plan))
    return asked


def planned(memory: str | None, **more: Any) -> tuple[dict[str, Any], list[str]]:
    recipe = comparison(
        pretrain={"recipe": "electra-tiny"},
        variations={"small": {}, "large": {"pretrain": {"model.preset": "electra-mini"}}},
        budget={"steps": 3} | ({} if memory is None else {"memory": memory}),
        **more,
    )
    return plan_variants(recipe, trials(recipe))


def test_every_variation_is_planned_once(planner: list[Any]) -> None:
    found, notes = planned("5GB", seeds=3)
    assert {name: plan["memory"]["peak"] for name, plan in found.items()} == {"small": 1e9, "large": 3e9}
    assert (len(planner), notes) == (2, [])


def test_one_that_does_not_fit_is_a_note(planner: list[Any]) -> None:
    found, notes = planned("2GB")
    assert list(found) == ["small"]
    (note,) = notes
    assert re.search(r"^large .* 3\.00 GB", note)


def test_too_small_budget_reports_least_memory_of_each() -> None:
    with pytest.raises(UserError, match=r"\(1\) small: .* 1\.00 GB \(2\) large: .* 3\.00 GB"):
        planned("200MB")


def test_planner_separates_misfits_from_other_mistakes() -> None:
    train = TrainConfig(budget=Budget(steps=1), batch_size=5)
    work = Workload(build=lambda: pytest.fail("not built"), batches=lambda rows: pytest.fail("no batch"), train=train)
    prediction = Prediction(1, {}, Memory(0, 0, 0, 0, {}, 0, 97), 7, 0.0, 0.0, 3.0, 0)
    with pytest.raises(NothingFits):
        choose(work, memory=90, predict=lambda *_: prediction)


def test_planning_errors_are_not_reported_as_misfits(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(recipe: Any, **_: Any) -> dict[str, Any]:
        raise UserError("corpus x has one document")

    monkeypatch.setitem(sys.modules, "homespun.commands.plan", SimpleNamespace(plan=plan))
    with pytest.raises(UserError, match=r"^variation small: corpus x .*one document"):
        planned("50MB")


def test_changes_to_a_checkpoint_are_planned_with_it(planner: list[Any]) -> None:
    recipe = comparison(
        pretrain={"recipe": "electra-tiny", "start_from": "runs/base", "settings": {"data.max_length": 32}},
        variations={"same": {}, "deeper": {"pretrain": {"model.num_hidden_layers": 3}}},
        budget={"steps": 3, "memory": "5GB"},
    )
    found, _ = plan_variants(recipe, trials(recipe))
    assert list(found) == ["same", "deeper"]
    assert [(start_from, changes) for _, start_from, changes in planner] == [
        ("runs/base", {}),
        ("runs/base", {"num_hidden_layers": 3}),
    ]
    assert {planned.data.max_length for planned, _, _ in planner} == {32}


def test_without_a_limit_nothing_is_planned(planner: list[Any]) -> None:
    assert planned(None) == ({}, [])
    assert not planner
