"""Which heads go along when a model is written for ``transformers``: to be told before it is trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf.families import FAMILIES
from homespun.hf.family import Architecture, Family
from homespun.hf.place import find_place
from homespun.models.config import ModelConfig
from homespun.models.sequence_heads import SequenceHeadConfig

_OF_TEXTS, *_ = get_args(SequenceHeadConfig)
_CHOSEN = ("text-classification", "question-answering")  # tasks of which a recipe chooses the head


def head_left_out(config: ModelConfig) -> str | None:
    """One line on a model whose ``hf/`` will be without its head, naming those that would go along.

    ``None``: the head goes along, or there is none; or no family has the model, and nothing will be written.
    """
    place, _ = find_place(config)
    if config.head is None or place is None or place.architecture.kind is not None:
        return None
    told = f"hf/ will hold {place.architecture.name} without the head {config.head.kind!r}"
    kept = heads_kept(config)
    if not kept:
        return f"{told}: no class of transformers with this backbone has it, or another in its place"
    ways = [
        f"{' '.join(f'objective.head.{key}={value}' for key, value in head.items())} ({name})"
        for name, head in kept.items()
    ]
    return f"{told}; for one that goes along set {' or '.join(ways)}"


def heads_kept(config: ModelConfig) -> dict[str, Tree]:
    """The classes of the nearest family that have any head for the task of a model's, and what to set of the head then.

    Its ``kind``, and what else must be as it is there.
    """
    bare = config.model_copy(update={"head": None})
    place, _ = find_place(bare)
    task = None if config.head is None else _task(config.head)
    if place is None or task is None:
        return {}
    bare = place.config
    config = bare.model_copy(update={"head": config.head})
    for family in sorted(FAMILIES, key=lambda family: family is not place.family):
        headless = next(a for a in family.architectures if a.kind is None)
        if family.backbone != bare.backbone.kind or family.differences(headless, bare):
            continue
        tree = family.write_config(headless, bare)
        fitting = {
            architecture.name: next(_fitting(family, architecture, tree, config), None)
            for architecture in family.architectures
            if architecture.pipeline == task and _sees_all(architecture, config)
        }
        if found := {name: settings for name, settings in fitting.items() if settings is not None}:
            return found
    return {}


def _task(head: Any) -> str | None:
    """What the hub calls the task of a head that a recipe chooses, by the classes that have one of its kind."""
    if isinstance(head, _OF_TEXTS):
        return "text-classification"
    tasks = {a.pipeline for family in FAMILIES for a in family.architectures if a.kind == head.kind}
    return next((task for task in _CHOSEN if task in tasks), None)


def _sees_all(architecture: Architecture, config: ModelConfig) -> bool:
    """Whether it classifies by a token that has seen the whole text, as fine-tuning wants it."""
    causal = config.backbone.kind == "encoder" and config.backbone.causal
    return not causal or not architecture.classifies or architecture.kind == "last"


def _fitting(family: Family, architecture: Architecture, tree: Tree, config: ModelConfig) -> Iterator[Tree]:
    """Settings of the class's head with which it is this model's: its kind alone, or all that it has there."""
    try:
        theirs = family.read_as(architecture, tree, source=family.model_type).head
    except UserError:  # a class that has no such model, whatever its head
        return
    assert theirs is not None
    whole = theirs.model_dump(exclude_defaults=True, exclude={"num_labels", "dropout", "input_dropout"})
    count = getattr(config.head, "num_labels", None)
    own = {} if count is None else {"num_labels": count}
    for settings in ({"kind": theirs.kind}, {"kind": theirs.kind} | whole):
        head = type(theirs).model_validate(settings | own)
        if not family.differences(architecture, config.model_copy(update={"head": head})):
            yield settings
