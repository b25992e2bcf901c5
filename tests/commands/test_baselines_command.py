import json
from pathlib import Path
from typing import Any, get_args

import pytest
from commands_world import World

from homespun.cli import app
from homespun.commands.recipe import finetune_recipe
from homespun.commands.trials import baseline_settings
from homespun.tasks.config import FinetuneData

DATA: dict[str, Any] = {kind.model_fields["kind"].default: kind for kind in get_args(get_args(FinetuneData)[0])}


def given(*settings: str) -> dict[str, Any]:
    return baseline_settings(finetune_recipe("classify", settings))


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        ((), True),
        (("data.max_length=61",), True),
        (("data.truncation={kind: head_tail}",), True),
        (("objective.frozen=true", "objective.head={kind: cnn}", "train.seed=7", "seeds=3"), True),
        (("data.train=small.csv",), False),
        (("data.test=other.csv",), False),
        (("data.text=title",), False),
        (("data.split_seed=7",), False),
        (("data.validation=0.3",), False),
        (("folds=5",), False),
        (("train_sizes=[13, all]",), False),
        (("objective.kind=regression",), False),
    ],
)
def test_baselines_depend_on_the_examples_and_not_on_the_model(settings: tuple[str, ...], same: bool) -> None:
    assert (given(*settings) == given()) is same


@pytest.mark.parametrize("kind", DATA)
def test_what_is_for_a_model_alone_is_known_of_every_kind_of_data(kind: str) -> None:
    ignored = {*DATA[kind].not_for_baselines}
    assert ignored < DATA[kind].model_fields.keys()
    assert not {"kind", "train", "test", "validation", "split_seed"} & ignored


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
