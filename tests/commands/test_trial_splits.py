"""Splits depend on the split seed, not on the seed of the training."""

import json
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from commands_world import TINY, World, assert_refused

from homespun.commands.provenance import restore_settings
from homespun.commands.recipe import FinetuneRecipe, PretrainRecipe, pretrain_recipe
from homespun.commands.trials import Trial, plan_trials
from homespun.commands.workload import pretraining_rows
from homespun.config import validate
from homespun.data.corpus import Corpus
from homespun.data.splits import stratified_split
from homespun.errors import UserError
from homespun.tasks.config import FinetuneData
from homespun.tasks.protocol import paths
from homespun.tasks.texts import LabelledData

KINDS = [member.model_fields["kind"].default for member in typing.get_args(typing.get_args(FinetuneData)[0])]


class Anything:
    """A task whose examples are of two classes, of which a split keeps the proportion."""

    def stratify_by(self, examples: Any) -> Any:
        return np.array([number % 2 for number in examples])


def trials(kind: str = "texts", *, seed: int, test: bool = False, **tree: Any) -> list[Trial]:
    data = {"kind": kind, **tree.pop("data", {})}
    tree = {"kind": "finetune", "data": data, "train": {"seed": seed, "budget": {"steps": 1}}} | tree
    given: Any = Anything()
    recipe = validate(FinetuneRecipe, tree, source="")
    return plan_trials(recipe, given, list(range(101)), None, list(range(200, 213)) if test else None)


def sides(found: list[Trial]) -> list[tuple[Any, ...]]:
    return [(t.fold, sorted(t.training), sorted(t.validation), t.measured_rows.tolist()) for t in found]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("more", [{}, {"test": True}, {"folds": 3}])
def test_every_seed_is_chosen_and_measured_on_the_same_examples(kind: str, more: dict[str, Any]) -> None:
    first, second = (trials(kind, seed=seed, **more) for seed in (0, 5))
    assert sides(first) == sides(second)
    assert [trial.seed for trial in second] == [5] * len(second)
    other = trials(kind, seed=0, data={"split_seed": 1}, **more)
    assert sides(other) != sides(first)


def test_the_split_of_before_can_be_asked_for() -> None:
    """What was divided by train.seed=0 is divided as it was."""
    (trial,) = trials(seed=7)
    assert sorted(trial.validation) == stratified_split(np.arange(101) % 2, 0.1, 0)[1].tolist()


@pytest.mark.parametrize("more", [{}, {"folds": 2}])
def test_measured_rows_are_those_of_the_file(tmp_path: Path, more: dict[str, Any]) -> None:
    (tmp_path / "t.csv").write_text("text,label\n" + "".join(f"{n},{'ab '[n % 3]}\n" for n in range(60)))
    data = LabelledData(train=str(tmp_path / "t.csv"))
    examples = data.read_files(paths(data.train))
    assert len(examples) == 40
    tree = {"kind": "finetune", "data": data.model_dump(), "train": {"budget": {"steps": 1}}}
    given: Any = SimpleNamespace(stratify_by=lambda some: np.array([one.label == "b" for one in some], dtype=np.int64))
    for trial in plan_trials(validate(FinetuneRecipe, tree | more, source=""), given, examples, None, None):
        assert [str(row) for row in trial.measured_rows] == [one.text for one in trial.measured]


def test_the_numbers_of_examples_are_those_of_every_fold() -> None:
    found = trials(seed=0, folds=3, seeds=2, train_sizes=["all", 10])
    assert len({len(t.training) for t in found}) == 3  # folds of 60 and 61
    for size in (10, 60):
        assert [t.fold for t in found if t.size == size] == [0, 0, 1, 1, 2, 2]
    assert {t.name for t in found if t.fold == 2} == {
        f"fold-2-examples-{n}-seed-{seed}" for n in (10, 60) for seed in (0, 1)
    }
    every = [sorted([*t.training, *t.validation, *(t.test or ())]) for t in found if t.size == 60]
    assert every == [list(range(101))] * 6
    with pytest.raises(UserError, match=r"train_sizes=61.* 60"):
        trials(seed=0, folds=3, train_sizes=[10, 61])


def test_what_a_split_is_is_no_part_of_a_model(world: World) -> None:
    output = json.loads((world.classifier / "model/homespun.json").read_text())
    assert "split_seed" not in json.dumps(output)
    assert "validation" not in output["task"]


def test_seeds_of_pretraining_are_looked_at_on_the_same_rows(world: World) -> None:
    corpus = Corpus.open(world.corpus)
    settings = ["data.max_length=32", "data.validation=0.2", *TINY]

    def held_out(*more: str) -> list[list[int]]:
        _, rows = pretraining_rows(pretrain_recipe("electra-tiny", [*settings, *more]), corpus)
        return [rows[number].input_ids.tolist() for number in range(len(rows))]

    assert held_out("train.seed=3") == held_out("train.seed=0")
    assert held_out("data.split_seed=3") != held_out()


def old_run(folder: Path, seed: int, trial_seeds: tuple[int, ...] = ()) -> Path:
    """The configs of a run of before there was the setting."""
    for run, own in [(folder, seed), *((folder / "trials" / f"seed-{n}", n) for n in trial_seeds)]:
        run.mkdir(parents=True)
        tree = {"kind": "finetune", "data": {"kind": "texts", "max_length": 17}, "train": {"seed": own}}
        (run / "config.yaml").write_text(yaml.safe_dump(tree))
    return folder


def of(seed: int, **data: Any) -> FinetuneRecipe:
    tree = {"kind": "finetune", "data": {"kind": "texts", **data}, "train": {"seed": seed, "budget": {"steps": 1}}}
    return validate(FinetuneRecipe, tree, source="test")


def test_a_run_of_before_goes_on_with_the_rows_that_it_has(tmp_path: Path) -> None:
    run = old_run(tmp_path / "run", 11, (11, 12))
    for _ in range(2):  # and stopped again
        assert restore_settings(of(11), run).data.split_seed == 11
        for config in run.rglob("config.yaml"):
            assert yaml.safe_load(config.read_text())["data"] == {"kind": "texts", "max_length": 17, "split_seed": 11}


def test_what_is_given_is_not_overruled(tmp_path: Path) -> None:
    run = old_run(tmp_path / "run", 11)
    assert restore_settings(of(11, split_seed=3), run).data.split_seed == 3
    assert "split_seed" not in (run / "config.yaml").read_text()
    assert restore_settings(of(11), tmp_path / "none") == of(11)


@pytest.mark.slow
def test_a_pretraining_of_before_goes_on(world: World, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = (*world.pretraining, "train.batch_size=7", "train.seed=3", "--out", out)
    world.run(*words, "data.split_seed=3", "train.budget.steps=3")
    tree = yaml.safe_load((out / "config.yaml").read_text())
    assert tree["data"].pop("split_seed") == 3
    (out / "config.yaml").write_text(yaml.safe_dump(tree))
    world.run(*words, "train.budget.steps=4", "--resume")
    assert PretrainRecipe.model_validate(yaml.safe_load((out / "config.yaml").read_text())).data.split_seed == 3
    assert_refused(r"data\.split_seed .*3 .*0", *words, "data.split_seed=0", "train.budget.steps=4", "--resume")
