from typing import Any

import pytest
from comparing import comparison

from homespun.compare.trials import to_yaml, trials
from homespun.config import override
from homespun.errors import UserError

PRETRAIN = {"recipe": "electra-tiny", "settings": {"data.corpus": "here", "train": {"batch_size": 7}}}
TASK = {"topics": {"recipe": "classify", "settings": {"data.train": "a.csv"}}}


def searching(**space: Any) -> dict[str, Any]:
    return {"pretrain": PRETRAIN, "search": {"space": {"pretrain.x": space}}}


def grid(key: str, *values: Any) -> dict[str, Any]:
    return {"pretrain": PRETRAIN, "grid": {key: [*values]}}


def varied(name: str, **changes: Any) -> dict[str, Any]:
    return {"pretrain": PRETRAIN, "variations": {name: changes}}


def test_values_are_read_back_as_they_were() -> None:
    numbers, words = (3, 1e-5, 0.25, True, None), ("text", "1e5", "", "a: b", "yes", "é")
    for value in (*numbers, *words, [1, 2], {"kind": "lsh", "seed": 3}, {"steps": 11}):
        assert override({}, [f"a.b={to_yaml(value)}"]) == {"a": {"b": value}}


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
    assert made[5].subfolder == "bert-num_hidden_layers=3-batch_size=13/seed-17"
    assert made[5].variant.varied == {"pretrain.model.num_hidden_layers": 3, "pretrain.train.batch_size": 13}
    changed = ["model.num_hidden_layers=3", "train.batch_size=13", "train.seed=17", "train.budget={steps: 19}"]
    assert made[5].settings == {"pretrain": ["data.corpus=here", *changed]}
    assert "model.preset=reformer-mini" in made[6].settings["pretrain"]
    assert len({trial.subfolder for trial in made}) == 24


def test_a_variation_may_have_another_number_of_seeds() -> None:
    variations = {"a": {"seeds": 1}, "b": {}, "c": {"seeds": 3}}
    made = trials(comparison(pretrain=PRETRAIN, variations=variations, seeds=2, first_seed=5))
    assert [(trial.name, trial.seed) for trial in made] == [("a", 5), ("b", 5), ("c", 5), ("b", 6), ("c", 6), ("c", 7)]


def test_the_budget_replaces_that_of_the_recipe() -> None:
    made = trials(comparison(pretrain=PRETRAIN, budget={"tokens": "5M"}))
    tree = override({"train": {"budget": {"time": 7200}}}, made[0].settings["pretrain"])
    assert tree["train"] == {"batch_size": 7, "seed": 0, "budget": {"tokens": 5_000_000}}


def test_stages_follow_one_another_or_start_from_a_checkpoint() -> None:
    recipe = comparison(
        pretrain=PRETRAIN,
        finetune={**TASK, "tone": {"recipe": "classify-frozen"}},
        variations={
            "own": {
                "finetune": {"train.batch_size": 3},
                "tasks": {"tone": {"data.max_length": 31, "train.batch_size": 5}},
            },
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
    assert own.settings["tone"] == ["data.max_length=31", "train.batch_size=5", "train.seed=0", "baselines=false"]
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
    assert made[0].subfolder == "base/seed-0"


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


def test_grid_keys_with_equal_ends_get_distinct_labels() -> None:
    grid = {
        "pretrain.data.max_length": [128],
        "finetune.data.max_length": [512],
        "pretrain.model.attention.seed": [3],
        "finetune.objective.head.seed": [5],
        "finetune.train.batch_size": [7],
    }
    (made,) = trials(comparison(pretrain=PRETRAIN, finetune=TASK, grid=grid, seeds=1))
    assert made.name == (
        "pretrain.data.max_length=128-finetune.data.max_length=512-attention.seed=3-head.seed=5-batch_size=7"
    )


def test_long_names_of_the_grid_end_in_a_digest() -> None:
    values = ["a" * 230, "a" * 300, "a" * 299 + "b", "a" * 300]
    made = trials(comparison(pretrain=PRETRAIN, grid={"pretrain.data.corpus": values}, variations={"one": {}}, seeds=1))
    names = [trial.name for trial in made]
    assert names[0] == f"one-corpus={'a' * 230}"
    assert [len(name) for name in names[1:]] == [255, 255, 255]
    assert all(name.startswith(f"one-corpus={'a' * 200}") for name in names)
    assert len(set(names)) == 4
    assert names[1].endswith("a-815c9271")


def test_grid_and_search_choose_recipe_model_and_vectors() -> None:
    grid = {
        "pretrain.recipe": ["electra-tiny", "albert-mini"],
        "pretrain.start_from": ["runs/base", None],
        "pretrain.vectors": ["words.bin"],
        "finetune.recipe": ["classify-frozen"],
    }
    recipe = comparison(pretrain=PRETRAIN, finetune=TASK, grid=grid, seeds=1)
    made = [trial.stages for trial in trials(recipe)]
    assert [(first.recipe, first.start_from, first.vectors) for first, _ in made] == [
        ("electra-tiny", "runs/base", "words.bin"),
        ("electra-tiny", None, "words.bin"),
        ("albert-mini", "runs/base", "words.bin"),
        ("albert-mini", None, "words.bin"),
    ]
    assert {second.recipe for _, second in made} == {"classify-frozen"}
    settings = {setting for first, _ in made for setting in first.settings}
    assert settings == {"data.corpus=here", "train.batch_size=7", "train.seed=0"}
    (found,) = trials(comparison(pretrain=PRETRAIN, seeds=1), found={"base": {"pretrain.recipe": "bert-mini"}})
    assert found.stages[0].recipe == "bert-mini"


def test_names_may_be_as_long_as_those_of_folders() -> None:
    longest = {"a" * 255: {}}
    assert trials(comparison(pretrain=PRETRAIN, variations=longest))[0].name == "a" * 255
    assert comparison(start_from="x", finetune={"b" * 248: {}}).finetune


RESERVED = ("pretrain", "logs", "trial.json")


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({}, "nothing to compare"),
        ({"pretrain": {"recipe": "bert-mini"}, "start_from": "x"}, "pretrain or start_from"),
        ({"finetune": TASK}, "start_from"),
        (varied("a/b"), "'a/b' "),
        (varied(".."), "not a name"),
        (varied("a" * 256), "256 characters.* 255"),
        (varied("a", pretrain={"train.seed": 3}), r"train\.seed"),
        (varied("a", pretrain={"vectors": 7}), "vectors=7 "),
        (varied("a", tasks={"x": {}}) | {"finetune": TASK}, "no task 'x'"),
        (varied("a", start_from="x", pretrain={"y": 1}) | {"finetune": TASK}, "without pretraining, .*y "),
        ({"pretrain": PRETRAIN, "varations": {}}, "'variations'"),
        ({"pretrain": PRETRAIN, "budget": {"stepps": 3}}, "'budget.steps'"),
        (grid("model.hidden_size", 3), r"begin with pretrain\."),
        (grid("pretrain.model.hidden_size"), "has no values"),
        (grid("tasks.topcs.data.max_length", 3) | {"finetune": TASK}, "'topics'"),
        (grid("finetune.data.max_length", 3), "finetune.data.* needs finetune"),
        (grid("pretrain.recipe", 7), "recipe=7 "),
        (grid("pretrain.train.budget.steps", 3, 5) | {"budget": {"steps": 3}}, "budget"),
        (grid("pretrain.x", 1) | searching(choices=[1, 2]), "grid .*search"),
        (searching(low=3, high=2), "below high"),
        (searching(choices=[2]), "choices"),
        (searching(low=0.5, high=8, integer=True, log=True), "^test: search.space.pretrain.x: low=0.5 .*integer"),
        (searching(low=3, hihg=5), "'search.space.pretrain.x.hihg'.*'search.space.pretrain.x.high'"),
        (searching(choices=3), r"^test: search.space.pretrain.x.choices: [^;]*valid list[^;]*$"),
        (searching(low=1, high=7.5, integer=True), "high=7.5 .*integer"),
        (searching(low=0, high=3, log=True), "low=0 .*log"),
        (searching(low=3, high=3), "low=3 .*high=3"),
        (searching(low=3, high=float("inf")), "high"),
        (searching(low=3, high=5) | {"pretrain": None, "finetune": TASK}, "pretrain.x.* needs pretrain"),
        ({"pretrain": PRETRAIN, "search": {"space": {"pretrain.x": 5}}}, "pretrain.x: .*low .*high, .*choices"),
        ({"pretrain": PRETRAIN, "finetune": {"a" * 249: {}}}, "249 characters.* 248"),
        *(({"pretrain": PRETRAIN, "finetune": {name: {}}}, f"cannot be named {name}") for name in RESERVED),
    ],
)
def test_mistakes_are_named(tree: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        assert not [trial.stages for trial in trials(comparison(**tree))]
    assert "\n" not in str(caught.value)
