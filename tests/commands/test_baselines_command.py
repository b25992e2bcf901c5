import json
from pathlib import Path
from typing import Any

import pytest
from commands_world import World, write_csv

from homespun.cli import app
from homespun.commands.recipe import finetune_recipe
from homespun.commands.trials import baseline_settings
from homespun.report import tables
from homespun.report.records import read_run
from homespun.report.summary import summary


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


@pytest.mark.parametrize(
    ("objective", "baselines"),
    [("classification", ["majority class", "TF-IDF + linear"]), ("regression", ["mean", "TF-IDF + linear"])],
)
def test_a_report_of_folds_counts_every_example_once(
    world: World, tmp_path: Path, objective: str, baselines: list[str]
) -> None:
    rows = [(f"{'good' if n % 2 else 'bad'} text {n}", n % 2) for n in range(31)]
    data = write_csv(tmp_path / "rows.csv", ["sentence", "label"], rows)
    settings = (f"data.train={data}", "folds=3", "data.text=sentence", f"objective.kind={objective}")
    world.run("baselines", "classify", *settings, "--from", world.base, "--out", tmp_path / "folds")
    record = read_run(tmp_path / "folds")
    (table,) = tables.results([record])
    assert [row[0] for row in table.rows] == baselines
    assert [row[-1] for row in table.rows] == [31, 31]
    assert all(any(isinstance(cell, tuple) for cell in row) for row in table.rows)
    assert "Fine-tuned" not in summary([record])[0]
