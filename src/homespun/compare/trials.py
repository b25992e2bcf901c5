"""What a comparison runs: variations joined with a grid, each with every seed, each a row of stages."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePath
from typing import Any, Literal

import yaml

from homespun.compare.recipe import LONGEST, CompareRecipe, FinetuneStage, PretrainStage, Variation, flat
from homespun.errors import UserError, nearest
from homespun.training.config import Budget

_RESERVED = {
    "train.seed": "the comparison's `seeds` and `first_seed` say it",
    "seeds": "the comparison's own `seeds` say it",
    "baselines": "they are measured once for all trials",
}


@dataclass(frozen=True)
class Stage:
    """One process of training.

    Args:
        name: ``pretrain``, or the task's.
        kind: which command it is.
        recipe: its recipe.
        start_from: the model it begins with; None: a fresh one, or that of the pretraining before it.
        settings: ``KEY=VALUE`` changes to the recipe, later ones over earlier.
        vectors: word vectors that its embeddings begin with; None: none.
    """

    name: str
    kind: Literal["pretrain", "finetune"]
    recipe: str
    start_from: str | None
    settings: tuple[str, ...]
    vectors: str | None = None


@dataclass(frozen=True)
class Variant:
    """One line of the comparison, whatever the seed: a variation and one point of the grid."""

    name: str
    variation: Variation
    varied: Mapping[str, Any]


@dataclass(frozen=True)
class Trial:
    """One line with one seed. Its stages are made when they are asked for: so `check` can list the mistakes of all.

    Args:
        recipe: the comparison.
        variant: a variation and a point of the grid.
        seed: of all its stages.
        found: what a search found for the variant, by key.
    """

    recipe: CompareRecipe
    variant: Variant
    seed: int
    found: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The line's."""
        return self.variant.name

    @property
    def about(self) -> str:
        """The variation's."""
        return self.variant.variation.description

    @property
    def varied(self) -> dict[str, Any]:
        """What the grid set, by key."""
        return dict(self.variant.varied)

    @property
    def subfolder(self) -> str:
        """Where it lies below ``trials/``."""
        return f"{self.name}/seed-{self.seed}"

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """What is run, one after the other.

        Raises:
            UserError: settings that are the comparison's own to make, or are of a stage that there is not.
        """
        tasks = self.recipe.finetune
        for task in self.variant.variation.tasks:
            if task not in tasks:
                raise UserError(f"no task {task!r}{nearest(task, tasks)}")
        stages = (*_pretraining(self), *(_finetuning(self, task) for task in tasks))
        if not stages:
            raise UserError("it has no stage: it pretrains nothing, and there is no task in finetune")
        return stages

    @property
    def settings(self) -> dict[str, list[str]]:
        """By stage, as trial.json has them."""
        return {stage.name: list(stage.settings) for stage in self.stages}

    @property
    def pretraining(self) -> Stage | None:
        """Its first stage, where that is pretraining."""
        return next((stage for stage in self.stages if stage.kind == "pretrain"), None)


def variants(recipe: CompareRecipe) -> list[Variant]:
    """Variations joined with all combinations of the grid, in the order in which they are written."""
    result: dict[str, Variant] = {}
    labels = _labels(list(recipe.grid))
    for name, variation in (recipe.variations or {"": Variation()}).items():
        for point in itertools.product(*recipe.grid.values()):
            parts = [name, *(f"{label}={_word(value)}" for label, value in zip(labels, point, strict=True))]
            title = "-".join(part for part in parts if part) or "base"
            titles = itertools.chain([title], (f"{title}.{number}" for number in itertools.count(2)))
            unique = next(cut for cut in map(_cut, titles) if cut not in result)
            result[unique] = Variant(unique, variation, dict(zip(recipe.grid, point, strict=True)))
    return list(result.values())


def trials(recipe: CompareRecipe, *, found: Mapping[str, Mapping[str, Any]] | None = None) -> list[Trial]:
    """Every line with every seed. The first seed of all comes first, so that a comparison that is stopped early has
    something of everything.

    Args:
        recipe: the comparison.
        found: by line, what a search found, by key.
    """
    every = variants(recipe)
    seeds = range(recipe.first_seed, recipe.first_seed + recipe.seeds)
    return [Trial(recipe, variant, seed, (found or {}).get(variant.name, {})) for seed in seeds for variant in every]


def first_trials(trials: Sequence[Trial]) -> list[Trial]:
    """Of every line the trial with the first seed; where there is a search, at the first point of its space."""
    return [
        trial if trial.recipe.search is None else replace(trial, found=trial.recipe.search.points()[0])
        for trial in trials
        if trial.seed == trials[0].seed
    ]


def _pretraining(trial: Trial) -> list[Stage]:
    recipe, variation, base = trial.recipe, trial.variant.variation, trial.recipe.pretrain
    if variation.start_from is not None or base is None:
        if ignored := [*variation.pretrain, *_below("pretrain.", trial.varied)]:
            raise UserError(f"it pretrains nothing, so {', '.join(ignored)} has no meaning; leave it out")
        return []
    parts = [base.settings, variation.pretrain, _below("pretrain.", {**trial.varied, **trial.found})]
    settings = _joined(parts, recipe.budget)
    given = _taken(settings, base, ("recipe", "start_from", "vectors"))
    return [Stage("pretrain", "pretrain", settings=_closed(settings, trial.seed, recipe.budget), **given)]


def _finetuning(trial: Trial, task: str) -> Stage:
    recipe, variation, base = trial.recipe, trial.variant.variation, trial.recipe.finetune[task]
    chosen = {**trial.varied, **trial.found}
    parts = [base.settings, variation.finetune, variation.tasks.get(task, {})]
    parts += [_below("finetune.", chosen), _below(f"tasks.{task}.", chosen)]
    # the budget is that of pretraining where there is any
    budget = recipe.budget if recipe.pretrain is None else None
    start_from = variation.start_from or recipe.start_from
    if start_from is None and recipe.pretrain is None:
        raise UserError(f"task {task} has no model; give start_from, or pretrain one")
    settings = _joined(parts, budget)
    given = _taken(settings, base, ("recipe",))
    # what a task must beat is measured once for all trials that are given the same examples
    closed = (*_closed(settings, trial.seed, budget), "baselines=false")
    return Stage(task, "finetune", start_from=start_from, settings=closed, **given)


def _taken(settings: dict[str, Any], base: PretrainStage | FinetuneStage, keys: Sequence[str]) -> dict[str, Any]:
    """What a stage is given beside settings, taken out of these where they have it."""
    given = {key: settings.pop(key, getattr(base, key)) for key in keys}
    for key, value in given.items():
        if not isinstance(value, str) and (value is not None or key == "recipe"):
            raise UserError(f"{key}={value!r} is neither a name nor a path; write one")
    return given


def _joined(parts: Sequence[Mapping[str, Any]], budget: Budget | None) -> dict[str, Any]:
    """Settings, later ones over earlier: a key also goes over those below it."""
    joined: dict[str, Any] = {}
    for part in parts:
        for key, value in flat(part).items():
            if key in _RESERVED:
                raise UserError(f"leave {key} out, {_RESERVED[key]}")
            if budget is not None and f"{key}.".startswith("train.budget."):
                raise UserError(
                    f"{key} is not its own to choose, the budget is the same for all; leave it out, or leave the "
                    f"comparison's `budget` out"
                )
            joined = {old: v for old, v in joined.items() if old != key and not old.startswith(f"{key}.")}
            joined[key] = value
    return joined


def _closed(settings: Mapping[str, Any], seed: int, budget: Budget | None) -> tuple[str, ...]:
    """As assignments, with what the comparison itself says last."""
    own: dict[str, Any] = {"train.seed": seed}
    if budget is not None:
        own["train.budget"] = budget.model_dump(mode="json", exclude_none=True)
    return tuple(f"{key}={to_yaml(value)}" for key, value in {**settings, **own}.items())


def _below(prefix: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in chosen.items() if key.startswith(prefix)}


def to_yaml(value: Any) -> str:
    """A value as YAML on one line, as `homespun.config.override` reads it back."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**9, allow_unicode=True, sort_keys=False)
    return str(text).strip().removesuffix("...").strip()


def _labels(keys: Sequence[str]) -> list[str]:
    """The end of each key, as much as no other key ends with."""
    return [next((end for end in _ends(key) if sum(end in _ends(other) for other in keys) == 1), key) for key in keys]


def _ends(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[-count:]) for count in range(1, len(parts) + 1)]


def _cut(title: str) -> str:
    """A title as the name of a folder: one that is too long ends in a digest."""
    if len(title) <= LONGEST:
        return title
    digest = hashlib.blake2b(title.encode(), digest_size=4).hexdigest()
    return f"{title[: LONGEST - len(digest) - 1]}-{digest}"


def _word(value: Any) -> str:
    """A value of the grid in the name of a folder."""
    if isinstance(value, Mapping):
        value = value.get("kind", "-".join(_word(v) for v in value.values()))
    if isinstance(value, list):
        return "-".join(_word(item) for item in value)
    text = f"{value:g}" if isinstance(value, float) else PurePath(str(value)).name
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", text) or "_"
