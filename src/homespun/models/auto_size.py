"""A model whose size is still to be chosen: a family of presets, and what is set besides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import ConfigDict, model_validator

from homespun.config import Config, Tree, validate
from homespun.models.config import BackboneConfig
from homespun.models.presets import PRESETS, family_of, sizes_of
from homespun.models.presets.spun import SPUN

FAMILIES = tuple(dict.fromkeys(map(family_of, SPUN)))
"""Families for which ``size: auto`` can choose, which is the default of a ``preset`` that names one of them."""


FROM_TRAINING = frozenset({"vocab_size", "pad_token_id", "seed"})
"""Fields that a training sets, from its tokenizer and its seed."""

_SIZE = FROM_TRAINING | {
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
}


class AutoSizeConfig(Config):
    """A family of presets with ``size: auto``; other fields win over the preset that is chosen.

    `homespun.planning.budget` chooses before training, and the config of the run has the chosen model.
    """

    model_config = ConfigDict(extra="allow")
    kind: Literal["auto_size"] = "auto_size"
    preset: str
    size: Literal["auto"] = "auto"

    @model_validator(mode="after")
    def _checked(self) -> AutoSizeConfig:
        if family_of(self.preset) not in FAMILIES:
            raise ValueError(
                f"size=auto with preset={self.preset} must be of a family of {', '.join(FAMILIES)}; name a size instead"
            )
        self.candidates()
        return self

    @property
    def vocab_size(self) -> int:
        """Entries of the vocabulary; 0: as many as the tokenizer has."""
        return next(iter(self.candidates().values())).vocab_size

    def candidates(self) -> dict[str, BackboneConfig]:
        """The backbones of all sizes by name, smallest first, as `homespun.models.presets.spun` has them.

        Raises:
            UserError: a field that a model of the family does not have, or a value that a size cannot have.
        """
        fields: Tree = self.model_extra or {}
        return {
            size: validate(_Holder, {"model": {"preset": name} | fields}, source=name).model
            for size, name in sizes_of(family_of(self.preset)).items()
        }


class _Holder(Config):
    model: BackboneConfig


def is_of_family(backbone: BackboneConfig, family: str) -> bool:
    """True if a backbone differs from a preset of the family only in size."""
    preset = {"kind": "encoder"} | PRESETS[next(iter(sizes_of(family).values()))]
    return preset["kind"] == backbone.kind and same_model(backbone, type(backbone).model_validate(preset), _SIZE)


def same_model(left: BackboneConfig, right: BackboneConfig, ignored: frozenset[str]) -> bool:
    """True if two backbones have the same settings, ignoring fields of these names in any part."""
    return dict(_settings(left.model_dump(), ignored)) == dict(_settings(right.model_dump(), ignored))


def _settings(tree: Mapping[str, object], ignored: frozenset[str], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _settings(value, ignored, f"{prefix}{key}.")
        elif key not in ignored:
            yield f"{prefix}{key}", value
