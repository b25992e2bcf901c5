"""The configs of models, and the unions that are their registry. Configs build modules; modules never see a config."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PositiveInt, model_validator
from torch import nn

from homespun.config import Config
from homespun.errors import UserError, nearest
from homespun.models.activation import Activation
from homespun.models.attentions import AttentionConfig
from homespun.models.attentions.full import FullAttentionConfig
from homespun.models.attentions.shape import AttentionShape
from homespun.models.backbone import Encoder, Model
from homespun.models.chunk_pool import ChunkPoolHeadConfig
from homespun.models.embeddings import Embeddings
from homespun.models.heads import CausalLMHead, DiscriminatorHead, MaskedLMHead
from homespun.models.presets import PRESETS
from homespun.models.sequence_heads import SequenceHeadConfig
from homespun.nn.dropout import Dropout
from homespun.nn.feedforward import ACTIVATIONS, FeedForward
from homespun.nn.positions import AxialPositions, LearnedPositions, SinusoidalPositions
from homespun.nn.residual import Layer, OneStream, PostNorm, PreNorm, Streams
from homespun.nn.reversible import Branch, ReversibleLayer, TwoStreams


class LearnedPositionsConfig(Config):
    """One learned vector a position; ``offset`` unused rows come first (RoBERTa: padding id + 1)."""

    kind: Literal["learned"] = "learned"
    offset: int = Field(default=0, ge=0)

    def build(self, max_position_embeddings: int, embedding_size: int) -> nn.Module:
        return LearnedPositions(max_position_embeddings, embedding_size, offset=self.offset)


class SinusoidalPositionsConfig(Config):
    """Fixed sines and cosines (Vaswani et al. 2017)."""

    kind: Literal["sinusoidal"] = "sinusoidal"

    def build(self, max_position_embeddings: int, embedding_size: int) -> nn.Module:
        return SinusoidalPositions(max_position_embeddings, embedding_size)


class AxialPositionsConfig(Config):
    """Learned vectors of the rows and columns of a grid, for long inputs (Reformer)."""

    kind: Literal["axial"] = "axial"
    shape: tuple[PositiveInt, PositiveInt] = Field(
        description="rows and columns; their product is at least max_position_embeddings"
    )
    sizes: tuple[PositiveInt, PositiveInt] = Field(
        description="widths of their vectors; they sum to the width of the embeddings"
    )

    def build(self, max_position_embeddings: int, embedding_size: int) -> nn.Module:
        return AxialPositions(max_position_embeddings, embedding_size, shape=self.shape, sizes=self.sizes)


PositionsConfig = Annotated[
    LearnedPositionsConfig | SinusoidalPositionsConfig | AxialPositionsConfig, Field(discriminator="kind")
]


class PostResidualConfig(Config):
    """Normalise after the sum (BERT)."""

    kind: Literal["post"] = "post"

    def layer_size(self, hidden_size: int) -> int:
        """The width that layers work at."""
        return hidden_size

    def wire(self, sublayer: nn.Module, norm: nn.Module, dropout: nn.Module) -> nn.Module:
        return PostNorm(sublayer, norm, dropout)

    def layer(self, attention: nn.Module, feedforward: nn.Module) -> nn.Module:
        return Layer(attention, feedforward)

    def build_streams(self) -> Streams:
        return OneStream()

    def final_norm(self, size: int, eps: float, dropout: float) -> nn.Module:
        return nn.Identity()


class PreResidualConfig(Config):
    """Normalise before the sublayer, and once more at the end of the stack (GPT-2)."""

    kind: Literal["pre"] = "pre"

    def layer_size(self, hidden_size: int) -> int:
        """The width that layers work at."""
        return hidden_size

    def wire(self, sublayer: nn.Module, norm: nn.Module, dropout: nn.Module) -> nn.Module:
        return PreNorm(sublayer, norm, dropout)

    def layer(self, attention: nn.Module, feedforward: nn.Module) -> nn.Module:
        return Layer(attention, feedforward)

    def build_streams(self) -> Streams:
        return OneStream()

    def final_norm(self, size: int, eps: float, dropout: float) -> nn.Module:
        return nn.LayerNorm(size, eps=eps)


class ReversibleResidualConfig(Config):
    """Two streams whose activations the backward pass recomputes: memory does not grow with depth, a third more time.

    ``streams: split`` gives each stream half of ``hidden_size`` (document 000, section 4.3.3); ``copy`` gives each all
    of it, and heads twice that (Reformer). Normalised before the sublayer and once more at the end.
    """

    kind: Literal["reversible"] = "reversible"
    streams: Literal["split", "copy"] = "split"

    def layer_size(self, hidden_size: int) -> int:
        """The width that layers work at."""
        if self.streams == "copy":
            return hidden_size
        if hidden_size % 2:
            raise UserError(f"hidden_size={hidden_size} has no half for reversible streams; choose an even number")
        return hidden_size // 2

    def wire(self, sublayer: nn.Module, norm: nn.Module, dropout: nn.Module) -> nn.Module:
        return Branch(sublayer, norm, dropout)

    def layer(self, attention: nn.Module, feedforward: nn.Module) -> nn.Module:
        return ReversibleLayer(attention, feedforward)

    def build_streams(self) -> Streams:
        return TwoStreams(copies=2 if self.streams == "copy" else 1)

    def final_norm(self, size: int, eps: float, dropout: float) -> nn.Module:
        return nn.Sequential(nn.LayerNorm(size, eps=eps), Dropout(dropout))


ResidualConfig = Annotated[
    PostResidualConfig | PreResidualConfig | ReversibleResidualConfig, Field(discriminator="kind")
]


def _name_presets(schema: dict[str, Any]) -> None:
    # a preset is gone once it is read, so it is no field; editors should offer it all the same
    preset = {"type": "string", "enum": [*PRESETS], "description": "a named size; other fields win over it"}
    schema["properties"] = {"preset": preset, **schema["properties"]}


class EncoderConfig(Config):
    """BERT, RoBERTa, ELECTRA and their relatives: one stack whose parts are exchanged here.

    ``preset`` names a size in `homespun.models.presets`; other fields given beside it win over it.
    """

    model_config = ConfigDict(json_schema_extra=_name_presets)
    kind: Literal["encoder"] = "encoder"
    vocab_size: int = Field(default=0, ge=0, description="entries of the vocabulary; 0: as many as the tokenizer has")
    pad_token_id: int = Field(default=0, ge=0, description="set from the tokenizer in training")
    hidden_size: int = Field(default=256, ge=1)
    embedding_size: int = Field(default=0, ge=0, description="width of the embeddings; 0: hidden_size")
    num_hidden_layers: int = Field(default=4, ge=1)
    num_attention_heads: int = Field(default=4, ge=1)
    intermediate_size: int = Field(default=1024, ge=1)
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
    embedding_norm: bool = Field(default=True, description="normalise the embeddings (BERT); GPT-2 and Reformer do not")
    initializer_range: float = Field(default=0.02, gt=0)
    positions: PositionsConfig = LearnedPositionsConfig()
    attention: AttentionConfig = FullAttentionConfig()
    residual: ResidualConfig = PostResidualConfig()
    causal: bool = Field(default=False, description="no token sees a later one")
    seed: int = Field(
        default=0, ge=0, description="of what an attention draws once: random blocks, hash rotations, random features"
    )

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, tree: Any) -> Any:
        if not isinstance(tree, dict) or "preset" not in tree:
            return tree
        name = tree["preset"]
        if not isinstance(name, str) or name not in PRESETS:
            raise UserError(f"unknown preset {name!r}{nearest(str(name), PRESETS)}")
        return PRESETS[name] | {key: value for key, value in tree.items() if key != "preset"}

    @model_validator(mode="after")
    def _heads(self) -> EncoderConfig:
        size = self.residual.layer_size(self.hidden_size)
        if size % self.num_attention_heads:
            halved = "" if size == self.hidden_size else f", {size} in a reversible stream,"
            raise ValueError(
                f"hidden_size={self.hidden_size}{halved} is not a multiple of "
                f"num_attention_heads={self.num_attention_heads}"
            )
        return self

    def build_embeddings(self) -> Embeddings:
        """The embeddings alone, so that ELECTRA's generator can share its discriminator's."""
        size = self.embedding_size or self.hidden_size
        return Embeddings(
            self.vocab_size,
            size,
            positions=self.positions.build(self.max_position_embeddings, size),
            norm=nn.LayerNorm(size, eps=self.layer_norm_eps) if self.embedding_norm else nn.Identity(),
            type_vocab_size=self.type_vocab_size,
            dropout=self.hidden_dropout_prob,
            pad_token_id=self.pad_token_id,
        )

    def build(self, embeddings: Embeddings | None = None) -> Encoder:
        """The encoder, initialised as BERT's is: normal with ``initializer_range``, biases zero, norms one.

        Raises:
            UserError: the vocabulary is empty, or the padding token is not in it.
        """
        if not self.vocab_size:
            raise UserError("vocab_size is 0: give the size of the tokenizer's vocabulary")
        if self.pad_token_id >= self.vocab_size:
            raise UserError(
                f"pad_token_id={self.pad_token_id} is not in a vocabulary of vocab_size={self.vocab_size}; "
                f"give the tokenizer's own"
            )
        given = embeddings
        embeddings = self.build_embeddings() if embeddings is None else embeddings
        streams = self.residual.build_streams()
        encoder = Encoder(
            embeddings,
            self._layers(),
            input_size=self.hidden_size,
            streams=streams,
            final_norm=self.residual.final_norm(
                self.hidden_size * streams.copies, self.layer_norm_eps, self.hidden_dropout_prob
            ),
            layer_norm_eps=self.layer_norm_eps,
            causal=self.causal,
        )
        shared = set() if given is None else set(given.modules())
        initialise((m for m in encoder.modules() if m not in shared), self.initializer_range)
        return encoder

    def _layers(self) -> list[nn.Module]:
        size = self.residual.layer_size(self.hidden_size)

        def wire(sublayer: nn.Module) -> nn.Module:
            norm = nn.LayerNorm(size, eps=self.layer_norm_eps)
            return self.residual.wire(sublayer, norm, Dropout(self.hidden_dropout_prob))

        layers: list[nn.Module] = []
        attention = None
        for number in range(self.num_hidden_layers):
            shape = AttentionShape(
                hidden_size=size,
                num_attention_heads=self.num_attention_heads,
                max_position_embeddings=self.max_position_embeddings,
                layer=number,
                causal=self.causal,
                dropout=self.attention_probs_dropout_prob,
                seed=self.seed,
                previous=attention,
            )
            attention = self.attention.build(shape)
            feedforward = FeedForward(
                size, self.intermediate_size, ACTIVATIONS[self.hidden_act](), chunk=self.feed_forward_chunk
            )
            layers.append(self.residual.layer(wire(attention), wire(feedforward)))
        return layers


def initialise(modules: Any, initializer_range: float) -> None:
    """Linear and embedding weights normal with this deviation, biases zero, norms one."""
    for module in modules:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=initializer_range)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


BackboneConfig = EncoderConfig


class MaskedLMHeadConfig(Config):
    """Hidden -> vocabulary through a transform and the tied embeddings."""

    kind: Literal["masked_lm"] = "masked_lm"
    hidden_act: Activation = "gelu"

    def build(self, backbone: Encoder) -> nn.Module:
        return MaskedLMHead(
            backbone.hidden_size,
            backbone.embeddings.words,
            ACTIVATIONS[self.hidden_act](),
            layer_norm_eps=backbone.layer_norm_eps,
        )


class CausalLMHeadConfig(Config):
    """Hidden -> vocabulary through the embeddings alone (GPT-2), or others of their own (Reformer)."""

    kind: Literal["causal_lm"] = "causal_lm"
    tie_word_embeddings: bool = Field(default=True, description="the same embeddings at both ends")

    def build(self, backbone: Encoder) -> nn.Module:
        words = backbone.embeddings.words
        if not self.tie_word_embeddings:
            words = nn.Embedding(words.num_embeddings, backbone.hidden_size)
        return CausalLMHead(backbone.hidden_size, words)


class DiscriminatorHeadConfig(Config):
    """Hidden -> one logit a token: was it replaced? (ELECTRA)"""

    kind: Literal["discriminator"] = "discriminator"
    hidden_act: Activation = "gelu"

    def build(self, backbone: Encoder) -> nn.Module:
        return DiscriminatorHead(backbone.hidden_size, ACTIVATIONS[self.hidden_act]())


TokenHeadConfig = MaskedLMHeadConfig | CausalLMHeadConfig | DiscriminatorHeadConfig
HeadConfig = Annotated[TokenHeadConfig | SequenceHeadConfig | ChunkPoolHeadConfig, Field(discriminator="kind")]


class ModelConfig(Config):
    """A backbone and what stands on it."""

    backbone: BackboneConfig
    head: HeadConfig | None = None

    def build(self) -> Model:
        """A freshly initialised model."""
        backbone = self.backbone.build()
        head = None if self.head is None else self.head.build(backbone)
        if head is not None:
            shared = set(backbone.modules())
            initialise((m for m in head.modules() if m not in shared), self.backbone.initializer_range)
        return Model(backbone, head)
