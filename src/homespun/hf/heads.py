"""Which heads go along when a model is written for ``transformers``: to be told before it is trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf.families import FAMILIES
from homespun.hf.family import Architecture, Family
from homespun.hf.match import match_architecture
from homespun.models.config import ModelConfig
from homespun.models.sequence_heads import SequenceHeadConfig

_SEQUENCE_HEADS, *_ = get_args(SequenceHeadConfig)
_TASKS = ("text-classification", "question-answering")  # tasks of which a recipe chooses the head


def dropped_head_warning(config: ModelConfig) -> str | None:
    """One line on a model whose ``hf/`` will be without its head, naming those that would go along.

    ``None``: the head goes along, or there is none; or no family has the model, and nothing will be written.
    """
    match, _ = match_architecture(config)
    if config.head is None or match is None or match.architecture.kind is not None:
        return None
    message = f"hf/ will hold {match.architecture.name} without the head {config.head.kind!r}"
    kept = exportable_heads(config)
    if not kept:
        return f"{message}: no class of transformers with this backbone has it, or another in its place"
    ways = [
        f"{' '.join(f'objective.head.{key}={value}' for key, value in head.items())} ({name})"
        for name, head in kept.items()
    ]
    return f"{message}; for one that goes along set {' or '.join(ways)}"


def exportable_heads(config: ModelConfig) -> dict[str, Tree]:
    """The classes of the nearest family that have any head for the task of a model's, and what to set of the head then.

    Its ``kind``, and what else must be as it is there.
    """
    bare = config.model_copy(update={"head": None})
    match, _ = match_architecture(bare)
    task = None if config.head is None else _task(config.head)
    if match is None or task is None:
        return {}
    bare = match.config
    config = bare.model_copy(update={"head": config.head})
    for family in sorted(FAMILIES, key=lambda family: family is not match.family):
        headless = next(a for a in family.architectures if a.kind is None)
        if family.backbone != bare.backbone.kind or family.differences(headless, bare):
            continue
        tree = family.write_config(headless, bare)
        fitting = {
            architecture.name: next(_fitting(family, architecture, tree, config), None)
            for architecture in family.architectures
            if architecture.pipeline == task and _pools_full_context(architecture, config)
        }
        if found := {name: settings for name, settings in fitting.items() if settings is not None}:
            return found
    return {}


def _task(head: Any) -> str | None:
    """What the hub calls the task of a head that a recipe chooses, by the classes that have one of its kind."""
    if isinstance(head, _SEQUENCE_HEADS):
        return "text-classification"
    tasks = {a.pipeline for family in FAMILIES for a in family.architectures if a.kind == head.kind}
    return next((task for task in _TASKS if task in tasks), None)


def _pools_full_context(architecture: Architecture, config: ModelConfig) -> bool:
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
    head_settings = theirs.model_dump(exclude_defaults=True, exclude={"num_labels", "dropout", "input_dropout"})
    count = getattr(config.head, "num_labels", None)
    own = {} if count is None else {"num_labels": count}
    for settings in ({"kind": theirs.kind}, {"kind": theirs.kind} | head_settings):
        head = type(theirs).model_validate(settings | own)
        if not family.differences(architecture, config.model_copy(update={"head": head})):
            yield settings
