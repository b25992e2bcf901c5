"""Initial weights, examples and settings, besides the recipe, that a resumed run must keep."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import yaml
from pydantic import TypeAdapter, ValidationError

from homespun.commands.recipe import FinetuneRecipe, PretrainRecipe, R
from homespun.config import Config, read_yaml, validate
from homespun.errors import UserError
from homespun.io.atomic import write_text
from homespun.io.digest import digest_examples
from homespun.io.json import read_object, write_json
from homespun.migration import RENAMED_FILES, migrate
from homespun.models.bundle import ModelBundle, fingerprint
from homespun.models.config import FROM_TRAINING, AutoSizeConfig, BackboneConfig, same_model
from homespun.training.run import Run
from homespun.vectors.word_vectors import WordVectors

FILE, EXAMPLES = "inputs.json", "examples"


class InitialWeights(Config):
    """Initial weights or examples of a run: name as given, and digest."""

    name: str
    fingerprint: str


RunInputs = Mapping[str, InitialWeights | None]  # key: option; None: the option is not set


def identify_model(name: str | Path | None, stored: ModelBundle | None) -> InitialWeights | None:
    """Return name and digest of a model's weights."""
    if name is None or stored is None:
        return None
    return InitialWeights(name=str(name), fingerprint=fingerprint(stored.model))


def identify_vectors(name: str | Path | None, vectors: WordVectors | None) -> InitialWeights | None:
    """Return name and digest of word vectors."""
    if name is None or vectors is None:
        return None
    digest = hashlib.blake2b(json.dumps(list(vectors.words)).encode(), digest_size=16)
    digest.update(np.ravel(vectors.vectors).data)
    return InitialWeights(name=str(name), fingerprint=digest.hexdigest())


def identify_examples(*parts: Sequence[object]) -> InitialWeights:
    """Return the digest of training, validation and test examples."""
    return InitialWeights(name=EXAMPLES, fingerprint=digest_examples(*parts))


def create_run(
    out: str | Path, recipe: PretrainRecipe | FinetuneRecipe, inputs: RunInputs, *, resume: bool, main: bool = True
) -> Run:
    """Create or resume a run; a resumed run must have the same initial weights and examples.

    If a run has no record of them, ``inputs`` are recorded. ``main`` is True in the process that writes.

    Raises:
        UserError: the run has other initial weights or examples; see also `Run.create`.
    """
    if main and resume:
        check_inputs(Path(out), inputs)
    run = Run.create(out, recipe, resume=resume, main=main)
    if main and not (run.path / FILE).is_file():
        write_inputs(run.path, inputs)
    return run


def check_inputs(folder: Path, inputs: RunInputs) -> None:
    """Compare ``inputs`` with the initial weights and examples recorded in ``folder``, if there is a record.

    Raises:
        UserError: they differ.
    """
    names = (FILE, *(old for old, new in RENAMED_FILES.items() if new == FILE))
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        return
    recorded = read_object(path)
    for option in dict.fromkeys([*recorded, *inputs]):
        tree, now = recorded.get(option), inputs.get(option)
        before = None if tree is None else validate(InitialWeights, tree, source=str(path))
        if option == EXAMPLES:  # runs of early versions have no record of them
            if before and now and before.fingerprint != now.fingerprint:
                raise UserError(
                    f"{folder} was started with other examples, so its files have changed; give --out a new folder"
                )
            continue
        if (before and before.fingerprint) != (now and now.fingerprint):
            same_name = before is not None and now is not None and before.name == now.name
            difference = "whose weights have changed" if same_name else f"not {_label(option, now)}"
            raise UserError(
                f"{folder} was started {_label(option, before)}, {difference}; resume it with the same, or give --out "
                f"a new folder"
            )


def write_inputs(folder: Path, inputs: RunInputs) -> None:
    """Record initial weights in ``folder``."""
    write_json(folder / FILE, {option: given and given.model_dump() for option, given in inputs.items()})


def _label(option: str, given: InitialWeights | None) -> str:
    return f"without {option}" if given is None else f"with {option} {given.name}"


def restore_settings(recipe: R, out: str | Path, *, main: bool = True) -> R:
    """Set ``data.split_seed`` and ``model.size=auto`` of a recipe to the values of the run in ``out``.

    ``data.split_seed`` stays if it is set, ``auto`` if the model of the run has no size of the family. Runs of early
    versions have no ``data.split_seed`` and split rows by ``train.seed``, which becomes the ``data.split_seed`` of the
    recipe and, in the process that writes (``main``), of the run's configs.

    Raises:
        UserError: the run's config is damaged.
    """
    path = Path(out) / "config.yaml"
    if not path.is_file():
        return recipe
    tree = migrate(read_yaml(path))
    if isinstance(recipe, PretrainRecipe) and isinstance(recipe.model, AutoSizeConfig):
        recipe = recipe.model_copy(update={"model": _sized(recipe.model, tree)})
    if "split_seed" in recipe.data.model_fields_set:
        return recipe
    seed = _seed(tree, "data", "split_seed")
    if seed is None:
        seed = _seed(tree, "train", "seed") or 0
        if main:
            _write_split_seed(Path(out), seed)
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"split_seed": seed})})


def _sized(model: AutoSizeConfig, tree: Mapping[str, object]) -> BackboneConfig | AutoSizeConfig:
    """Size of ``model`` in the config of a run; ``model`` itself if the config has another model."""
    try:
        backbone_of_run = TypeAdapter[BackboneConfig](BackboneConfig).validate_python(tree.get("model"))
    except ValidationError:
        return model
    sizes = model.candidates().values()
    return next((backbone for backbone in sizes if same_model(backbone, backbone_of_run, FROM_TRAINING)), model)


def _seed(tree: Mapping[str, object], section: str, key: str) -> int | None:
    part = tree.get(section)
    found = part.get(key) if isinstance(part, dict) else None
    return found if isinstance(found, int) else None


def _write_split_seed(run: Path, seed: int) -> None:
    """Write the seed to the configs of a run and its trials; last to the run's, which a resumed run reads."""
    for path in (*sorted(run.glob("trials/*/config.yaml")), run / "config.yaml"):
        tree = read_yaml(path)
        data = tree.get("data")
        if isinstance(data, dict):
            data["split_seed"] = seed
            write_text(path, str(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=100)))
