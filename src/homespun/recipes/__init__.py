"""Shipped recipes, YAML files, and the check of a recipe's settings that needs no torch.

``settings.json`` is the JSON schema of recipes without its texts: `homespun.commands.recipe.settings_schema` makes it,
and a test compares both. The command line checks keys and values against it at once, and the configs afterwards check
everything: also settings that depend on each other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Annotated, Any, Literal, Union

import yaml
from pydantic import BaseModel, ConfigDict, Field, create_model

from homespun.config import Bytes, Config, Count, Duration, Tree, override, read_yaml, validate
from homespun.errors import UserError, nearest
from homespun.migration import RENAMED_RECIPES
from homespun.models.presets import AUTO_SIZE_FAMILIES, PRESETS, default_kind, family_of, kind_of_model, sizes_of

KINDS = ("pretrain", "finetune")
_COMPARISON = "compare-"
_INSTEAD = {
    "bigbird-pegasus": "pegasus-mini",
    "bigru": "bilstm-mini",
    "distil-base": "distil-mini model.preset=bert-base model.num_hidden_layers=6",
    "gru": "lstm-mini",
    "rnn": "lstm-mini",
    "rnn-seq2seq-plain": "rnn-seq2seq-mini",
    "t5-v1.1": "t5-mini objective.head.tie_word_embeddings=false",
}
"""The recipe and settings for a family of presets whose recipe is not its ``-mini``, and for one removed recipe."""


def recipe_names() -> list[str]:
    """The shipped recipes, of one training each."""
    return [name for name in _shipped() if not name.startswith(_COMPARISON)]


def comparison_names() -> list[str]:
    """The shipped comparisons, which `homespun.compare` reads."""
    return [name for name in _shipped() if name.startswith(_COMPARISON)]


def _shipped() -> list[str]:
    folder = resources.files("homespun.recipes")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def _instead(name: str) -> str:
    """The recipe and settings that train a preset which has no recipe of its name; empty if there are none."""
    if name not in PRESETS:
        return _INSTEAD[name] if name == "distil-base" else ""
    family = family_of(name)
    recipe = _INSTEAD.get(family, f"{family}-mini")
    return f"{recipe} model.preset={name}" if recipe.split(" ")[0] in _shipped() else ""


def check_comparison_name(name: str) -> None:
    """Refuse what is neither a YAML file nor the name of a shipped recipe, with the nearest comparison.

    Raises:
        UserError: there is none of that name.
    """
    known = comparison_names()
    if not name.endswith((".yaml", ".yml")) and name not in _shipped():
        raise UserError(f"unknown comparison {name!r}{nearest(name, known)} (or give the path of a .yaml file)")


def recipe_tree(name: str) -> Tree:
    """The mapping of a shipped recipe, or of a YAML file.

    Raises:
        UserError: no such recipe or file; the nearest name is given, or the new one.
    """
    if name.endswith((".yaml", ".yml")):
        return read_yaml(name)
    if name in RENAMED_RECIPES:
        raise UserError(f"recipe {name} was renamed to {RENAMED_RECIPES[name]}")
    names = _shipped()
    if name not in names:
        if instead := _instead(name):
            raise UserError(f"{name!r} is not a recipe; use `homespun pretrain {instead}`")
        raise UserError(f"unknown recipe {name!r}{nearest(name, names)} (or give the path of a .yaml file)")
    tree = yaml.safe_load((resources.files("homespun.recipes") / f"{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(tree, dict)
    return tree


def recipe_with(name: str, overrides: Sequence[str] = ()) -> Tree:
    """`recipe_tree` of one training, with ``KEY=VALUE`` overrides applied.

    Raises:
        UserError: unknown recipe; a comparison; an override that cannot be applied.
    """
    tree = override(recipe_tree(name), overrides)
    kind = tree.get("kind")
    if kind == "compare":
        raise UserError(f"{name} is a comparison of several trainings, for `homespun compare`; give the recipe of one")
    if kind not in KINDS:
        raise UserError(f"{name}: kind must be one of {', '.join(KINDS)}, not {kind!r}")
    return tree


def split_overrides(overrides: Sequence[str] | None, *, has_checkpoint: bool) -> tuple[list[str], Tree]:
    """Split overrides into those of the recipe, and the changes ``model.KEY=VALUE`` to the checkpoint of ``--from``.

    Without a checkpoint, all are those of the recipe.
    """
    overrides = list(overrides or ())
    if not has_checkpoint:
        return overrides, {}
    of_model = [one for one in overrides if one.startswith("model.") or one.partition("=")[0] == "model"]
    changes = override({}, of_model).get("model", {})
    if not isinstance(changes, dict):
        raise UserError(f"model={changes!r} is not a mapping; write model.KEY=VALUE")
    return [one for one in overrides if one not in of_model], changes


def require_start(start_from: str | None, changes: Mapping[str, object] | None = None) -> str:
    """Return the checkpoint of a fine-tuning; refuses a missing one, and ``changes`` to it."""
    if changes:
        raise UserError("model.KEY=VALUE cannot change the model of a fine-tuning; leave it out")
    if start_from is None:
        raise UserError("--from is missing: fine-tuning needs a model; give a run, a model folder or a hub name")
    return start_from


def refuse_other_kind(name: str, given: str, kind: str) -> None:
    """Refuse a recipe of kind ``given`` where one of ``kind`` is needed.

    Raises:
        UserError: naming the recipes that there are.
    """
    if given != kind:
        names = ", ".join(n for n in recipe_names() if recipe_tree(n)["kind"] == kind)
        purpose = {"pretrain": "pretraining", "finetune": "fine-tuning"}[kind]
        raise UserError(f"recipe {name!r} is for `homespun {given}`; for {purpose} there are: {names}")


def check_recipe(name: str, overrides: Sequence[str] = (), *, kind: str | None = None) -> Tree:
    """Check the keys of a recipe and its plain values, and return it as `recipe_with` does.

    Args:
        name: shipped recipe or YAML file.
        overrides: ``KEY=VALUE`` each.
        kind: ``pretrain`` or ``finetune``, where no other will do.

    Raises:
        UserError: as of `homespun.commands.recipe.load_recipe`, but not for settings that are missing or do not fit
            each other.
    """
    tree = recipe_with(name, overrides)
    schema = _schema()
    settings = _Settings(schema["$defs"])
    expanded = tree
    if isinstance(tree.get("model"), dict):
        try:
            expanded = tree | {"model": _expand_model(tree["model"])}
        except UserError as error:
            raise UserError(f"{name}: model: {error}") from error
    model = settings.model_of(schema["discriminator"]["mapping"][tree["kind"]], expanded)
    validate(model, tree, source=name)
    if kind is not None:
        refuse_other_kind(name, tree["kind"], kind)
    return tree


def require_data(tree: Tree) -> None:
    """Refuse a recipe for fine-tuning that names no training files, before torch is imported."""
    definitions, data = _schema()["$defs"], tree.get("data", {})
    if not data.get("train") and not data.get("sets"):
        default = definitions["FinetuneRecipe"]["properties"]["data"]
        kind = data.get("kind", default["default"]["kind"])
        if (reference := default["discriminator"]["mapping"].get(kind)) is not None:
            raise UserError(definitions[reference.rpartition("/")[2]]["missing"])


def _schema() -> Tree:
    return json.loads((resources.files("homespun.recipes") / "settings.json").read_text(encoding="utf-8"))


def _expand_model(model: Tree) -> object:
    """Expand the preset of a model; a family without a size by its first one, as all sizes have the same keys."""
    family = family_of(str(model.get("preset")))
    expanded = kind_of_model(model)
    if isinstance(expanded, dict) and expanded["kind"] == "auto_size" and family in AUTO_SIZE_FAMILIES:
        return default_kind(model | {"preset": family, "size": next(iter(sizes_of(family)))})
    return expanded


class _Settings:
    """Pydantic models of parts of the schema. They describe the values that a recipe gives, and nothing else.

    A value is any object where its schema is not enough: a stack of a model without its kind, and what is in
    lists and in mappings with free keys.
    """

    def __init__(self, definitions: Mapping[str, Tree]) -> None:
        self.definitions = definitions

    def model_of(self, reference: str, value: object) -> type[BaseModel]:
        """Return the model of a ``$ref`` for the keys in ``value``."""
        name = reference.rpartition("/")[2]
        schema = self.definitions[name]
        if schema["additionalProperties"]:
            return create_model(name, __config__=ConfigDict(extra="allow"))
        given = value if isinstance(value, dict) else {}
        fields: dict[str, Any] = {
            key: (self._annotation(field, given[key]) if key in given else object, field.get("const"))
            for key, field in schema["properties"].items()
        }
        return create_model(name, __base__=Config, **fields)

    def _annotation(self, schema: Tree, value: object) -> object:
        match schema:
            case {"$ref": reference}:
                return self.model_of(reference, value)
            case {"discriminator": {"mapping": mapping}}:
                return self._member(mapping, schema.get("default", {}).get("kind"), value)
            case {"anyOf": options} if value is not None:
                kinds = tuple(self._annotation(o, value) for o in options if o != {"type": "null"})
                return object if object in kinds else Union[kinds]  # noqa: UP007
            case {"const": constant}:
                return Literal[constant]
            case {"enum": values}:
                return Literal[tuple(values)]
            case {"format": kind} | {"type": str(kind)} if kind in _TYPES:
                limits = {limit: schema[name] for name, limit in _LIMITS.items() if name in schema}
                return Annotated[_TYPES[kind], Field(**limits)]
        return object

    def _member(self, mapping: Mapping[str, str], default: str | None, value: object) -> object:
        """Return the member of a union that ``value`` names by its ``kind``; if none, all without their fields."""
        if isinstance(value, dict):
            if "kind" not in value and "encoder" in mapping:
                return object  # the preset decides, or the kind of the other stack
            kind = value.get("kind", default)
            # the configs refuse an unknown kind themselves: it may be newer than the schema
            return self.model_of(mapping[kind], value) if isinstance(kind, str) and kind in mapping else object
        fields: dict[str, Any] = {tag: (Literal[tag], tag) for tag in mapping}
        bare = [create_model(r.rpartition("/")[2], kind=fields[tag]) for tag, r in mapping.items()]
        return Annotated[Union[tuple(bare)], Field(discriminator="kind")]  # noqa: UP007


_TYPES: dict[str, object] = {
    "integer": int,
    "number": float,
    "string": str,
    "boolean": bool,
    "duration": Duration,
    "count": Count,
    "bytes": Bytes,
}
_LIMITS = {
    "minimum": "ge",
    "exclusiveMinimum": "gt",
    "maximum": "le",
    "exclusiveMaximum": "lt",
    "minLength": "min_length",
}
