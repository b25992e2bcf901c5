"""Config of a model, unions (registries) of backbone and head configs, and automatic model size."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from homespun.config import Config, Tree, flatten, validate
from homespun.errors import UserError
from homespun.models.composite_heads import ChunkPoolHeadConfig, LastLayersHeadConfig, ScalarMixHeadConfig
from homespun.models.elmo import BiLMHeadConfig
from homespun.models.encoder import EncoderConfig, initialise
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.models.heads import (
    CausalLMHeadConfig,
    DiscriminatorHeadConfig,
    MaskedLMHeadConfig,
    Reader,
    TokenTaskHeadConfig,
    last_layer,
)
from homespun.models.model import Model
from homespun.models.presets import AUTO_SIZE_FAMILIES, PRESETS, default_kind, family_of, sizes_of
from homespun.models.recurrent import RecurrentConfig
from homespun.models.sequence_heads import SequenceHeadConfig

BackboneConfig = Annotated[
    EncoderConfig | EncoderDecoderConfig | RecurrentConfig, Field(discriminator="kind"), BeforeValidator(default_kind)
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
    """Config of a model: backbone and head."""

    backbone: BackboneConfig
    head: HeadConfig | None = None

    def one_stack(self, use: str) -> EncoderConfig:
        """Return the backbone config of a single-stack transformer, required by ``use``.

        Raises:
            UserError: the model is an encoder-decoder or recurrent.
        """
        stack = self.one_text(use)
        if stack.is_recurrent:
            raise UserError(f"{use} needs attention layers, but this model is recurrent; use another preset")
        return stack

    def one_text(self, use: str) -> EncoderConfig | RecurrentConfig:
        """Return the backbone config of a single-stack model, required by ``use``.

        Raises:
            UserError: the model is an encoder-decoder.
        """
        if self.backbone.has_decoder:
            raise UserError(f"{use} needs a model of one stack, not an encoder-decoder; use another preset")
        return self.backbone

    @property
    def has_segments(self) -> bool:
        """True if segment embeddings distinguish the two texts of a pair."""
        return self.backbone.type_vocab_size > 1

    @property
    def reader(self) -> Reader:
        """Function that selects the hidden states for the head."""
        return last_layer if self.head is None else self.head.reader

    def build(self) -> Model:
        """Build and initialise the model."""
        backbone = self.backbone.build()
        head = None if self.head is None else self.head.build(backbone)
        if head is not None:
            shared = set(backbone.modules())
            initialise((m for m in head.modules() if m not in shared), self.backbone.initializer_range)
        return Model(backbone, head, reader=self.reader, special_tokens=self.backbone.special_tokens)


FROM_TRAINING = frozenset({"vocab_size", "pad_token_id", "seed"})
"""Fields set from the tokenizer and seed of a training."""

_SIZE = FROM_TRAINING | {
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
}


class AutoSizeConfig(Config):
    """Family of presets with ``size: auto``; other fields override those of the chosen preset.

    `homespun.planning.budget` chooses the size before training; the config of the run has the chosen model.
    """

    model_config = ConfigDict(extra="allow")
    kind: Literal["auto_size"] = "auto_size"
    preset: str
    size: Literal["auto"] = "auto"

    @model_validator(mode="after")
    def _check_candidates(self) -> AutoSizeConfig:
        if family_of(self.preset) not in AUTO_SIZE_FAMILIES:
            raise ValueError(
                f"size=auto needs a preset of {', '.join(AUTO_SIZE_FAMILIES)}, not preset={self.preset}; "
                f"set a size instead"
            )
        self.candidates()
        return self

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary; 0: size of the tokenizer."""
        return next(iter(self.candidates().values())).vocab_size

    def candidates(self) -> dict[str, BackboneConfig]:
        """Return the backbone configs of all sizes, smallest first.

        Raises:
            UserError: an unknown field or invalid value.
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
    """True if two backbones have the same settings, except fields named in ``ignored`` at any depth."""
    compared, expected = (
        {key: value for key, value in flatten(backbone.model_dump()).items() if key.rpartition(".")[2] not in ignored}
        for backbone in (left, right)
    )
    return compared == expected
