"""Trials of a comparison: variations crossed with a grid, each with every seed; a trial is a list of stages."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePath
from typing import Literal

import yaml
from pydantic import JsonValue

from homespun.compare.recipe import LONGEST, CompareRecipe, Variation, flat
from homespun.errors import UserError, nearest
from homespun.training.config import Budget

_RESERVED = {
    "train.seed": "`seeds` and `first_seed` of the comparison set it",
    "seeds": "`seeds` of the comparison sets it",
    "baselines": "they are measured once for all trials",
}


Settings = Mapping[str, JsonValue]
"""Values by dotted key, such as ``pretrain.train.batch_size``."""


@dataclass(frozen=True)
class Stage:
    """Training process."""

    name: str  # `pretrain`, or the name of the task
    kind: Literal["pretrain", "finetune"]  # the command
    recipe: str
    start_from: str | None  # initial model; None: a new one, or the result of the preceding pretraining
    settings: tuple[str, ...]  # `KEY=VALUE` changes to the recipe; later ones override earlier ones
    vectors: str | None = None  # word vectors that initialise the embeddings


@dataclass(frozen=True)
class Variant:
    """Variation with one point of the grid, for all seeds."""

    name: str
    variation: Variation
    varied: Settings


@dataclass(frozen=True)
class Trial:
    """Variant with one seed. Stages are built on first use, so that `check` can list the errors of all trials."""

    recipe: CompareRecipe
    variant: Variant
    seed: int  # random seed of all stages
    found: Settings = field(default_factory=dict)  # settings that a search found for the variant

    @property
    def name(self) -> str:
        """Name of the variant."""
        return self.variant.name

    @property
    def subfolder(self) -> str:
        """Path below ``trials/``."""
        return f"{self.name}/seed-{self.seed}"

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """Stages in the order in which they run.

        Raises:
            UserError: settings that the comparison reserves, or of a stage that does not exist.
        """
        tasks = self.recipe.finetune
        for task in self.variant.variation.tasks:
            if task not in tasks:
                raise UserError(f"no task {task!r}{nearest(task, tasks)}")
        stages = (*_pretraining(self), *(_finetuning(self, task) for task in tasks))
        if not stages:
            raise UserError("no stage: give pretrain, or a task in finetune")
        return stages

    @property
    def settings(self) -> dict[str, list[str]]:
        """Settings by stage, as in ``trial.json``."""
        return {stage.name: list(stage.settings) for stage in self.stages}

    @property
    def pretraining(self) -> Stage | None:
        """Pretraining stage, or None."""
        return next((stage for stage in self.stages if stage.kind == "pretrain"), None)


def variants(recipe: CompareRecipe) -> list[Variant]:
    """Cross the variations with all points of the grid, in the order of the recipe."""
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


def trials(recipe: CompareRecipe, *, found: Mapping[str, Settings] | None = None) -> list[Trial]:
    """Cross variants with seeds, and add the settings that a search ``found``, by variant.

    The first seed of all variants comes first, for comparisons that are stopped early.
    """
    counts = [(variant, variant.variation.seeds or recipe.seeds) for variant in variants(recipe)]
    return [
        Trial(recipe, variant, recipe.first_seed + number, (found or {}).get(variant.name, {}))
        for number in range(max(count for _, count in counts))
        for variant, count in counts
        if number < count
    ]


def first_trials(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials with the first seed; with a search, at the first point of its space."""
    return [
        trial if trial.recipe.search is None else replace(trial, found=trial.recipe.search.points()[0])
        for trial in trials
        if trial.seed == trials[0].seed
    ]


def _pretraining(trial: Trial) -> list[Stage]:
    recipe, variation, base = trial.recipe, trial.variant.variation, trial.recipe.pretrain
    if variation.start_from is not None or base is None:
        if ignored := [*variation.pretrain, *_below("pretrain.", trial.variant.varied)]:
            raise UserError(f"without pretraining, {', '.join(ignored)} has no effect; leave it out")
        return []
    parts = [base.settings, variation.pretrain, _below("pretrain.", {**trial.variant.varied, **trial.found})]
    settings = _joined(parts, recipe.budget)
    name = _argument(settings, "recipe", base.recipe)
    start_from, vectors = (_optional_argument(settings, key, getattr(base, key)) for key in ("start_from", "vectors"))
    return [Stage("pretrain", "pretrain", name, start_from, _assignments(settings, trial.seed, recipe.budget), vectors)]


def _finetuning(trial: Trial, task: str) -> Stage:
    recipe, variation, base = trial.recipe, trial.variant.variation, trial.recipe.finetune[task]
    chosen = {**trial.variant.varied, **trial.found}
    parts = [base.settings, variation.finetune, variation.tasks.get(task, {})]
    parts += [_below("finetune.", chosen), _below(f"tasks.{task}.", chosen)]
    # the budget applies to pretraining if there is any
    budget = recipe.budget if recipe.pretrain is None else None
    start_from = variation.start_from or recipe.start_from
    if start_from is None and recipe.pretrain is None:
        raise UserError(f"task {task} has no model; give start_from, or pretrain one")
    settings = _joined(parts, budget)
    name = _argument(settings, "recipe", base.recipe)
    # baselines are measured once for all trials with the same examples
    assignments = (*_assignments(settings, trial.seed, budget), "baselines=false")
    return Stage(task, "finetune", name, start_from, assignments)


def _argument(settings: dict[str, JsonValue], key: str, default: JsonValue) -> str:
    """Remove an argument of a stage from its settings."""
    value = settings.pop(key, default)
    if not isinstance(value, str):
        raise UserError(f"{key}={value!r} must be a name or a path")
    return value


def _optional_argument(settings: dict[str, JsonValue], key: str, default: str | None) -> str | None:
    if settings.get(key, default) is not None:
        return _argument(settings, key, default)
    settings.pop(key, None)
    return None


def _joined(parts: Sequence[Settings], budget: Budget | None) -> dict[str, JsonValue]:
    """Join settings; later ones override earlier ones, and a key overrides the keys below it."""
    joined: dict[str, JsonValue] = {}
    for part in parts:
        for key, value in flat(part).items():
            if key in _RESERVED:
                raise UserError(f"leave {key} out, {_RESERVED[key]}")
            if budget is not None and f"{key}.".startswith("train.budget."):
                raise UserError(
                    f"{key} conflicts with `budget`, which is the same for all variations; leave out one of them"
                )
            joined = {old: v for old, v in joined.items() if old != key and not old.startswith(f"{key}.")}
            joined[key] = value
    return joined


def _assignments(settings: Settings, seed: int, budget: Budget | None) -> tuple[str, ...]:
    """Convert settings to assignments, with the seed and budget of the comparison last."""
    own: dict[str, object] = {"train.seed": seed}
    if budget is not None:
        own["train.budget"] = budget.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return tuple(f"{key}={to_yaml(value)}" for key, value in {**settings, **own}.items())


def _below(prefix: str, chosen: Settings) -> dict[str, JsonValue]:
    return {key.removeprefix(prefix): value for key, value in chosen.items() if key.startswith(prefix)}


def to_yaml(value: object) -> str:
    """Format a value as YAML on one line, which `homespun.config.override` reads."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**9, allow_unicode=True, sort_keys=False)
    return str(text).strip().removesuffix("...").strip()


def _labels(keys: Sequence[str]) -> list[str]:
    """Return the shortest unique end of each key."""
    return [next((end for end in _ends(key) if sum(end in _ends(other) for other in keys) == 1), key) for key in keys]


def _ends(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[-count:]) for count in range(1, len(parts) + 1)]


def _cut(title: str) -> str:
    """Shorten a title to a folder name; a shortened name ends in a digest."""
    if len(title) <= LONGEST:
        return title
    digest = hashlib.blake2b(title.encode(), digest_size=4).hexdigest()
    return f"{title[: LONGEST - len(digest) - 1]}-{digest}"


def _word(value: object) -> str:
    """Format a value of the grid as part of a folder name."""
    if isinstance(value, Mapping):
        value = value.get("kind", "-".join(_word(v) for v in value.values()))
    if isinstance(value, list):
        return "-".join(_word(item) for item in value)
    text = f"{value:g}" if isinstance(value, float) else PurePath(str(value)).name
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", text) or "_"
