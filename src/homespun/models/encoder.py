"""Config of a single-stack transformer: BERT, RoBERTa, ELECTRA, GPT and related models."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import ClassVar, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from torch import nn

from homespun.attention import AttentionConfig
from homespun.attention.full import DotProduct, FullAttentionConfig
from homespun.attention.multi_head import AttentionSpec, CrossAttention
from homespun.config import Config, Tree
from homespun.errors import UserError
from homespun.models.backbone import Encoder
from homespun.models.embeddings import CharacterEmbeddings, Embeddings
from homespun.models.generation.settings import SpecialTokens
from homespun.models.layer_parts import (
    Activation,
    LearnedPositionsConfig,
    PositionsConfig,
    PostResidualConfig,
    ResidualConfig,
    output_weights,
)
from homespun.models.neighbour_heads import initialise_neighbour_heads
from homespun.models.presets import PRESETS, expand_preset, family_of
from homespun.nn.layers import ACTIVATIONS, Dropout, FeedForward, RMSNorm
from homespun.nn.positions import LearnedPositions


def name_presets(schema: Tree) -> None:
    # `preset` and `size` are expanded before validation, so they are no fields; add them for editors
    families = dict.fromkeys(map(family_of, PRESETS))
    preset = {
        "type": "string",
        "enum": [*PRESETS, *families],
        "description": "named architecture, or a family with `size`; other fields override it",
    }
    size = {"type": "string", "description": "size of the preset, such as mini; overrides the one in its name"}
    schema["properties"] = {"preset": preset, "size": size, **schema["properties"]}


def check_row_length(length: int, limit: int) -> None:
    """Raise `UserError` if rows of ``length`` tokens exceed ``limit``."""
    if length > limit:
        raise UserError(
            f"data.max_length={length} tokens exceed max_position_embeddings={limit}; decrease data.max_length or "
            f"increase model.max_position_embeddings"
        )


class StackSettings(Config):
    """Base of the configs of a stack."""

    model_config = ConfigDict(json_schema_extra=name_presets)
    has_decoder: ClassVar[Literal[False]] = False
    kind: str
    vocab_size: int = Field(default=0, ge=0, description="size of the vocabulary; 0: the tokenizer's")
    pad_token_id: int = Field(default=0, ge=0, description="set from the tokenizer")

    @model_validator(mode="before")
    @classmethod
    def _expand_preset(cls, tree: object) -> object:
        return expand_preset(tree) if isinstance(tree, dict) else tree

    @property
    def stacks(self) -> tuple[Self]:
        return (self,)

    @property
    def special_tokens(self) -> SpecialTokens:
        """Special tokens of generation; the end token is the tokenizer's."""
        return SpecialTokens(pad_token_id=self.pad_token_id)

    def with_tokens(self, vocab_size: int, pad_token_id: int) -> Self:
        """Return a copy for another vocabulary."""
        return self.model_copy(update={"vocab_size": vocab_size, "pad_token_id": pad_token_id})


class EncoderConfig(StackSettings):
    """Config of a single-stack transformer; ``preset`` selects defaults from `homespun.models.presets`."""

    kind: Literal["encoder"] = "encoder"
    is_recurrent: ClassVar[Literal[False]] = False
    has_word_embeddings: ClassVar[bool] = True
    of_one_stack: ClassVar[str] = ""
    hidden_size: int = Field(default=256, ge=1)
    embedding_size: int = Field(default=0, ge=0, description="width of the embeddings; 0: hidden_size")
    num_hidden_layers: int = Field(default=4, ge=1)
    num_attention_heads: int = Field(default=4, ge=1)
    num_hidden_groups: int = Field(
        default=0, ge=0, description="groups of layers that share weights (ALBERT: 1); 0: no sharing"
    )
    head_size: int = Field(default=0, ge=0, description="width of a head; 0: hidden_size / num_attention_heads")
    intermediate_size: int = Field(default=1024, ge=1)
    gated_feed_forward: bool = Field(default=False, description="gated linear unit (T5 1.1)")
    feed_forward_chunk: int = Field(
        default=0, ge=0, description="positions in the feed-forward at once, to save memory; 0: all"
    )
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: float = Field(default=0.1, ge=0, lt=1)
    attention_probs_dropout_prob: float = Field(
        default=0.0, ge=0, lt=1, description="off by default: fast attention on a CPU does not support it"
    )
    max_position_embeddings: int = Field(default=512, ge=1)
    type_vocab_size: int = Field(default=2, ge=0, description="segments; 0: none")
    layer_norm_eps: float = Field(default=1e-12, gt=0)
    norm: Literal["layer_norm", "rms_norm"] = Field(default="layer_norm", description="rms_norm: T5, Llama")
    norm_weight: bool = Field(default=True, description="learned weights of norms (not in nanochat)")
    norm_bias: bool = Field(default=True, description="biases of layer norms (not in ModernBERT)")
    qk_norm: bool = Field(default=False, description="normalise the queries and keys of each head (Qwen3)")
    num_key_value_heads: int = Field(
        default=0, ge=0, description="heads of keys and values, shared by groups of query heads; 0: num_attention_heads"
    )
    attention_bias: bool = Field(default=True, description="biases of attention projections")
    mlp_bias: bool = Field(default=True, description="biases of feed-forward projections")
    scale_attn_weights: bool = Field(default=True, description="divide scores by sqrt(head_size) (not in T5)")
    scale_embedding: bool = Field(default=False, description="multiply words by sqrt(embedding_size) (PEGASUS)")
    embedding_norm: bool = Field(default=True, description="norm of the embeddings (BERT; not in GPT-2)")
    initialization: Literal["normal", "fan_in"] = Field(
        default="normal",
        description="normal: standard deviation initializer_range (BERT); fan_in: by width, see `initialise`",
    )
    initializer_range: float = Field(default=0.02, gt=0)
    neighbour_heads: int = Field(
        default=0,
        ge=0,
        description="initialise heads of the first layer to attend to tokens at this distance and twice this distance; "
        "0: off. For absolute and rotary positions and relative biases",
    )
    positions: PositionsConfig = LearnedPositionsConfig()
    attention: AttentionConfig = FullAttentionConfig()
    residual: ResidualConfig = PostResidualConfig()
    enhanced_mask_decoder: bool = Field(
        default=False, description="add learned positions before the last layer (DeBERTa)"
    )
    causal: bool = Field(default=False, description="causal attention: no token sees a later one")
    seed: int = Field(default=0, ge=0, description="seed of random blocks, hash rotations and random features")

    @model_validator(mode="after")
    def _check_sizes(self) -> EncoderConfig:
        size = self.residual.layer_size(self.hidden_size)
        if self.num_hidden_groups and self.num_hidden_layers % self.num_hidden_groups:
            raise ValueError(
                f"num_hidden_layers={self.num_hidden_layers} must be a multiple of "
                f"num_hidden_groups={self.num_hidden_groups}"
            )
        if self.enhanced_mask_decoder:
            self._check_mask_decoder()
        if not self.head_size and size % self.num_attention_heads:
            stream = "" if size == self.hidden_size else f", {size} in a reversible stream,"
            raise ValueError(
                f"hidden_size={self.hidden_size}{stream} must be a multiple of "
                f"num_attention_heads={self.num_attention_heads}"
            )
        if self.num_key_value_heads and self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} must be a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}"
            )
        return self

    def _check_mask_decoder(self) -> None:
        if self.attention.kind != "disentangled" or self.positions.kind != "none":
            raise ValueError(
                f"enhanced_mask_decoder needs attention.kind=disentangled and positions.kind=none, not "
                f"{self.attention.kind} and {self.positions.kind}"
            )
        if self.residual.kind == "reversible" or self.causal:
            raise ValueError("enhanced_mask_decoder does not support residual.kind=reversible or causal=true")

    def build_embeddings(self, *, words: nn.Embedding | None = None) -> Embeddings:
        """Build the embeddings; ``words`` are word embeddings of another stack to share."""
        size = self.embedding_size or self.hidden_size
        return Embeddings(
            self.vocab_size,
            size,
            positions=self.positions.build(self.max_position_embeddings, size),
            norm=self._norm(size) if self.embedding_norm else nn.Identity(),
            type_vocab_size=self.type_vocab_size,
            dropout=self.hidden_dropout_prob,
            # in causal models padding may be the end-of-text token (GPT-2), which is trained
            pad_token_id=None if self.causal else self.pad_token_id,
            scale=self.scale_embedding,
            words=words,
            late=LearnedPositions(self.max_position_embeddings, size) if self.enhanced_mask_decoder else None,
        )

    @property
    def norm_has_bias(self) -> bool:
        """False for layer norms without biases."""
        return self.norm != "layer_norm" or (self.norm_bias and self.norm_weight)

    def causal_setting(self, causal: bool) -> str:
        """Return the setting that makes a model causal or bidirectional, for error messages."""
        return f"model.causal={str(causal).lower()}"

    @property
    def own_layers(self) -> int:
        """Number of layers with their own weights."""
        return self.num_hidden_groups or self.num_hidden_layers

    @property
    def needs_padding_token(self) -> bool:
        """True if the padding token must have no other use, since its embedding is not trained."""
        return not self.causal

    def check_length(self, length: int, target_length: int) -> None:
        """Raise `UserError` for rows longer than the model."""
        check_row_length(length, self.max_position_embeddings)

    def with_seed(self, seed: int) -> EncoderConfig:
        """Return a copy with this seed, unless the config sets one."""
        return self if "seed" in self.model_fields_set else self.model_copy(update={"seed": seed})

    def _norm(self, size: int) -> nn.Module:
        if self.norm == "rms_norm":
            return RMSNorm(size, eps=self.layer_norm_eps, elementwise_affine=self.norm_weight)
        return nn.LayerNorm(
            size, eps=self.layer_norm_eps, elementwise_affine=self.norm_weight, bias=self.norm_bias and self.norm_weight
        )

    def build(self, embeddings: Embeddings | CharacterEmbeddings | None = None, *, source_size: int = 0) -> Encoder:
        """Build the stack, initialised by `initialise`.

        Args:
            embeddings: embeddings of another model to share.
            source_size: width of the encoder's hidden states for cross-attention; 0: no cross-attention.

        Raises:
            UserError: the vocabulary is empty or does not contain the padding token.
        """
        check_vocabulary(self.vocab_size, pad_token_id=self.pad_token_id)
        shared = shared_modules(embeddings, source_size)
        embeddings = self.build_embeddings() if embeddings is None else embeddings
        layer_stack = self.residual.build_layer_stack()
        encoder = Encoder(
            embeddings,
            self._layers(source_size),
            input_size=self.hidden_size,
            layer_stack=layer_stack,
            final_norm=self.residual.final_norm(
                self._norm(self.hidden_size * layer_stack.copies), self.hidden_dropout_prob
            ),
            layer_norm_eps=self.layer_norm_eps,
            causal=self.causal,
            reads_context=self.attention.reads_context and self.residual.reads_context,
            reads_unpadded=self.attention.reads_unpadded,
        )
        initialise((m for m in encoder.modules() if m not in shared), self.initializer_range, self.initialization)
        if self.initialization == "fan_in":
            for weight in output_weights(encoder.layers):
                nn.init.zeros_(weight)  # a new stack is the identity (Zhang et al. 2019)
        self.residual.initialise(list(encoder.layers))
        if self.neighbour_heads:
            initialise_neighbour_heads(encoder, deviation=self.initializer_range, step=self.neighbour_heads)
        return encoder

    def _layers(self, source_size: int) -> list[nn.Module]:
        size = self.residual.layer_size(self.hidden_size)

        def wire(sublayer: nn.Module, norm: nn.Module | None = None) -> nn.Module:
            return self.residual.wire(sublayer, norm or self._norm(size), Dropout(self.hidden_dropout_prob))

        layers: list[nn.Module] = []
        attention = None
        count = self.own_layers
        rotations = self.positions.rotations(count, self.max_position_embeddings)
        for number in range(count):
            spec = AttentionSpec(
                hidden_size=size,
                num_attention_heads=self.num_attention_heads,
                max_position_embeddings=self.max_position_embeddings,
                layer=number,
                causal=self.causal,
                dropout=self.attention_probs_dropout_prob,
                seed=self.seed,
                head_size=self.head_size,
                bias=self.attention_bias,
                scaled=self.scale_attn_weights,
                hidden_dropout=self.hidden_dropout_prob,
                layer_norm_eps=self.layer_norm_eps,
                num_key_value_heads=self.num_key_value_heads,
                rotary=rotations[number],
                qk_norm=self._norm if self.qk_norm else None,
                shared_with=attention,
            )
            attention = self.attention.build(spec)
            feedforward = FeedForward(
                size,
                self.intermediate_size,
                ACTIVATIONS[self.hidden_act](),
                chunk=self.feed_forward_chunk,
                gated=self.gated_feed_forward,
                bias=self.mlp_bias,
            )
            cross = wire(self._cross_attention(size, source_size)) if source_size else None
            normed = wire(attention, nn.Identity() if self.residual.enters_unnormed(number) else None)
            layers.append(self.residual.layer(normed, wire(feedforward), cross))
        return [layers[number * count // self.num_hidden_layers] for number in range(self.num_hidden_layers)]

    def _cross_attention(self, size: int, source_size: int) -> nn.Module:
        kernel = DotProduct(dropout=self.attention_probs_dropout_prob, scaled=self.scale_attn_weights)
        return CrossAttention(
            size, source_size, self.num_attention_heads, kernel, head_size=self.head_size, bias=self.attention_bias
        )


def check_vocabulary(vocab_size: int, **tokens: int | None) -> None:
    """Raise `UserError` if the vocabulary is empty or ``tokens``, ids by name of their setting, are not in it."""
    if not vocab_size:
        raise UserError("vocab_size is 0; set it to the size of the tokenizer's vocabulary")
    for name, token in tokens.items():
        if token is not None and token >= vocab_size:
            raise UserError(f"{name}={token} must be below vocab_size={vocab_size}; use the tokenizer's")


def shared_modules(embeddings: Embeddings | CharacterEmbeddings | None, source_size: int) -> set[nn.Module]:
    """Return the modules that another stack has initialised: all embeddings, or the word embeddings of a decoder."""
    if embeddings is None:
        return set()
    return {embeddings.words} if source_size else set(embeddings.modules())


def initialise(modules: Iterable[nn.Module], initializer_range: float, kind: str = "normal") -> None:
    """Initialise linear layers and embeddings; biases are zero.

    Args:
        modules: modules of a model.
        initializer_range: standard deviation of all weights (``normal``) or of embeddings (``fan_in``).
        kind: ``normal`` (Devlin et al. 2019), or ``fan_in``: linear weights are uniform with a standard deviation of
            ``0.5 / sqrt(inputs)``, so that activations do not depend on the width.
    """
    for module in modules:
        if kind == "fan_in" and isinstance(module, nn.Linear):
            bound = 0.5 * math.sqrt(3 / module.in_features)
            nn.init.uniform_(module.weight, -bound, bound)
        elif isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=initializer_range)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
