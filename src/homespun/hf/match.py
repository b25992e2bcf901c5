"""Choice of the transformers class for a model, and of heads that can be exported."""

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

WITHOUT_HEAD = "; the backbone was exported without it"  # end of the note on a head without a class


@dataclass(frozen=True)
class ArchitectureMatch:
    """Class of transformers for a model."""

    family: Family
    architecture: Architecture
    differences: list[str]  # fields that it cannot express
    config: ModelConfig  # config of the model, or of the folded model (`homespun.hf.folding`)


def match_architecture(config: ModelConfig) -> tuple[ArchitectureMatch | None, tuple[str, ...]]:
    """Find the class of a model, with notes on differences; None with the reason if there is none.

    A head without a class is dropped, and embeddings of a width without a class are folded.
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
        return None, (f"no family of Hugging Face models has this backbone: {nearest}",)
    notes = []
    if config.head is not None:
        with_head = _rank_matches(config, [other.family for other in bare if not other.differences])
        if with_head and not with_head[0].differences:
            match = with_head[0]
        else:
            why = " is in no class of transformers with this backbone"
            if with_head:
                why = f": {with_head[0].architecture.name} has {'; '.join(with_head[0].differences)}"
            notes.append(f"head {config.head.kind!r}{why}{WITHOUT_HEAD}")
    return match, (*notes, *match.architecture.notes(config.backbone))


def _rank_matches(config: ModelConfig, families: Sequence[Family]) -> list[ArchitectureMatch]:
    """Classes with the kind of head of the model, nearest first."""
    kind, backbone = None if config.head is None else config.head.kind, config.backbone
    shifted = backbone.positions.rows_before > 0

    def distance(match: ArchitectureMatch) -> tuple[int, int, bool, bool]:
        return (
            # another kind of module counts more than another size
            sum(".kind=" in difference for difference in match.differences),
            len(match.differences),
            # preferences: any family can express any offset of positions, most can omit segments
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
_TASKS = ("text-classification", "question-answering")  # tasks with several kinds of heads


def own_class_warning(config: ModelConfig) -> str | None:
    """Return a warning about a model whose head no class of transformers has, with similar heads that one has.

    Returns:
        None if there is a class, no head, or no class of the backbone.
    """
    match, _ = match_architecture(config)
    if config.head is None or match is None or match.architecture.kind is not None:
        return None
    heads = exportable_heads(config)
    ways = [
        f"{' '.join(f'objective.head.{key}={value}' for key, value in head.items())} ({name})"
        for name, head in heads.items()
    ]
    message = f"hf/ will need homespun, because no class of transformers has the head {config.head.kind!r}"
    return f"{message}; set {' or '.join(ways)} for one that opens without" if ways else message


def exportable_heads(config: ModelConfig) -> dict[str, Tree]:
    """Classes of the nearest family for the task of the model, with the settings of their heads.

    The settings are ``kind`` and those that differ from the defaults.
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
    """Pipeline of a head, if it is one of `_TASKS`."""
    if isinstance(head, _SEQUENCE_HEADS):
        return "text-classification"
    tasks = {a.pipeline for family in FAMILIES for a in family.architectures if a.kind == head.kind}
    return next((task for task in _TASKS if task in tasks), None)


def _pools_full_context(architecture: Architecture, config: ModelConfig) -> bool:
    """True if the class classifies by a token that attends to the full text, as fine-tuning does."""
    return not config.backbone.causal or not architecture.classifies or architecture.kind == "last"


def _fitting(family: Family, architecture: Architecture, tree: Tree, config: ModelConfig) -> Iterator[Tree]:
    """Settings with which the head of the class fits the model: its kind, or all that are not defaults."""
    try:
        default = family.read_as(architecture, tree, source=family.model_type).head
    except UserError:  # the class cannot express the backbone
        return
    assert default is not None
    further = default.model_dump(exclude_defaults=True, exclude={"num_labels", "dropout", "input_dropout"})
    count = getattr(config.head, "num_labels", None)
    num_labels = {} if count is None else {"num_labels": count}
    for settings in ({"kind": default.kind}, {"kind": default.kind} | further):
        head = type(default).model_validate(settings | num_labels)
        if not family.differences(architecture, config.model_copy(update={"head": head})):
            yield settings
