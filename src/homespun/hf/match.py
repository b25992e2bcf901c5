"""The class of transformers for a model of ours: with its head, or else for its backbone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from homespun.hf.families import FAMILIES
from homespun.hf.family import Architecture, Family
from homespun.hf.folding import fold_config, fold_notes
from homespun.models.config import ModelConfig
from homespun.models.positions import LearnedPositionsConfig


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
    shifted = isinstance(backbone.positions, LearnedPositionsConfig) and backbone.positions.offset > 0

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
