"""The unions of backbones and heads that are their registry, and the config of a whole model."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from torch import nn

from homespun.config import Config
from homespun.errors import UserError
from homespun.models.activation import Activation
from homespun.models.backbone import Backbone
from homespun.models.chunk_pool import ChunkPoolHeadConfig
from homespun.models.elmo import BiLMHeadConfig
from homespun.models.encoder import EncoderConfig, initialise, with_preset
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.models.heads import CausalLMHead, DiscriminatorHead, MaskedLMHead
from homespun.models.last_layers import ConcatLastLayers, LastLayersHeadConfig
from homespun.models.model import Model, Reader, enhanced_mask_decoder, last_layer
from homespun.models.recurrent import RecurrentConfig
from homespun.models.scalar_mix import AllLayers, ScalarMixHeadConfig
from homespun.models.sequence_heads import SequenceHeadConfig
from homespun.models.token_heads import TokenTaskHeadConfig
from homespun.nn.feedforward import ACTIVATIONS


def default_kind(tree: Any) -> Any:
    """One stack, where neither ``kind`` nor the preset says more."""
    tree = with_preset(tree)
    return {"kind": "encoder"} | tree if isinstance(tree, dict) else tree


BackboneConfig = Annotated[
    EncoderConfig | EncoderDecoderConfig | RecurrentConfig,
    Field(discriminator="kind"),
    BeforeValidator(default_kind),
]


class MaskedLMHeadConfig(Config):
    """Hidden -> vocabulary through a transform and the tied embeddings."""

    kind: Literal["masked_lm"] = "masked_lm"
    hidden_act: Activation = "gelu"
    transform_bias: bool = Field(default=True, description="the transform has a bias (ModernBERT's has none)")
    norm_bias: bool = Field(default=True, description="the norm has a bias (ModernBERT's has none)")

    def build(self, backbone: Backbone) -> nn.Module:
        return MaskedLMHead(
            backbone.hidden_size,
            backbone.embeddings.words,
            ACTIVATIONS[self.hidden_act](),
            layer_norm_eps=backbone.layer_norm_eps,
            transform_bias=self.transform_bias,
            norm_bias=self.norm_bias,
        )


class CausalLMHeadConfig(Config):
    """Hidden -> vocabulary through the embeddings alone (GPT-2), or others of their own (Reformer)."""

    kind: Literal["causal_lm"] = "causal_lm"
    tie_word_embeddings: bool = Field(default=True, description="the same embeddings at both ends")
    final_logits_bias: bool = Field(default=False, description="a fixed number is added to each logit (BART)")
    scaled: bool = Field(default=False, description="vectors times hidden_size^-0.5 first (T5 1.0)")
    transform_bias: bool = Field(default=True, description="the projection to narrower embeddings has a bias")

    def build(self, backbone: Backbone) -> nn.Module:
        words = backbone.embeddings.words
        if not self.tie_word_embeddings:
            words = nn.Embedding(words.num_embeddings, backbone.hidden_size)
        return CausalLMHead(
            backbone.hidden_size,
            words,
            final_logits_bias=self.final_logits_bias,
            scaled=self.scaled,
            transform_bias=self.transform_bias,
        )


class DiscriminatorHeadConfig(Config):
    """Hidden -> one logit a token: was it replaced? (ELECTRA)"""

    kind: Literal["discriminator"] = "discriminator"
    hidden_act: Activation = "gelu"

    def build(self, backbone: Backbone) -> nn.Module:
        return DiscriminatorHead(backbone.hidden_size, ACTIVATIONS[self.hidden_act]())


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
        if isinstance(self.head, MaskedLMHeadConfig):
            return enhanced_mask_decoder
        if isinstance(self.head, ScalarMixHeadConfig):
            return AllLayers()
        return ConcatLastLayers(self.head.layers) if isinstance(self.head, LastLayersHeadConfig) else last_layer

    def build(self) -> Model:
        """A freshly initialised model."""
        backbone = self.backbone.build()
        head = None if self.head is None else self.head.build(backbone)
        if head is not None:
            shared = set(backbone.modules())
            initialise((m for m in head.modules() if m not in shared), self.backbone.initializer_range)
        return Model(backbone, head, reader=self.reader, special_tokens=self.backbone.special_tokens)
