"""What a comparison runs: variations joined with a grid, each with every seed, each a row of stages."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal

import yaml

from homespun.compare.recipe import CompareRecipe, Variation, flat
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
class Trial:
    """One variation with one seed."""

    name: str
    seed: int
    stages: tuple[Stage, ...]
    about: str = ""
    varied: dict[str, Any] = field(default_factory=dict)  # what the grid set, by key

    @property
    def place(self) -> str:
        """Where it lies below ``trials/``."""
        return f"{self.name}/seed-{self.seed}"

    @property
    def settings(self) -> dict[str, list[str]]:
        """By stage, as trial.json has them."""
        return {stage.name: list(stage.settings) for stage in self.stages}

    @property
    def pretraining(self) -> Stage | None:
        """Its first stage, where that is pretraining."""
        return next((stage for stage in self.stages if stage.kind == "pretrain"), None)


@dataclass(frozen=True)
class Line:
    """One line of the comparison, whatever the seed: a variation and one point of the grid."""

    name: str
    variation: Variation
    varied: Mapping[str, Any]


def lines(recipe: CompareRecipe) -> list[Line]:
    """Variations joined with all combinations of the grid, in the order in which they are written.

    Raises:
        UserError: settings for a task that there is not.
    """
    result: list[Line] = []
    keys, points = list(recipe.grid), list(itertools.product(*recipe.grid.values()))
    for name, variation in (recipe.variations or {"": Variation()}).items():
        for point in points:
            varied = dict(zip(keys, point, strict=True))
            parts = [name, *(f"{key.rpartition('.')[2]}={_word(value)}" for key, value in varied.items())]
            title = "-".join(part for part in parts if part) or "base"
            taken = {line.name for line in result}
            numbers = (f"{title}.{number}" for number in itertools.count(2))
            unique = title if title not in taken else next(other for other in numbers if other not in taken)
            result.append(Line(unique, variation, varied))
    for where, task in _tasks_named(recipe):
        if task not in recipe.finetune:
            raise UserError(f"{where}: no task {task!r}{nearest(task, recipe.finetune)}")
    return result


def _tasks_named(recipe: CompareRecipe) -> Iterator[tuple[str, str]]:
    for name, variation in recipe.variations.items():
        yield from ((f"variation {name}", task) for task in variation.tasks)
    keys = [*recipe.grid, *(recipe.search.space if recipe.search else ())]
    yield from ((key, key.split(".")[1]) for key in keys if key.startswith("tasks."))


def trials(recipe: CompareRecipe, *, found: Mapping[str, Mapping[str, Any]] | None = None) -> list[Trial]:
    """Every line with every seed. The first seed of all comes first, so that a comparison that is stopped early has
    something of everything.

    Args:
        recipe: the comparison.
        found: by line, what a search found, by key.

    Raises:
        UserError: settings that are the comparison's own to make, or for a task that there is not.
    """
    every = lines(recipe)
    seeds = range(recipe.first_seed, recipe.first_seed + recipe.seeds)
    return [trial_of(recipe, line, seed, (found or {}).get(line.name, {})) for seed in seeds for line in every]


def trial_of(recipe: CompareRecipe, line: Line, seed: int, found: Mapping[str, Any]) -> Trial:
    """One line with one seed; ``found`` comes from a search, by key."""
    chosen = {**line.varied, **found}
    variation = line.variation
    stages: list[Stage] = []
    start_from = variation.start_from or recipe.start_from
    if variation.start_from is None and recipe.pretrain is not None:
        base = recipe.pretrain
        own = flat(variation.pretrain)
        name, begin = own.pop("recipe", base.recipe), own.pop("start_from", base.start_from)
        vectors = own.pop("vectors", base.vectors)
        settings = _joined(line.name, [base.settings, own, _below("pretrain.", chosen)], recipe.budget)
        stages.append(Stage("pretrain", "pretrain", name, begin, _closed(settings, seed, recipe.budget), vectors))
    elif ignored := [*variation.pretrain, *_below("pretrain.", line.varied)]:
        raise UserError(
            f"variation {line.name} pretrains nothing, so {', '.join(ignored)} has no meaning; leave it out"
        )
    for task, base_task in recipe.finetune.items():
        own = flat(variation.finetune)
        parts = [base_task.settings, own, flat(variation.tasks.get(task, {}))]
        parts += [_below("finetune.", chosen), _below(f"tasks.{task}.", chosen)]
        # the budget is that of pretraining where there is any
        budget = recipe.budget if recipe.pretrain is None else None
        settings = _joined(line.name, parts, budget)
        name = settings.pop("recipe", base_task.recipe)
        # what a task must beat does not depend on the trial, and is measured once
        closed = (*_closed(settings, seed, budget), "baselines=false")
        stages.append(Stage(task, "finetune", name, None if stages and start_from is None else start_from, closed))
        if start_from is None and recipe.pretrain is None:
            raise UserError(f"variation {line.name}: task {task} has no model; give start_from, or pretrain one")
    if not stages:
        raise UserError(f"variation {line.name} has no stage: it pretrains nothing, and there is no task in finetune")
    return Trial(line.name, seed, tuple(stages), variation.about, dict(line.varied))


def _joined(name: str, parts: Sequence[Mapping[str, Any]], budget: Budget | None) -> dict[str, Any]:
    """Settings, later ones over earlier: a key also goes over those below it."""
    joined: dict[str, Any] = {}
    for part in parts:
        for key, value in flat(part).items():
            if key in _RESERVED:
                raise UserError(f"variation {name}: leave {key} out, {_RESERVED[key]}")
            if budget is not None and f"{key}.".startswith("train.budget."):
                raise UserError(
                    f"variation {name}: {key} is not its own to choose, the budget is the same for all; leave it out, "
                    f"or leave the comparison's `budget` out"
                )
            joined = {old: v for old, v in joined.items() if old != key and not old.startswith(f"{key}.")}
            joined[key] = value
    return joined


def _closed(settings: Mapping[str, Any], seed: int, budget: Budget | None) -> tuple[str, ...]:
    """As assignments, with what the comparison itself says last."""
    own: dict[str, Any] = {"train.seed": seed}
    if budget is not None:
        own["train.budget"] = budget.model_dump(mode="json", exclude_none=True)
    return tuple(f"{key}={written(value)}" for key, value in {**settings, **own}.items())


def _below(prefix: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in chosen.items() if key.startswith(prefix)}


def written(value: Any) -> str:
    """A value as YAML on one line, as `homespun.config.override` reads it back."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**9, allow_unicode=True, sort_keys=False)
    return str(text).strip().removesuffix("...").strip()


def _word(value: Any) -> str:
    """A value of the grid in the name of a folder."""
    if isinstance(value, Mapping):
        value = value.get("kind", "-".join(_word(v) for v in value.values()))
    if isinstance(value, list):
        return "-".join(_word(item) for item in value)
    text = f"{value:g}" if isinstance(value, float) else PurePath(str(value)).name
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", text) or "_"
