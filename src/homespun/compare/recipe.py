"""Config of a comparison: common stages, variations, grid, budget, seeds, search."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, FiniteFloat, JsonValue, model_validator

from homespun.config import Config, Tree, override, validate
from homespun.errors import UserError, nearest
from homespun.recipes import check_comparison_name, recipe_tree
from homespun.training.config import Budget

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=-]*")
_GRID_KEYS = ("pretrain.", "finetune.", "tasks.")
_TRIAL_FILES = ("pretrain", "logs", "trial.json")  # in the folder of a trial, next to its tasks
LONGEST = 255  # characters in the name of a folder


def _folder_name(name: str, longest: int = LONGEST) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a name: letters, digits and _.+=- only, and a letter or digit first")
    if len(name) > longest:
        raise ValueError(f"{name[:20]!r}... has {len(name)} characters, and a name at most {longest}; shorten it")
    return name


def _task_name(name: str) -> str:
    if name in _TRIAL_FILES:
        raise ValueError(f"a task cannot be named {name}, which is a file of every trial; choose another name")
    return _folder_name(name, LONGEST - len("@99.log"))


Settings = Annotated[
    dict[str, JsonValue], Field(description="changes to the recipe: train.batch_size: 32, or nested as in a recipe")
]


class PretrainStage(Config):
    """Pretraining of all trials; variations change settings."""

    recipe: str = Field(description="a shipped recipe for pretraining, or a .yaml file")
    start_from: str | None = Field(default=None, description="model to continue from (`pretrain --from`)")
    vectors: str | None = Field(default=None, description="word vectors to initialise with (`pretrain --vectors`)")
    settings: Settings = Field(default={})


class FinetuneStage(Config):
    """Task on which the model of every trial is fine-tuned."""

    recipe: str = Field(default="classify", description="a shipped recipe for fine-tuning, or a .yaml file")
    settings: Settings = Field(default={})


class Variation(Config):
    """Settings of one variation."""

    description: str = ""
    start_from: str | None = Field(default=None, description="fine-tune this model instead of pretraining one")
    pretrain: Settings = Field(default={}, description="changes to pretraining; `recipe`, `start_from`, `vectors` too")
    finetune: Settings = Field(default={}, description="changes to every task; `recipe` too")
    tasks: dict[str, Settings] = Field(default={}, description="changes to one task, by its name")
    seeds: int | None = Field(default=None, ge=1, description="repetitions; default: those of the comparison")


class Range(Config):
    """Range of numbers to search."""

    low: FiniteFloat
    high: FiniteFloat
    log: bool = Field(default=False, description="logarithmic scale, as for learning rates")
    integer: bool = Field(default=False, description="integers only")

    @model_validator(mode="after")
    def _check_ends(self) -> Range:
        if not self.low < self.high:
            raise ValueError(f"low={self.low:g} must be below high={self.high:g}; change them")
        if self.log and self.low <= 0:
            raise ValueError(f"low={self.low:g} must be positive with log=true; raise it, or leave log out")
        for name, end in (("low", self.low), ("high", self.high)):
            if self.integer and not end.is_integer():
                raise ValueError(f"{name}={end:g} must be an integer if integer=true; change it")
        return self

    def samples(self) -> list[JsonValue]:
        """Return both ends, and without ``integer`` a number between them that is not an integer."""
        if self.integer:
            return [int(self.low), int(self.high)]
        middle = (self.low + self.high) / 2
        return [self.low, middle + 0.5 if self.low.is_integer() and middle.is_integer() else middle, self.high]


class Choices(Config):
    """Values to choose from."""

    choices: list[JsonValue] = Field(min_length=2)

    def samples(self) -> list[JsonValue]:
        """Return all choices."""
        return self.choices


def _space(value: object) -> Range | Choices:
    """Select the class by the keys, so that an error message is only about that class."""
    if isinstance(value, Range | Choices):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("write low and high, or choices")
    return (Choices if "choices" in value else Range).model_validate(value)


class Search(Config):
    """Search for the best settings of each variation, before the comparison.

    Every variation has the same number of trials, under the budget of the comparison, with the first seed. The best
    settings by the validation (never the test) are used for its trials with all seeds.
    """

    space: dict[str, Annotated[Range | Choices, BeforeValidator(_space)]] = Field(
        min_length=1, description="by key, as in `grid`"
    )
    trials: int = Field(default=16, ge=1, description="of each variation")
    task: str = Field(default="", description="task whose validation counts; default: the first one, or pretraining")
    metric: str = Field(default="", description="validation metric, such as macro_f1; default: loss")
    storage: str = Field(default="", description="Optuna storage shared by machines; default: sqlite in the folder")
    seed: int = Field(default=0, ge=0, description="of the sampler")

    def points(self) -> list[dict[str, JsonValue]]:
        """Return points of the space: the first value of every key, each other value with first values elsewhere."""
        values = {key: space.samples() for key, space in self.space.items()}
        first = {key: samples[0] for key, samples in values.items()}
        return [first, *(first | {key: value} for key, samples in values.items() for value in samples[1:])]


class BenchmarkSettings(Config):
    """Inference benchmark of each trained model."""

    lengths: list[int] = Field(default=[128, 512], description="tokens per text; a model skips those beyond its limit")
    batch_size: int = Field(default=1, ge=1)


class CompareRecipe(Config):
    """Recipe of a comparison."""

    kind: Literal["compare"] = "compare"
    description: str = Field(default="", description="one line on the question of this comparison")
    pretrain: PretrainStage | None = None
    finetune: dict[Annotated[str, AfterValidator(_task_name)], FinetuneStage] = Field(default={}, description="by task")
    start_from: str | None = Field(default=None, description="model to fine-tune without pretraining")
    variations: dict[Annotated[str, AfterValidator(_folder_name)], Variation] = Field(default={}, description="by name")
    grid: dict[str, list[JsonValue]] = Field(
        default={}, description="values by key, pretrain.KEY, finetune.KEY or tasks.TASK.KEY: all combinations"
    )
    budget: Budget | None = Field(
        default=None, description="budget of pretraining, or without it of each task; default: the recipe's"
    )
    seeds: int = Field(default=3, ge=1, description="repetitions of each variation")
    first_seed: int = Field(default=0, ge=0)
    different_tokenizers: bool = Field(default=False, description="allow corpora with different tokenizers")
    benchmark: BenchmarkSettings | None = BenchmarkSettings()
    search: Search | None = None
    max_parallel: int = Field(default=1, ge=1, description="trials at a time, which share the threads")
    gpus_per_trial: int = Field(default=1, ge=1, description="GPUs that share each step of a training")

    @model_validator(mode="after")
    def _check_stages(self) -> CompareRecipe:
        if self.pretrain is None and not self.finetune:
            raise ValueError("nothing to compare: give pretrain, or finetune with a task, or both")
        if self.pretrain is not None and self.start_from is not None:
            raise ValueError("start_from is a model to fine-tune without pretraining; leave out pretrain or start_from")
        return self

    @model_validator(mode="after")
    def _check_keys(self) -> CompareRecipe:
        space = {} if self.search is None else self.search.space
        for where, key in [*(("grid", key) for key in self.grid), *(("search.space", key) for key in space)]:
            if not key.startswith(_GRID_KEYS):
                raise ValueError(f"{where} key {key!r} must begin with pretrain., finetune. or tasks.TASK.")
            stage, task = key.split(".")[:2]
            if stage == "tasks" and task not in self.finetune:
                raise ValueError(f"{where} key {key!r}: no task {task!r}{nearest(task, self.finetune)}")
            if (stage == "pretrain" and self.pretrain is None) or (stage == "finetune" and not self.finetune):
                raise ValueError(f"{where} key {key!r} needs {stage}; leave it out, or give {stage}")
        if empty := [key for key, values in self.grid.items() if not values]:
            raise ValueError(f"grid key {empty[0]!r} has no values; give a list, or leave it out")
        if twice := sorted(self.grid.keys() & space.keys()):
            raise ValueError(f"{', '.join(twice)} is in grid and in search; leave it in one of them")
        return self

    @model_validator(mode="after")
    def _check_searched(self) -> CompareRecipe:
        if self.search is not None and self.search.task and self.search.task not in self.finetune:
            raise ValueError(f"search.task={self.search.task!r} is no task; there are: {', '.join(self.finetune)}")
        return self

    @property
    def searched(self) -> str:
        """Stage whose validation a search optimises."""
        given = "" if self.search is None else self.search.task
        return given or next(iter(self.finetune), "pretrain")


def compare_recipe(name: str, overrides: Sequence[str] = ()) -> CompareRecipe:
    """Read and validate a comparison from a .yaml file or by the name of a shipped one, with ``KEY=VALUE`` overrides.

    Args:
        name: name of a shipped comparison, or a path that ends in ``.yaml``.
        overrides: changed settings, such as ``"seeds=5"``; values are YAML.

    Raises:
        UserError: unknown recipe, key or value.
    """
    check_comparison_name(name)
    tree: Tree = override(recipe_tree(name), overrides)
    if tree.get("kind") != "compare":
        raise UserError(f"{name} is of kind {tree.get('kind')!r}; a comparison is of kind: compare")
    return validate(CompareRecipe, tree, source=name)


def flat(settings: Mapping[str, JsonValue], prefix: str = "") -> dict[str, JsonValue]:
    """Flatten nested settings to dotted keys.

    A mapping with a ``kind`` is one value, since it replaces another kind with other keys; so is an empty mapping.
    """
    result: dict[str, JsonValue] = {}
    for key, value in settings.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and value and "kind" not in value:
            result |= flat(value, f"{path}.")
        else:
            result[path] = value
    return result
