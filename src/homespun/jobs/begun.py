"""Going on with a run as it was begun, where the recipe does not say what has to be as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml

from homespun.config import read_yaml
from homespun.jobs.recipe import FinetuneRecipe, PretrainRecipe
from homespun.training.checkpoint import write_file

R = TypeVar("R", PretrainRecipe, FinetuneRecipe)


def as_begun(recipe: R, out: str | Path, *, main: bool = True) -> R:
    """``recipe`` with the ``data.split_seed`` of the run in ``out``, where there is a run and it is not given.

    Before there was such a setting rows were divided by ``train.seed``; a run from then goes on with the rows that it
    has, and its configs say so from now on.

    Args:
        recipe: what the run is to go on with.
        out: its folder.
        main: whether this process writes, one of several.

    Raises:
        UserError: the run's config is damaged.
    """
    path = Path(out) / "config.yaml"
    if "split_seed" in recipe.data.model_fields_set or not path.is_file():
        return recipe
    tree = read_yaml(path)
    known = _known(tree)
    seed = _before(tree) if known is None else known
    if known is None and main:
        _write_all(Path(out), seed)
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"split_seed": seed})})


def _known(tree: dict[str, Any]) -> int | None:
    data = tree.get("data")
    found = data.get("split_seed") if isinstance(data, dict) else None
    return found if isinstance(found, int) else None


def _before(tree: dict[str, Any]) -> int:
    train = tree.get("train")
    found = train.get("seed") if isinstance(train, dict) else None
    return found if isinstance(found, int) else 0


def _write_all(run: Path, seed: int) -> None:
    """Into the configs of a run and its trainings; its own last, since that is the one that is asked."""
    for path in (*sorted(run.glob("trials/*/config.yaml")), run / "config.yaml"):
        tree = read_yaml(path)
        data = tree.get("data")
        if isinstance(data, dict):
            data["split_seed"] = seed
            write_file(path, str(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=100)))
