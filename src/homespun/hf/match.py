"""The class of transformers for a model, and the heads that transformers has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf.families import FAMILIES
from homespun.hf.family import Architecture, Family
from homespun.hf.folding import fold_config, fold_notes
from homespun.models.config import HeadConfig, ModelConfig
from homespun.models.sequence_heads import SequenceHeadConfig


@dataclass(frozen=True)
class ArchitectureMatch:
    """A class of transformers for a model.

    Args:
        family, architecture: the class.
        differences: settings that it cannot express.
        config: of the model, or of the folded one (`homespun.hf.folding`).
    """

    family: Family
    architecture: Architecture
    differences: list[str]
    config: ModelConfig


def match_architecture(config: ModelConfig) -> tuple[ArchitectureMatch | None, tuple[str, ...]]:
    """Class of a model with notes on the differences, or None with the reason.

    A head that no class has is left out. Embeddings of a width that no class has are folded.
    """
    match, notes = _match_architecture(config)
    folded = None if match else fold_config(config)
    if folded is None:
        return match, notes
    match, notes = _match_architecture(folded)
    return match, (*fold_notes(config, head=match.architecture.kind is not None), *notes) if match else notes


def _match_architecture(config: ModelConfig) -> tuple[ArchitectureMatch | None, tuple[str, ...]]:
    if any(stack.is_recurrent for stack in config.backbone.stacks):
        return None, ("no family of Hugging Face models is recurrent",)
    bare = _rank_matches(config.model_copy(update={"head": None}), FAMILIES)
    if not bare:
        return None, (f"no family of Hugging Face models has a backbone of kind {config.backbone.kind!r}",)
    match = bare[0]
    if match.differences:
        nearest = f"the nearest, {match.family.model_type}, has {'; '.join(match.differences)}"
        return None, (f"no family of Hugging Face models has this encoder: {nearest}",)
    notes = []
    if config.head is not None:
        with_head = _rank_matches(config, [other.family for other in bare if not other.differences])
        if with_head and not with_head[0].differences:
            match = with_head[0]
        else:
            why = " is in no class of transformers with this encoder"
            if with_head:
                why = f": {with_head[0].architecture.name} has {'; '.join(with_head[0].differences)}"
            notes.append(f"head {config.head.kind!r}{why}; the backbone was exported without it")
    return match, (*notes, *match.architecture.notes(config.backbone))


def _rank_matches(config: ModelConfig, families: Sequence[Family]) -> list[ArchitectureMatch]:
    """Classes with a head of this kind, the nearest first."""
    kind, backbone = None if config.head is None else config.head.kind, config.backbone
    shifted = backbone.positions.rows_before > 0

    def distance(match: ArchitectureMatch) -> tuple[int, int, bool, bool]:
        return (
            # another kind of part is worse than another size
            sum(".kind=" in difference for difference in match.differences),
            len(match.differences),
            # no requirements: any family holds any offset of positions, most do without segments
            (match.family.offset(backbone.pad_token_id) > 0) != shifted,
            ("type_vocab_size" in match.family.defaults) != (backbone.type_vocab_size > 0),
        )

    matches = [
        ArchitectureMatch(family, architecture, family.differences(architecture, config), config)
        for family in families
        if family.backbone == backbone.kind
        for architecture in family.architectures
        if architecture.kind == kind
    ]
    return sorted(matches, key=distance)


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
