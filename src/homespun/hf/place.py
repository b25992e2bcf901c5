"""Which class of transformers a model of ours is: the one that says all of it, or all but its head."""

from __future__ import annotations

from dataclasses import dataclass

from homespun.hf.families import FAMILIES
from homespun.hf.family import Architecture, Family
from homespun.models.config import LearnedPositionsConfig, ModelConfig


@dataclass(frozen=True)
class Place:
    """A class of transformers, and in what it differs from a model."""

    family: Family
    architecture: Architecture
    differences: list[str]


def find_place(config: ModelConfig) -> tuple[Place | None, tuple[str, ...]]:
    """The class of a model, and what is not the same there; where there is no class, the reason why.

    A head that no class has is left out, and the backbone placed alone.
    """
    whole = _nearest(config)
    if whole is not None and not whole.differences:
        return whole, whole.architecture.notes(config.backbone)
    bare = _nearest(config.model_copy(update={"head": None}))
    assert bare is not None  # every family has a class without a head
    if bare.differences:
        nearest = f"the nearest, {bare.family.model_type}, has {'; '.join(bare.differences)}"
        return None, (f"no family of Hugging Face models has this encoder: {nearest}",)
    assert config.head is not None
    name = f"head {config.head.kind!r}"
    if whole is None:
        why = f"{name} is in no class of transformers"
    else:
        why = f"{name}: {whole.architecture.name} has {'; '.join(whole.differences)}"
    return bare, (f"{why}; the backbone was exported without it", *bare.architecture.notes(config.backbone))


def _nearest(config: ModelConfig) -> Place | None:
    """The class that says most of the model; None where none has a head of its kind."""
    kind, backbone = None if config.head is None else config.head.kind, config.backbone
    shifted = isinstance(backbone.positions, LearnedPositionsConfig) and backbone.positions.offset > 0

    def unlike(family: Family) -> tuple[bool, bool]:
        # any family can hold any offset of positions, and most can do without segments: this is only a likeness
        return (
            (family.offset(backbone.pad_token_id) > 0) != shifted,
            ("type_vocab_size" in family.defaults) != (backbone.type_vocab_size > 0),
        )

    places = [
        Place(family, architecture, family.differences(architecture, config))
        for family in sorted(FAMILIES, key=unlike)
        if (architecture := family.architecture(kind)) is not None
    ]
    return min(places, key=_distance, default=None)


def _distance(place: Place) -> tuple[int, int]:
    # a part of another kind is further off than a part of another size
    return sum(".kind=" in difference for difference in place.differences), len(place.differences)
