"""The unions of backbones and heads that are their registry, and the config of a whole model."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from homespun.config import Config
from homespun.errors import UserError
from homespun.models.chunk_pool import ChunkPoolHeadConfig
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
from homespun.models.layer_heads import LastLayersHeadConfig, ScalarMixHeadConfig
from homespun.models.model import Model
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
