"""Linear models within a time limit: what a plan reads, and what a fit leaves out."""

import math
import time
from pathlib import Path

import numpy as np
import pytest

from homespun.data.labels import Labels
from homespun.fitting import ladder, linear_plan, results
from homespun.fitting.fit import fit
from homespun.fitting.inspection import Inspection, inspect
from homespun.fitting.linear_plan import LinearPlan, bound_plan, plan_linear
from homespun.fitting.results import FitSettings
from homespun.report.console import Display
from homespun.tasks.texts import LabelledData, LabelledText

WORDS = np.array([f"word{number}" for number in range(200)])


def table(path: Path, rows: int = 300, classes: int = 3, words: int = 12) -> str:
    draw = np.random.default_rng(0)
    lines = [f"class{n % classes} {n} {' '.join(draw.choice(WORDS, words))},class{n % classes}\n" for n in range(rows)]
    path.write_text("text,label\n" + "".join(lines), encoding="utf-8")
    return str(path)


def bounded(found: Inspection, seconds: float) -> tuple[LinearPlan, float]:
    return bound_plan(plan_linear(found, 0.25 * seconds), found, seconds)


@pytest.fixture
def cost(monkeypatch: pytest.MonkeyPatch) -> linear_plan._Cost:
    """A machine on which a character costs as much as measured, whatever this machine does."""
    made = linear_plan._Cost(count=4e-7, solve=6e-7, predict=1e-7)
    monkeypatch.setattr(linear_plan, "_measure_cost", lambda *_: made)
    return made


@pytest.mark.parametrize("seconds", [30.0, 1800.0])
def test_a_plan_that_fits_is_unchanged(tmp_path: Path, seconds: float) -> None:
    found = inspect([table(tmp_path / "t.csv")])
    plan, _ = bounded(found, seconds)
    expected = plan_linear(found, 0.25 * seconds)
    assert plan.reads_all
    assert (plan.feature_sets, plan.search_rows, plan.limit) == (
        expected.feature_sets,
        expected.search_rows,
        expected.limit,
    )
    assert plan.reduce(found.train, found.labels) == found.train


@pytest.mark.parametrize("seconds", [3.0, 6.0, 10.0])
def test_long_texts_are_cut_until_the_plan_fits(tmp_path: Path, cost: linear_plan._Cost, seconds: float) -> None:
    found = inspect([table(tmp_path / "t.csv", rows=250, words=2_000)])
    plan, expected = bounded(found, seconds)
    assert plan.rows is None
    assert plan.characters is not None
    read = plan.reduce(found.train, found.labels)
    assert len(read) == len(found.train)
    assert all(one.text == each.text[: plan.characters] for one, each in zip(read, found.train, strict=True))
    assert expected < seconds
    assert expected + 1.2 * cost.fit(sum(len(one.text) for one in read)) <= seconds


def test_of_many_short_texts_fewer_are_read_with_all_classes(tmp_path: Path, cost: linear_plan._Cost) -> None:
    found = inspect([table(tmp_path / "t.csv", rows=4_000, classes=20)])
    plan, expected = bounded(found, 0.3)
    assert plan.search_rows == 500
    assert plan.rows is not None
    read = plan.reduce(found.train, found.labels)
    assert len(read) == plan.rows < len(found.train)
    assert len({one.label for one in read}) == 20
    assert expected <= 0.3


def test_the_cost_that_is_measured_is_positive(tmp_path: Path) -> None:
    found = inspect([table(tmp_path / "t.csv")])
    cost = linear_plan._measure_cost(found, 3)
    assert cost is not None
    assert cost.count > 0
    assert cost.predict > 0
    assert cost.search(100.0, 3) < cost.search(100.0, 5)


def test_the_learning_curve_is_drawn_if_the_time_suffices(tmp_path: Path) -> None:
    result = fit([table(tmp_path / "t.csv")], tmp_path / "run", seconds=100.0)
    assert [one["examples"] for one in result["learning_curve"]] == [51, 102, 204]


def test_a_time_that_is_too_short_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = linear_plan._Cost(count=1e-3, solve=1e-3, predict=1e-3)
    monkeypatch.setattr(linear_plan, "_measure_cost", lambda *_: slow)
    result = fit([table(tmp_path / "t.csv", words=300)], tmp_path / "run", seconds=20.0)
    assert result["examples"]["train"] > 200
    assert any("--time" in line for line in result["warnings"])
    assert any("200 of" in line for line in result["decisions"])
    assert result["learning_curve"] == []
    assert any("learning curve" in reason for reason in result["skipped"])
    assert any("--time" in step for step in result["next"])


@pytest.mark.parametrize(("left", "examples"), [(-19.0, "validation"), (100.0, "both")])
def test_a_refit_that_exceeds_the_time_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: float, examples: str
) -> None:
    path = table(tmp_path / "t.csv")
    found = inspect([path])
    settings = FitSettings(train=[path], seconds=100.0)
    made = ladder.Ladder(found, tmp_path / "run", settings, [], Display(json=True), time.monotonic())
    made.climb()
    fitted = next(one for one in made.candidates if one.name == "linear")
    monkeypatch.setattr(ladder.Ladder, "left", lambda _: left)
    final = made.final()
    assert (final.model is fitted.model) == (examples == "validation")
    assert any("validation examples together" in reason for reason in made.skipped) == (examples == "validation")


def test_a_learning_curve_leaves_out_examples_without_words() -> None:
    order = np.random.default_rng(0).permutation(40)
    train = [LabelledText("word" if row == order[-1] else "!", "ab"[row % 2]) for row in range(40)]
    found = Inspection(LabelledData(), Labels(("a", "b")), train, train, train, "split")
    curve = results._learning_curve(found, "accuracy", [], math.inf)
    assert [point["examples"] for point in curve] == [40]
