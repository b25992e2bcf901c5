"""The config of a comparison: what all trials share, in what they vary, how often each is repeated."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, FiniteFloat, model_validator

from homespun.commands.recipe import comparison_names, recipe_names, recipe_tree
from homespun.config import Config, Tree, override, validate
from homespun.errors import UserError, nearest
from homespun.training.config import Budget

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=-]*")
_GRID_KEYS = ("pretrain.", "finetune.", "tasks.")
_OF_A_TRIAL = ("pretrain", "logs", "trial.json")  # what lies in its folder beside its tasks
LONGEST = 255  # characters in the name of a folder


def _variations(values: dict[str, Any]) -> dict[str, Any]:
    """Names become names of folders."""
    return _named(values, LONGEST)


def _tasks(values: dict[str, Any]) -> dict[str, Any]:
    """Names become names of folders in that of a trial, and of logs."""
    for name in _OF_A_TRIAL:
        if name in values:
            raise ValueError(f"a task cannot be named {name}, which a trial's folder has already; give it another name")
    return _named(values, LONGEST - len("@99.log"))


def _named(values: dict[str, Any], longest: int) -> dict[str, Any]:
    for name in values:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a name: letters, digits and _.+=- only, and a letter or digit first")
        if len(name) > longest:
            raise ValueError(f"{name[:20]!r}... has {len(name)} characters, and a name at most {longest}; shorten it")
    return values


Settings = Annotated[
    dict[str, Any], Field(description="changes to the recipe, by key: train.batch_size: 32, or nested as in a recipe")
]


class PretrainStage(Config):
    """Pretraining, the same for all trials but for what a variation changes."""

    recipe: str = Field(description="a shipped recipe for pretraining, or a .yaml file")
    start_from: str | None = Field(default=None, description="model to go on from (`pretrain --from`)")
    vectors: str | None = Field(default=None, description="word vectors to begin with (`pretrain --vectors`)")
    settings: Settings = Field(default={})


class FinetuneStage(Config):
    """A task to fine-tune every trial's model for."""

    recipe: str = Field(default="classify", description="a shipped recipe for fine-tuning, or a .yaml file")
    settings: Settings = Field(default={})


class Variation(Config):
    """What one line of the comparison has of its own."""

    description: str = ""
    start_from: str | None = Field(default=None, description="fine-tune this model, in place of pretraining one")
    pretrain: Settings = Field(default={}, description="changes to pretraining; `recipe`, `start_from`, `vectors` too")
    finetune: Settings = Field(default={}, description="changes to every task; `recipe` too")
    tasks: dict[str, Settings] = Field(default={}, description="changes to one task, by its name")


class Range(Config):
    """Numbers to search."""

    low: FiniteFloat
    high: FiniteFloat
    log: bool = Field(default=False, description="by powers, as learning rates are")
    integer: bool = Field(default=False, description="whole numbers only")

    @model_validator(mode="after")
    def _makes_sense(self) -> Range:
        if not self.low < self.high:
            raise ValueError(f"low={self.low:g} must be below high={self.high:g}; change them")
        if self.log and self.low <= 0:
            raise ValueError(f"low={self.low:g} must be above zero where log is true; raise it, or leave log out")
        for name, end in (("low", self.low), ("high", self.high)):
            if self.integer and not end.is_integer():
                raise ValueError(f"{name}={end:g} must be whole where integer is true; change it, or leave integer out")
        return self

    def samples(self) -> list[int | float]:
        """Both ends, and a number between them: none that is whole, where not only these are searched."""
        if self.integer:
            return [int(self.low), int(self.high)]
        middle = (self.low + self.high) / 2
        return [self.low, middle + 0.5 if self.low.is_integer() and middle.is_integer() else middle, self.high]


class Choices(Config):
    """Values to choose from."""

    choices: list[Any] = Field(min_length=2)

    def samples(self) -> list[Any]:
        """All of them."""
        return self.choices


def _space(value: Any) -> Any:
    """A mistake is then told of the one that was meant alone."""
    if isinstance(value, Range | Choices):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("write low and high, or choices")
    return (Choices if "choices" in value else Range).model_validate(value)


class Search(Config):
    """A search for the settings that each variation is at its best with, before it is compared.

    Every variation has as many trials, under the budget of the comparison, with the first seed; what is found goes into
    its trials over all seeds. What is looked at is the validation, never the test.
    """

    space: dict[str, Annotated[Range | Choices, BeforeValidator(_space)]] = Field(
        min_length=1, description="by key, as in `grid`"
    )
    trials: int = Field(default=16, ge=1, description="of each variation")
    task: str = Field(default="", description="the task whose validation counts; the first, or else pretraining")
    metric: str = Field(default="", description="of that validation, such as macro_f1; its loss if not given")
    storage: str = Field(default="", description="of Optuna, to share with other machines; sqlite in the folder if not")
    seed: int = Field(default=0, ge=0, description="of the sampler")

    def points(self) -> list[dict[str, Any]]:
        """Some points of the space, by key: every key's first value, and each other one beside the others' first."""
        values = {key: space.samples() for key, space in self.space.items()}
        first = {key: samples[0] for key, samples in values.items()}
        return [first, *(first | {key: value} for key, samples in values.items() for value in samples[1:])]


class BenchmarkSettings(Config):
    """What a trial's model is measured for in inference."""

    lengths: list[int] = Field(default=[128, 512], description="tokens a text; a model leaves out those beyond it")
    batch_size: int = Field(default=1, ge=1)


class CompareRecipe(Config):
    """A comparison: stages, variations, a grid, a budget, seeds."""

    kind: Literal["compare"] = "compare"
    description: str = Field(default="", description="one line on what this comparison is to tell")
    pretrain: PretrainStage | None = None
    finetune: Annotated[dict[str, FinetuneStage], AfterValidator(_tasks)] = Field(default={}, description="by task")
    start_from: str | None = Field(default=None, description="model to fine-tune, where there is no pretraining")
    variations: Annotated[dict[str, Variation], AfterValidator(_variations)] = Field(default={}, description="by name")
    grid: dict[str, list[Any]] = Field(
        default={}, description="values by key, pretrain.KEY, finetune.KEY or tasks.TASK.KEY: all combinations"
    )
    budget: Budget | None = Field(
        default=None, description="of pretraining, or of each task without it; the recipe's own where not given"
    )
    seeds: int = Field(default=3, ge=1, description="repetitions of each variation")
    first_seed: int = Field(default=0, ge=0)
    different_tokenizers: bool = Field(default=False, description="the trials' corpora may differ in their tokenizers")
    benchmark: BenchmarkSettings | None = BenchmarkSettings()
    search: Search | None = None
    max_parallel: int = Field(default=1, ge=1, description="trials under way at a time, which share the threads")

    @model_validator(mode="after")
    def _makes_sense(self) -> CompareRecipe:
        if self.pretrain is None and not self.finetune:
            raise ValueError("nothing to compare: give pretrain, or finetune with a task, or both")
        if self.pretrain is not None and self.start_from is not None:
            raise ValueError("start_from is the model to fine-tune, where none is pretrained: leave pretrain or it out")
        keys = [*(("grid", key) for key in self.grid), *(("search.space", key) for key in self._space())]
        for where, key in keys:
            if not key.startswith(_GRID_KEYS):
                raise ValueError(f"{where} key {key!r} must begin with pretrain., finetune. or tasks.TASK.")
            stage, task = key.split(".")[:2]
            if stage == "tasks" and task not in self.finetune:
                raise ValueError(f"{where} key {key!r}: no task {task!r}{nearest(task, self.finetune)}")
            if (stage == "pretrain" and self.pretrain is None) or (stage == "finetune" and not self.finetune):
                raise ValueError(f"{where} key {key!r} is of {stage}, and there is none; leave it out, or give {stage}")
        for key, values in self.grid.items():
            if not values:
                raise ValueError(f"grid key {key!r} has no values; give a list of them, or leave it out")
        twice = sorted(set(self.grid) & set(self._space()))
        if twice:
            raise ValueError(f"{', '.join(twice)} is in grid and in search; leave it in one of them")
        if self.search is not None and self.search.task and self.search.task not in self.finetune:
            raise ValueError(f"search.task={self.search.task!r} is no task; there are: {', '.join(self.finetune)}")
        return self

    @property
    def searched(self) -> str:
        """The stage whose validation counts in a search."""
        given = "" if self.search is None else self.search.task
        return given or next(iter(self.finetune), "pretrain")

    def _space(self) -> Sequence[str]:
        return () if self.search is None else tuple(self.search.space)


def compare_recipe(name: str, overrides: Sequence[str] = ()) -> CompareRecipe:
    """The comparison in a .yaml file, or a shipped one, with ``KEY=VALUE`` overrides applied, validated.

    Raises:
        UserError: unknown recipe, key or value, each with what is near or allowed.
    """
    known = comparison_names()
    if not name.endswith((".yaml", ".yml")) and name not in {*known, *recipe_names()}:
        raise UserError(f"unknown comparison {name!r}{nearest(name, known)} (or give the path of a .yaml file)")
    tree: Tree = override(recipe_tree(name), overrides)
    if tree.get("kind") != "compare":
        raise UserError(f"{name} is of kind {tree.get('kind')!r}; a comparison is of kind: compare")
    return validate(CompareRecipe, tree, source=name)


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys of settings, nested or not.

    A mapping with a ``kind`` is one value: it replaces what the recipe has there, of which the keys may be of another.
    So does an empty one.
    """
    result: dict[str, Any] = {}
    for key, value in settings.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and "kind" not in value:
            result |= flat(value, f"{path}.")
        else:
            result[path] = value
    return result
