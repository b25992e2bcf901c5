"""The config of an encoder and a decoder that reads what it has read: the 2017 Transformer, BART, T5, PEGASUS, LED."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from homespun.attention import AttentionConfig
from homespun.config import Config
from homespun.errors import UserError
from homespun.models.backbone import EncoderDecoder
from homespun.models.embeddings import NgramStreams
from homespun.models.encoder import (
    EncoderConfig,
    check_row_length,
    check_vocabulary,
    expand_preset,
    initialise,
    name_presets,
)
from homespun.models.generation.settings import SpecialTokens
from homespun.models.layer_parts import PositionsConfig
from homespun.models.recurrent import AdditiveAttentionConfig, NoAttentionConfig, RecurrentConfig

# what a decoder does not take over from its encoder, of what both have
_OWN = ("kind", "attention", "causal", "bidirectional")
_STACKS: dict[str, type[EncoderConfig | RecurrentConfig]] = {"encoder": EncoderConfig, "recurrent": RecurrentConfig}
TokenId = Annotated[int, Field(ge=0)]


def default_kind(tree: object) -> object:
    """One stack of attention, if neither ``kind`` nor the preset says more."""
    return {"kind": "encoder"} | expand_preset(tree) if isinstance(tree, dict) else tree


StackConfig = Annotated[EncoderConfig | RecurrentConfig, Field(discriminator="kind"), BeforeValidator(default_kind)]


class EncoderDecoderConfig(Config):
    """Two stacks over the same word embeddings. ``decoder`` is what is not the same as in ``encoder``.

    The decoder is causal and its attention full, unless it says so otherwise; each of its layers looks at the encoder's
    vectors besides. Any attention may stand in either (LED: Longformer's in the encoder), and either may be recurrent.
    """

    model_config = ConfigDict(json_schema_extra=name_presets)
    kind: Literal["encoder_decoder"] = "encoder_decoder"
    has_decoder: ClassVar[Literal[True]] = True
    is_recurrent: ClassVar[Literal[False]] = False
    causal: ClassVar[bool] = False
    encoder: StackConfig = EncoderConfig()
    decoder: StackConfig = EncoderConfig(causal=True)
    decoder_start_token_id: int = Field(default=0, ge=0, description="what stands before the first token to write")
    bos_token_id: TokenId | None = Field(default=None, description="begins a text, where its family says so")
    eos_token_id: TokenId | None = Field(default=None, description="ends a text, where its family says so")
    forced_bos_token_id: TokenId | None = Field(default=None, description="written first, whatever is likely")
    forced_eos_token_id: TokenId | None = Field(default=None, description="written last where the length ends a text")

    learned_padding: bool = Field(
        default=False, description="the vector of the padding token learns; in T5 it begins what is written"
    )
    ngram: int = Field(
        default=0, ge=0, description="streams that predict a token from ever further back (ProphetNet); 0: none"
    )

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, tree: object) -> object:
        if not isinstance(tree, dict):
            return tree
        tree = expand_preset(tree)
        encoder, decoder = (tree.get(name, {}) for name in ("encoder", "decoder"))
        if not isinstance(encoder, (dict, EncoderConfig, RecurrentConfig)) or not isinstance(decoder, dict):
            return tree
        if isinstance(encoder, dict):
            encoder = {"kind": "encoder"} | expand_preset(encoder)
            if encoder["kind"] not in _STACKS:
                return tree  # which says what there is
            try:
                encoder = _STACKS[encoder["kind"]].model_validate(encoder)
            except ValidationError:  # which is told of `encoder`, where it is read next
                return tree | {"decoder": EncoderConfig(causal=True)}
        if encoder.of_one_stack:
            raise ValueError(f"{encoder.of_one_stack} is of a stack that stands alone; leave it out of both")
        decoder = {"kind": encoder.kind} | expand_preset(decoder)
        its = _STACKS[decoder["kind"]].model_fields if decoder["kind"] in _STACKS else {}
        taken = {name: value for name, value in encoder.model_dump().items() if name in its and name not in _OWN}
        own = {"causal": True} | ({"attention": {"kind": "ngram"}} if tree.get("ngram") else {})
        return tree | {"encoder": encoder, "decoder": taken | (own if "causal" in its else {}) | decoder}

    @model_validator(mode="after")
    def _fits(self) -> EncoderDecoderConfig:
        if self.decoder.of_one_stack:
            raise ValueError(f"{self.decoder.of_one_stack} is of a stack that stands alone; leave it out of both")
        if self.decoder.is_recurrent and self.decoder.bidirectional:
            raise ValueError("a decoder writes from left to right; set `bidirectional` in the encoder alone")
        if not self.decoder.causal or (self.encoder.causal and not self.encoder.is_recurrent):
            raise ValueError("a decoder is causal and its encoder is not; leave `causal` out of both")
        if self.ngram and self.decoder.attention.kind != "ngram":
            raise ValueError(
                f"ngram={self.ngram} streams in a decoder of {self.decoder.attention.kind} attention; only ngram "
                f"attention has streams, leave the decoder's out or take ngram: 0"
            )
        for name in ("vocab_size", "pad_token_id", "embedding_size"):
            ours, theirs = getattr(self.encoder, name), getattr(self.decoder, name)
            if ours != theirs:
                raise ValueError(f"both stacks share their word embeddings, but {name} is {ours} and {theirs}")
        if not self.encoder.embedding_size and self.encoder.hidden_size != self.decoder.hidden_size:
            raise ValueError(
                f"both stacks share their word embeddings, but hidden_size is {self.encoder.hidden_size} and "
                f"{self.decoder.hidden_size}; give embedding_size"
            )
        return self

    @property
    def stacks(self) -> tuple[StackConfig, StackConfig]:
        """Encoder and decoder; see `homespun.models.backbone.Backbone.stacks`."""
        return self.encoder, self.decoder

    @property
    def vocab_size(self) -> int:
        """Of both."""
        return self.encoder.vocab_size

    @property
    def pad_token_id(self) -> int:
        """Of both."""
        return self.encoder.pad_token_id

    @property
    def embedding_size(self) -> int:
        """Of both; 0: hidden_size."""
        return self.encoder.embedding_size

    @property
    def type_vocab_size(self) -> int:
        """The encoder's."""
        return self.encoder.type_vocab_size

    @property
    def hidden_size(self) -> int:
        """The decoder's, which heads stand on."""
        return self.decoder.hidden_size

    @property
    def initializer_range(self) -> float:
        """The decoder's, which heads stand on."""
        return self.decoder.initializer_range

    @property
    def max_position_embeddings(self) -> int:
        """The longest text to read."""
        return self.encoder.max_position_embeddings

    @property
    def num_hidden_layers(self) -> int:
        """Of both stacks together."""
        return self.encoder.num_hidden_layers + self.decoder.num_hidden_layers

    @property
    def own_layers(self) -> int:
        """Layers with weights of their own, of both stacks together."""
        return self.encoder.own_layers + self.decoder.own_layers

    @property
    def num_attention_heads(self) -> int:
        """The encoder's."""
        return self.encoder.num_attention_heads

    @property
    def attention(self) -> AttentionConfig | AdditiveAttentionConfig | NoAttentionConfig:
        """The encoder's."""
        return self.encoder.attention

    @property
    def positions(self) -> PositionsConfig:
        """The encoder's."""
        return self.encoder.positions

    @property
    def seed(self) -> int:
        """Of what the encoder draws once."""
        return self.encoder.seed

    @property
    def special_tokens(self) -> SpecialTokens:
        """Special tokens of generation."""
        return SpecialTokens(
            pad_token_id=self.pad_token_id,
            eos_token_id=self.eos_token_id,
            decoder_start_token_id=self.decoder_start_token_id,
            forced_bos_token_id=self.forced_bos_token_id,
            forced_eos_token_id=self.forced_eos_token_id,
        )

    @property
    def needs_padding_token(self) -> bool:
        """False: its families may pad with a token of another use."""
        return False

    def check_length(self, length: int, target_length: int) -> None:
        """Refuse rows that are longer than the model.

        Args:
            length: tokens of a row.
            target_length: most tokens that the decoder writes for it.

        Raises:
            UserError: more tokens than either stack reads.
        """
        check_row_length(length, self.max_position_embeddings)
        limit = self.decoder.max_position_embeddings
        if target_length > limit:
            raise UserError(
                f"of rows of data.max_length={length} tokens a decoder has up to {target_length} to write, which "
                f"exceeds its max_position_embeddings={limit}; lower data.max_length or set "
                f"model.decoder.max_position_embeddings={target_length}"
            )

    def with_seed(self, seed: int) -> EncoderDecoderConfig:
        """Copy with this seed in both stacks, unless the encoder was given one."""
        encoder = self.encoder.with_seed(seed)
        if encoder is self.encoder:
            return self
        return self.model_copy(update={"encoder": encoder, "decoder": self.decoder.model_copy(update={"seed": seed})})

    def with_tokens(self, vocab_size: int, pad_token_id: int) -> EncoderDecoderConfig:
        """The same for another vocabulary."""
        stacks = {name: getattr(self, name).with_tokens(vocab_size, pad_token_id) for name in ("encoder", "decoder")}
        return self.model_copy(update=stacks)

    def build(self) -> EncoderDecoder:
        """Both stacks, each initialised as `EncoderConfig.build` says.

        Raises:
            UserError: what a stack cannot be, or one of the tokens named here is not in the vocabulary.
        """
        encoder = self.encoder.build()
        if self.learned_padding:
            encoder.embeddings.words.padding_idx = None
        check_vocabulary(self.vocab_size, **{name: getattr(self, name) for name in NAMED_TOKENS})
        embeddings = self.decoder.build_embeddings(words=encoder.embeddings.words)
        decoder = self.decoder.build(embeddings, source_size=encoder.hidden_size)
        return EncoderDecoder(
            encoder, decoder, decoder_start_token_id=self.decoder_start_token_id, predicting=self._predicting()
        )

    def _predicting(self) -> NgramStreams | None:
        if not self.ngram:
            return None
        predicting = NgramStreams(
            self.ngram,
            self.decoder.embedding_size or self.decoder.hidden_size,
            max_position_embeddings=self.decoder.max_position_embeddings,
        )
        initialise(predicting.modules(), self.decoder.initializer_range)
        return predicting


NAMED_TOKENS = tuple(name for name in EncoderDecoderConfig.model_fields if name.endswith("_token_id"))
"""Fields that name a token of the vocabulary."""
