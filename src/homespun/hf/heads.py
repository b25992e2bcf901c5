"""Heads that transformers has, for a warning before training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf.families import FAMILIES
from homespun.hf.family import Architecture, Family
from homespun.hf.match import match_architecture
from homespun.models.config import HeadConfig, ModelConfig
from homespun.models.sequence_heads import SequenceHeadConfig

_SEQUENCE_HEADS, *_ = get_args(SequenceHeadConfig)
_TASKS = ("text-classification", "question-answering")  # tasks whose head a recipe chooses


def dropped_head_warning(config: ModelConfig) -> str | None:
    """One line about a model whose ``hf/`` will lack its head, with the heads that transformers has.

    Returns:
        None if the head is exported, if there is none, or if no family has the model and nothing will be written.
    """
    match, _ = match_architecture(config)
    if config.head is None or match is None or match.architecture.kind is not None:
        return None
    message = f"hf/ will hold {match.architecture.name} without the head {config.head.kind!r}"
    kept = exportable_heads(config)
    if not kept:
        return f"{message}: no class of transformers with this backbone has it or a similar one"
    ways = [
        f"{' '.join(f'objective.head.{key}={value}' for key, value in head.items())} ({name})"
        for name, head in kept.items()
    ]
    return f"{message}; for a head that is exported set {' or '.join(ways)}"


def exportable_heads(config: ModelConfig) -> dict[str, Tree]:
    """Classes of the nearest family that have a head for the model's task, each with the head's settings.

    The settings are its ``kind``, and those that differ from our defaults.
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


def _task(head: HeadConfig) -> str | None:
    """Pipeline of the classes with a head of this kind, if it is a task whose head a recipe chooses."""
    if isinstance(head, _SEQUENCE_HEADS):
        return "text-classification"
    tasks = {a.pipeline for family in FAMILIES for a in family.architectures if a.kind == head.kind}
    return next((task for task in _TASKS if task in tasks), None)


def _pools_full_context(architecture: Architecture, config: ModelConfig) -> bool:
    """True if it classifies by a token that has seen the full text, as fine-tuning does."""
    causal = config.backbone.kind == "encoder" and config.backbone.causal
    return not causal or not architecture.classifies or architecture.kind == "last"


def _fitting(family: Family, architecture: Architecture, tree: Tree, config: ModelConfig) -> Iterator[Tree]:
    """Settings of the class's head with which it fits the model: its kind, or all that are not defaults."""
    try:
        theirs = family.read_as(architecture, tree, source=family.model_type).head
    except UserError:  # no such model with any head
        return
    assert theirs is not None
    head_settings = theirs.model_dump(exclude_defaults=True, exclude={"num_labels", "dropout", "input_dropout"})
    count = getattr(config.head, "num_labels", None)
    own = {} if count is None else {"num_labels": count}
    for settings in ({"kind": theirs.kind}, {"kind": theirs.kind} | head_settings):
        head = type(theirs).model_validate(settings | own)
        if not family.differences(architecture, config.model_copy(update={"head": head})):
            yield settings
