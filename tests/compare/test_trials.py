from __future__ import annotations

from typing import Any

import pytest
from comparing import comparison

from homespun.compare.trials import trials, written
from homespun.config import override
from homespun.errors import UserError

PRETRAIN = {"recipe": "electra-tiny", "settings": {"data.corpus": "here", "train": {"batch_size": 7}}}
TASK = {"topics": {"recipe": "classify", "settings": {"data.train": "a.csv"}}}


@pytest.mark.parametrize(
    "value",
    [
        3,
        1e-5,
        0.25,
        True,
        None,
        "text",
        "1e5",
        "",
        "a: b",
        [1, 2],
        {"kind": "lsh", "seed": 3},
        {"steps": 11},
        "yes",
        "é",
    ],
)
def test_values_are_read_back_as_they_were(value: Any) -> None:
    assert override({}, [f"a.b={written(value)}"]) == {"a": {"b": value}}


def test_every_variation_meets_every_point_of_the_grid_and_every_seed() -> None:
    recipe = comparison(
        pretrain=PRETRAIN,
        variations={"bert": {}, "reformer": {"pretrain": {"model.preset": "reformer-mini"}}},
        grid={"pretrain.model.num_hidden_layers": [2, 3], "pretrain.train.batch_size": [5, 11, 13]},
        seeds=2,
        first_seed=17,
        budget={"steps": 19},
    )
    made = trials(recipe)
    assert len(made) == 2 * 2 * 3 * 2
    assert [trial.seed for trial in made] == [17] * 12 + [18] * 12  # a comparison cut short has something of everything
    assert made[5].place == "bert-num_hidden_layers=3-batch_size=13/seed-17"
    assert made[5].varied == {"pretrain.model.num_hidden_layers": 3, "pretrain.train.batch_size": 13}
    assert made[5].settings == {
        "pretrain": [
            "data.corpus=here",
            "model.num_hidden_layers=3",
            "train.batch_size=13",
            "train.seed=17",
            "train.budget={steps: 19}",
        ]
    }
    assert "model.preset=reformer-mini" in made[6].settings["pretrain"]
    assert len({trial.place for trial in made}) == 24


def test_the_budget_replaces_that_of_the_recipe() -> None:
    made = trials(comparison(pretrain=PRETRAIN, budget={"tokens": "5M"}))
    tree = override({"train": {"budget": {"time": 7200}}}, made[0].settings["pretrain"])
    assert tree["train"] == {"batch_size": 7, "seed": 0, "budget": {"tokens": 5_000_000}}


def test_stages_follow_one_another_or_begin_with_a_checkpoint() -> None:
    recipe = comparison(
        pretrain=PRETRAIN,
        finetune={**TASK, "tone": {"recipe": "classify-frozen"}},
        variations={
            "own": {"finetune": {"train.batch_size": 3}, "tasks": {"tone": {"data.length": 31, "train.batch_size": 5}}},
            "given": {"start_from": "some/model"},
            "further": {"pretrain": {"start_from": "other/model", "recipe": "bert-mini"}},
        },
        seeds=1,
        budget={"steps": 3},
    )
    own, given, further = trials(recipe)
    assert [(s.name, s.kind, s.recipe, s.start_from) for s in own.stages] == [
        ("pretrain", "pretrain", "electra-tiny", None),
        ("topics", "finetune", "classify", None),
        ("tone", "finetune", "classify-frozen", None),
    ]
    assert own.settings["topics"] == ["data.train=a.csv", "train.batch_size=3", "train.seed=0", "baselines=false"]
    assert own.settings["tone"] == ["data.length=31", "train.batch_size=5", "train.seed=0", "baselines=false"]
    assert [(s.name, s.start_from) for s in given.stages] == [("topics", "some/model"), ("tone", "some/model")]
    assert (further.stages[0].recipe, further.stages[0].start_from) == ("bert-mini", "other/model")
    assert further.stages[1].start_from is None


def test_word_vectors_are_of_the_stage_of_pretraining() -> None:
    recipe = comparison(
        pretrain={**PRETRAIN, "vectors": "words.bin"},
        variations={"given": {}, "drawn": {"pretrain": {"vectors": None}}, "other": {"pretrain": {"vectors": "glove"}}},
        seeds=1,
    )
    assert [trial.stages[0].vectors for trial in trials(recipe)] == ["words.bin", None, "glove"]
    assert all("vectors" not in " ".join(trial.stages[0].settings) for trial in trials(recipe))


def test_without_pretraining_the_budget_is_that_of_each_task() -> None:
    made = trials(comparison(finetune=TASK, start_from="some/model", budget={"epochs": 2}, seeds=1))
    assert made[0].settings == {
        "topics": ["data.train=a.csv", "train.seed=0", "train.budget={epochs: 2.0}", "baselines=false"]
    }
    assert made[0].place == "base/seed-0"


def test_a_setting_goes_over_those_below_it() -> None:
    stage = PRETRAIN | {"settings": {"model.attention.k": 3, "data.corpus": "here"}}
    recipe = comparison(
        pretrain=stage, seeds=1, variations={"full": {"pretrain": {"model": {"attention": {"kind": "full"}}}}}
    )
    assert trials(recipe)[0].settings["pretrain"][:2] == ["data.corpus=here", "model.attention={kind: full}"]


def test_names_of_the_grid_are_names_of_folders_and_differ() -> None:
    heads = [{"kind": "cnn", "widths": [2]}, {"kind": "cnn", "widths": [3]}]
    grid = {"finetune.objective.head": heads, "finetune.data.train": ["a b/c.csv"]}
    made = trials(comparison(finetune=TASK, start_from="x", grid=grid, seeds=1))
    assert [trial.name for trial in made] == ["head=cnn-train=c.csv", "head=cnn-train=c.csv.2"]


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({}, "nothing to compare"),
        ({"pretrain": {"recipe": "bert-mini"}, "start_from": "x"}, "leave pretrain or it out"),
        ({"finetune": TASK}, "has no model; give start_from"),
        ({"pretrain": PRETRAIN, "variations": {"a/b": {}}}, "'a/b' is not a name"),
        ({"pretrain": PRETRAIN, "variations": {"..": {}}}, "is not a name"),
        ({"pretrain": PRETRAIN, "grid": {"model.hidden_size": [3]}}, "must begin with pretrain."),
        ({"pretrain": PRETRAIN, "grid": {"pretrain.model.hidden_size": []}}, "has no values"),
        ({"pretrain": PRETRAIN, "grid": {"tasks.topcs.data.length": [3]}, "finetune": TASK}, "did you mean 'topics'"),
        ({"pretrain": PRETRAIN, "variations": {"a": {"tasks": {"x": {}}}}, "finetune": TASK}, "no task 'x'"),
        ({"pretrain": PRETRAIN, "varations": {}}, "did you mean 'variations'"),
        ({"pretrain": PRETRAIN, "variations": {"a": {"pretrain": {"train.seed": 3}}}}, "leave train.seed out"),
        ({"pretrain": PRETRAIN, "budget": {"stepps": 3}}, "did you mean 'steps'"),
        (
            {"pretrain": PRETRAIN, "budget": {"steps": 3}, "grid": {"pretrain.train.budget.steps": [3, 5]}},
            "the budget is the same for all",
        ),
        (
            {"pretrain": PRETRAIN, "finetune": TASK, "variations": {"a": {"start_from": "x", "pretrain": {"y": 1}}}},
            "pretrains nothing, so y has no meaning",
        ),
        ({"pretrain": PRETRAIN, "search": {"space": {"pretrain.x": {"low": 3, "high": 2}}}}, "must be below high"),
        ({"pretrain": PRETRAIN, "search": {"space": {"pretrain.x": {"choices": [2]}}}}, "choices"),
        (
            {
                "pretrain": PRETRAIN,
                "grid": {"pretrain.x": [1]},
                "search": {"space": {"pretrain.x": {"choices": [1, 2]}}},
            },
            "is in grid and in search",
        ),
    ],
)
def test_mistakes_are_said(tree: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as told:
        trials(comparison(**tree))
    assert "\n" not in str(told.value)
