"""Unions of backbone and head configs, which are their registry; the config of a model; automatic model size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from homespun.config import Config, Tree, validate
from homespun.errors import UserError
from homespun.models.composite_heads import ChunkPoolHeadConfig, LastLayersHeadConfig, ScalarMixHeadConfig
from homespun.models.elmo import BiLMHeadConfig
from homespun.models.encoder import EncoderConfig, initialise
from homespun.models.encoder_decoder import EncoderDecoderConfig, default_kind
from homespun.models.heads import (
    CausalLMHeadConfig,
    DiscriminatorHeadConfig,
    MaskedLMHeadConfig,
    Reader,
    TokenTaskHeadConfig,
    last_layer,
)
from homespun.models.model import Model
from homespun.models.presets import PRESETS, SPUN, family_of, sizes_of
from homespun.models.recurrent import RecurrentConfig
from homespun.models.sequence_heads import SequenceHeadConfig

BackboneConfig = Annotated[
    EncoderConfig | EncoderDecoderConfig | RecurrentConfig,
    Field(discriminator="kind"),
    BeforeValidator(default_kind),
]


TokenHeadConfig = MaskedLMHeadConfig | CausalLMHeadConfig | DiscriminatorHeadConfig
HeadConfig = Annotated[
    TokenHeadConfig
    | BiLMHeadConfig
    | TokenTaskHeadConfig
    | SequenceHeadConfig
    | ChunkPoolHeadConfig
    | LastLayersHeadConfig
    | ScalarMixHeadConfig,
    Field(discriminator="kind"),
]


class ModelConfig(Config):
    """A backbone and what stands on it."""

    backbone: BackboneConfig
    head: HeadConfig | None = None

    def one_stack(self, use: str) -> EncoderConfig:
        """The backbone, where ``use`` can do with one stack of attention only.

        Raises:
            UserError: it is an encoder with a decoder, or recurrent.
        """
        stack = self.one_text(use)
        if stack.is_recurrent:
            raise UserError(
                f"{use} works on layers of attention, and this model is recurrent; take a preset of another"
            )
        return stack

    def one_text(self, use: str) -> EncoderConfig | RecurrentConfig:
        """The backbone, where ``use`` can do with one stack only, of whatever layers.

        Raises:
            UserError: it is an encoder with a decoder.
        """
        if self.backbone.has_decoder:
            raise UserError(f"{use} works on one stack, and this model is an encoder with a decoder; take one of them")
        return self.backbone

    @property
    def reader(self) -> Reader:
        """Function that selects the hidden states that the head reads."""
        return last_layer if self.head is None else self.head.reader

    def build(self) -> Model:
        """A freshly initialised model."""
        backbone = self.backbone.build()
        head = None if self.head is None else self.head.build(backbone)
        if head is not None:
            shared = set(backbone.modules())
            initialise((m for m in head.modules() if m not in shared), self.backbone.initializer_range)
        return Model(backbone, head, reader=self.reader, special_tokens=self.backbone.special_tokens)


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
        """The backbones of all sizes by name, smallest first, as `homespun.models.presets` has them.

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
