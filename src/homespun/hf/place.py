"""Which class of transformers a model of ours is: the one that says all of it, or all but its head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from homespun.hf.families import FAMILIES
from homespun.hf.family import Architecture, Family
from homespun.hf.fold import fold_config, fold_notes
from homespun.models.config import ModelConfig
from homespun.models.positions import LearnedPositionsConfig
from homespun.models.recurrent import RecurrentConfig


@dataclass(frozen=True)
class Place:
    """A class of transformers, and in what it differs from a model.

    Args:
        family, architecture: the class.
        differences: what it cannot express.
        config: the model, or the same with its embeddings folded (`homespun.hf.fold`).
    """

    family: Family
    architecture: Architecture
    differences: list[str]
    config: ModelConfig


def find_place(config: ModelConfig) -> tuple[Place | None, tuple[str, ...]]:
    """The class of a model, and what is not the same there; where there is no class, the reason why.

    A head that no class has is left out, and the backbone placed alone. Where no class has the width of the embeddings,
    they are folded.
    """
    place, notes = _find_place(config)
    folded = None if place else fold_config(config)
    if folded is None:
        return place, notes
    place, notes = _find_place(folded)
    return place, (*fold_notes(config, head=place.architecture.kind is not None), *notes) if place else notes


def _find_place(config: ModelConfig) -> tuple[Place | None, tuple[str, ...]]:
    stacks = [getattr(config.backbone, name, None) for name in ("encoder", "decoder")]
    if any(isinstance(stack, RecurrentConfig) for stack in (config.backbone, *stacks)):
        return None, ("no family of Hugging Face models is recurrent",)
    bare = _places(config.model_copy(update={"head": None}), FAMILIES)
    if not bare:
        return None, (f"no family of Hugging Face models has a backbone of kind {config.backbone.kind!r}",)
    place = bare[0]
    if place.differences:
        nearest = f"the nearest, {place.family.model_type}, has {'; '.join(place.differences)}"
        return None, (f"no family of Hugging Face models has this encoder: {nearest}",)
    notes = []
    if config.head is not None:
        whole = _places(config, [other.family for other in bare if not other.differences])
        if whole and not whole[0].differences:
            place = whole[0]
        else:
            why = " is in no class of transformers with this encoder"
            if whole:
                why = f": {whole[0].architecture.name} has {'; '.join(whole[0].differences)}"
            notes.append(f"head {config.head.kind!r}{why}; the backbone was exported without it")
    return place, (*notes, *place.architecture.notes(config.backbone))


def _places(config: ModelConfig, families: Sequence[Family]) -> list[Place]:
    """The classes with a head of its kind, the one that says most of the model first."""
    kind, backbone = None if config.head is None else config.head.kind, config.backbone
    shifted = isinstance(backbone.positions, LearnedPositionsConfig) and backbone.positions.offset > 0

    def distance(place: Place) -> tuple[int, int, bool, bool]:
        return (
            # a part of another kind is further off than a part of another size
            sum(".kind=" in difference for difference in place.differences),
            len(place.differences),
            # any family can hold any offset of positions, and most can do without segments: only a likeness
            (place.family.offset(backbone.pad_token_id) > 0) != shifted,
            ("type_vocab_size" in place.family.defaults) != (backbone.type_vocab_size > 0),
        )

    places = [
        Place(family, architecture, family.differences(architecture, config), config)
        for family in families
        if family.backbone == backbone.kind
        for architecture in family.architectures
        if architecture.kind == kind
    ]
    return sorted(places, key=distance)
