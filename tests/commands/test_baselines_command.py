import json
from pathlib import Path
from typing import Any

import pytest
from commands_world import World

from homespun.cli import app
from homespun.commands.recipe import finetune_recipe
from homespun.commands.trials import baseline_settings


def given(*settings: str) -> dict[str, Any]:
    return baseline_settings(finetune_recipe("classify", settings))


def test_baselines_depend_on_the_examples_and_not_on_the_model() -> None:
    model = ("objective.frozen=true", "objective.head={kind: cnn}", "train.seed=7", "seeds=3")
    assert given("data.max_length=61", "data.truncation={kind: head_tail}", *model) == given()
    examples = ("data.train=small.csv", "data.test=other.csv", "data.text=title", "data.split_seed=7")
    for setting in (*examples, "data.validation=0.3", "folds=5", "train_sizes=[13, all]", "objective.kind=regression"):
        assert given(setting) != given(), setting


def test_result_has_version_and_settings(world: World, tmp_path: Path) -> None:
    settings = (f"data.train={world.test}", f"data.test={world.test}", "data.text=sentence")
    output = world.run("baselines", "classify", *settings, "--from", world.base, "--out", tmp_path / "lines")
    written = json.loads((tmp_path / "lines" / "result.json").read_text())
    assert written == output | {"version": 1, "of": given(*settings)}
    assert json.loads((world.classifier / "result.json").read_text())["version"] == 1


@pytest.mark.parametrize(("folds", "on"), [(None, "61 examples (test)"), (3, "61 examples (folds)")])
def test_without_json_they_are_a_table(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], folds: int | None, on: str
) -> None:
    tests = f"data.test={world.test}" if folds is None else f"folds={folds}"
    words = ["baselines", "classify", f"data.train={world.test}", tests, "data.text=sentence"]
    app([*words, "--from", str(world.base), "--out", str(tmp_path / "lines")], standalone_mode=False)
    output = capsys.readouterr().out
    found = json.loads((tmp_path / "lines" / "result.json").read_text())["baselines"]["majority"]
    assert f"Baselines on {on}" in output
    assert "majority class" in output
    assert "TF-IDF + linear" in output
    deviation = "" if folds is None else f" ± {found['std']['accuracy']:.3f}"
    assert f"{found['accuracy']:.3f}{deviation}" in output
    assert "{" not in output
    assert max(map(len, output.splitlines())) <= 80 + len(str(tmp_path))
