"""The config of one stack: BERT, RoBERTa, ELECTRA, GPT and their relatives. It builds modules; they never see it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import ClassVar, Literal

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
from homespun.models.presets import PRESETS, family_of, preset_name
from homespun.nn.layers import ACTIVATIONS, Dropout, FeedForward, RMSNorm
from homespun.nn.positions import LearnedPositions


def name_presets(schema: Tree) -> None:
    # a preset is gone once it is read, so it is no field; editors should offer it all the same
    families = dict.fromkeys(map(family_of, PRESETS))
    preset = {
        "type": "string",
        "enum": [*PRESETS, *families],
        "description": "a named size, or a family with `size`; other fields win over it",
    }
    size = {"type": "string", "description": "of the preset's family, such as mini; wins over the one in its name"}
    schema["properties"] = {"preset": preset, "size": size, **schema["properties"]}


def with_preset(tree: object) -> object:
    """`expand_preset` of a mapping; other values as they are."""
    return expand_preset(tree) if isinstance(tree, dict) else tree


def expand_preset(tree: Tree) -> Tree:
    """A mapping with its ``preset`` written out, if it has one; other fields win over it, as in `completed`.

    A ``size`` chooses among the presets of that family, see `homespun.models.presets.preset_name`.

    Raises:
        UserError: there is no such preset or size.
    """
    if "preset" not in tree:
        return tree
    fields = {key: value for key, value in tree.items() if key not in ("preset", "size")}
    return completed(fields, PRESETS[preset_name(tree["preset"], tree.get("size"))])


def completed(given: Tree, base: Tree) -> Tree:
    """``given`` over ``base``, the fields of nested mappings one by one.

    A mapping of another ``kind`` than the one in ``base``, or with a preset of its own, replaces that one.
    """
    return base | {
        key: completed(value, base[key]) if _belong_together(value, base.get(key)) else value
        for key, value in given.items()
    }


def _belong_together(given: object, base: object) -> bool:
    if not isinstance(given, dict) or not isinstance(base, dict) or "preset" in given:
        return False
    return "kind" not in given or "kind" not in base or given["kind"] == base["kind"]


def check_row_length(length: int, limit: int) -> None:
    """Refuse rows of more tokens than the model reads.

    Raises:
        UserError: ``length`` exceeds ``limit``.
    """
    if length > limit:
        raise UserError(
            f"rows of data.max_length={length} tokens exceed max_position_embeddings={limit}; lower the "
            f"one or raise the other"
        )


class EncoderConfig(Config):
    """BERT, RoBERTa, ELECTRA and their relatives: one stack whose parts are exchanged here.

    ``preset`` names a size in `homespun.models.presets`; other fields given beside it win over it.
    """

    model_config = ConfigDict(json_schema_extra=name_presets)
    kind: Literal["encoder"] = "encoder"
    has_decoder: ClassVar[Literal[False]] = False
    is_recurrent: ClassVar[Literal[False]] = False
    has_word_embeddings: ClassVar[bool] = True
    of_one_stack: ClassVar[str] = ""
    vocab_size: int = Field(default=0, ge=0, description="entries of the vocabulary; 0: as many as the tokenizer has")
    pad_token_id: int = Field(default=0, ge=0, description="set from the tokenizer in training")
    hidden_size: int = Field(default=256, ge=1)
    embedding_size: int = Field(default=0, ge=0, description="width of the embeddings; 0: hidden_size")
    num_hidden_layers: int = Field(default=4, ge=1)
    num_attention_heads: int = Field(default=4, ge=1)
    num_hidden_groups: int = Field(
        default=0, ge=0, description="layers with weights of their own, the others repeat them (ALBERT: 1); 0: all"
    )
    head_size: int = Field(default=0, ge=0, description="width of a head; 0: hidden_size / num_attention_heads")
    intermediate_size: int = Field(default=1024, ge=1)
    gated_feed_forward: bool = Field(default=False, description="a second inner projection as a gate (T5 1.1)")
    feed_forward_chunk: int = Field(
        default=0, ge=0, description="positions the feed-forward works through at once, to save memory; 0: all"
    )
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: float = Field(default=0.1, ge=0, lt=1)
    attention_probs_dropout_prob: float = Field(
        default=0.0, ge=0, lt=1, description="off by default: no fast attention path on a CPU has it"
    )
    max_position_embeddings: int = Field(default=512, ge=1)
    type_vocab_size: int = Field(default=2, ge=0, description="segments; 0: none")
    layer_norm_eps: float = Field(default=1e-12, gt=0)
    norm: Literal["layer_norm", "rms_norm"] = Field(default="layer_norm", description="T5 and Llama have rms_norm")
    norm_weight: bool = Field(default=True, description="norms have learned weights (nanochat's have none)")
    norm_bias: bool = Field(default=True, description="layer norms have biases (ModernBERT's have none)")
    qk_norm: bool = Field(default=False, description="normalise the queries and keys of each head (Qwen3)")
    num_key_value_heads: int = Field(
        default=0, ge=0, description="heads of keys and values, shared by several query heads; 0: num_attention_heads"
    )
    attention_bias: bool = Field(default=True, description="projections of the attention have biases")
    mlp_bias: bool = Field(default=True, description="projections of the feed-forward have biases")
    scale_attn_weights: bool = Field(default=True, description="scores are divided by sqrt(head_size); T5's are not")
    scale_embedding: bool = Field(default=False, description="word vectors times sqrt(embedding_size) (PEGASUS)")
    embedding_norm: bool = Field(default=True, description="normalise the embeddings (BERT); GPT-2 and Reformer do not")
    initialization: Literal["normal", "fan_in"] = Field(
        default="normal",
        description="normal: every weight of deviation initializer_range (BERT); fan_in: by width, see `initialise`",
    )
    initializer_range: float = Field(default=0.02, gt=0)
    neighbour_heads: int = Field(
        default=0,
        ge=0,
        description="heads of the first layer start by attending to tokens once and twice this far before and after; "
        "0: as drawn. For absolute positions and relative biases",
    )
    positions: PositionsConfig = LearnedPositionsConfig()
    attention: AttentionConfig = FullAttentionConfig()
    residual: ResidualConfig = PostResidualConfig()
    enhanced_mask_decoder: bool = Field(
        default=False,
        description="learned positions that enter before the last layer, where masked tokens are told (DeBERTa)",
    )
    causal: bool = Field(default=False, description="no token sees a later one")
    seed: int = Field(
        default=0, ge=0, description="of what an attention draws once: random blocks, hash rotations, random features"
    )

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, tree: object) -> object:
        return with_preset(tree)

    @model_validator(mode="after")
    def _heads(self) -> EncoderConfig:
        size = self.residual.layer_size(self.hidden_size)
        if self.num_hidden_groups and self.num_hidden_layers % self.num_hidden_groups:
            raise ValueError(
                f"num_hidden_layers={self.num_hidden_layers} is not a multiple of "
                f"num_hidden_groups={self.num_hidden_groups}"
            )
        if self.enhanced_mask_decoder:
            self._check_mask_decoder()
        if not self.head_size and size % self.num_attention_heads:
            halved = "" if size == self.hidden_size else f", {size} in a reversible stream,"
            raise ValueError(
                f"hidden_size={self.hidden_size}{halved} is not a multiple of "
                f"num_attention_heads={self.num_attention_heads}"
            )
        return self

    @model_validator(mode="after")
    def _groups(self) -> EncoderConfig:
        if self.num_key_value_heads and self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}"
            )
        return self

    def _check_mask_decoder(self) -> None:
        if self.attention.kind != "disentangled" or self.positions.kind != "none":
            raise ValueError(
                f"enhanced_mask_decoder tells places late that attention of kind disentangled and positions of kind "
                f"none do not tell before; this model has {self.attention.kind} and {self.positions.kind}"
            )
        if self.residual.kind == "reversible" or self.causal:
            raise ValueError("enhanced_mask_decoder runs the last layer apart, which must not be reversible or causal")

    def build_embeddings(self, *, words: nn.Embedding | None = None) -> Embeddings:
        """The embeddings alone, so that ELECTRA's generator can share its discriminator's.

        ``words``: those of another stack, to share only them.
        """
        size = self.embedding_size or self.hidden_size
        return Embeddings(
            self.vocab_size,
            size,
            positions=self.positions.build(self.max_position_embeddings, size),
            norm=self._norm(size) if self.embedding_norm else nn.Identity(),
            type_vocab_size=self.type_vocab_size,
            dropout=self.hidden_dropout_prob,
            # a causal stack's padding may be what ends its texts (GPT-2), which is read and learned as any token
            pad_token_id=None if self.causal else self.pad_token_id,
            scale=self.scale_embedding,
            words=words,
            late=LearnedPositions(self.max_position_embeddings, size) if self.enhanced_mask_decoder else None,
        )

    @property
    def stacks(self) -> tuple[EncoderConfig]:
        """Only stack; see `homespun.models.backbone.Backbone.stacks`."""
        return (self,)

    @property
    def norm_has_bias(self) -> bool:
        """True unless layer norms were configured without biases."""
        return self.norm != "layer_norm" or (self.norm_bias and self.norm_weight)

    def causal_setting(self, causal: bool) -> str:
        """Setting that makes a new model causal or not, for messages."""
        return f"model.causal={str(causal).lower()}"

    @property
    def own_layers(self) -> int:
        """Layers with weights of their own."""
        return self.num_hidden_groups or self.num_hidden_layers

    @property
    def special_tokens(self) -> SpecialTokens:
        """Special tokens of generation; the tokenizer defines the end of a text."""
        return SpecialTokens(pad_token_id=self.pad_token_id)

    @property
    def needs_padding_token(self) -> bool:
        """True for a bidirectional model: a token that doubles as padding would not be learned."""
        return not self.causal

    def check_length(self, length: int, target_length: int) -> None:
        """Refuse rows that are longer than the model; see `check_row_length`."""
        check_row_length(length, self.max_position_embeddings)

    def with_seed(self, seed: int) -> EncoderConfig:
        """Copy with this seed, unless it was given one."""
        return self if "seed" in self.model_fields_set else self.model_copy(update={"seed": seed})

    def with_tokens(self, vocab_size: int, pad_token_id: int) -> EncoderConfig:
        """The same for another vocabulary."""
        return self.model_copy(update={"vocab_size": vocab_size, "pad_token_id": pad_token_id})

    def _norm(self, size: int) -> nn.Module:
        if self.norm == "rms_norm":
            return RMSNorm(size, eps=self.layer_norm_eps, elementwise_affine=self.norm_weight)
        return nn.LayerNorm(
            size, eps=self.layer_norm_eps, elementwise_affine=self.norm_weight, bias=self.norm_bias and self.norm_weight
        )

    def build(self, embeddings: Embeddings | CharacterEmbeddings | None = None, *, source_size: int = 0) -> Encoder:
        """The encoder, initialised by `initialise`.

        Args:
            embeddings: those of another model, to share them.
            source_size: width of the vectors that every layer looks at by cross-attention; 0: there are none.

        Raises:
            UserError: the vocabulary is empty, or the padding token is not in it.
        """
        check_vocabulary(self.vocab_size, pad_token_id=self.pad_token_id)
        given = embeddings
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
        )
        # of a decoder, only the words are another's
        shared = set() if given is None else {given.words} if source_size else set(given.modules())
        initialise((m for m in encoder.modules() if m not in shared), self.initializer_range, self.initialization)
        if self.initialization == "fan_in":
            zero_outputs(encoder.layers)
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
        own = self.own_layers
        rotations = self.positions.rotations(own, self.max_position_embeddings)
        for number in range(own):
            shape = AttentionSpec(
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
            attention = self.attention.build(shape)
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
        return [layers[number * own // self.num_hidden_layers] for number in range(self.num_hidden_layers)]

    def _cross_attention(self, size: int, source_size: int) -> nn.Module:
        kernel = DotProduct(dropout=self.attention_probs_dropout_prob, scaled=self.scale_attn_weights)
        return CrossAttention(
            size, source_size, self.num_attention_heads, kernel, head_size=self.head_size, bias=self.attention_bias
        )


def check_vocabulary(vocab_size: int, **tokens: int | None) -> None:
    """Refuse an empty vocabulary, and tokens outside it.

    Args:
        vocab_size: entries of the vocabulary.
        **tokens: token ids by the name of their setting.

    Raises:
        UserError: the vocabulary is empty, or a token is not in it.
    """
    if not vocab_size:
        raise UserError("vocab_size is 0: give the size of the tokenizer's vocabulary")
    for name, token in tokens.items():
        if token is not None and token >= vocab_size:
            raise UserError(
                f"{name}={token} is not in a vocabulary of vocab_size={vocab_size}; give the tokenizer's own"
            )


def initialise(modules: Iterable[nn.Module], initializer_range: float, kind: str = "normal") -> None:
    """Draw the weights of linear layers and embeddings; biases are zero, norms one.

    Args:
        modules: all modules of a model.
        initializer_range: deviation of every weight under ``normal``, of embeddings under ``fan_in``.
        kind: ``normal`` (Devlin et al. 2019), or ``fan_in``: linear weights are uniform with a deviation of
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


def zero_outputs(layers: Iterable[nn.Module]) -> None:
    """Zero what sublayers add to the residual stream, so that a new stack is the identity (Zhang et al. 2019)."""
    for weight in output_weights(layers):
        nn.init.zeros_(weight)
