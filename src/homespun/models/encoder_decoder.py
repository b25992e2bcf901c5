"""Config of an encoder-decoder: the Transformer of 2017, BART, T5, PEGASUS, LED, recurrent sequence to sequence."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from homespun.attention import AttentionConfig
from homespun.config import Config
from homespun.errors import UserError
from homespun.models.backbone import EncoderDecoder
from homespun.models.copy_heads import initialise_copy_heads
from homespun.models.embeddings import NgramStreams
from homespun.models.encoder import (
    EncoderConfig,
    check_row_length,
    check_vocabulary,
    initialise,
    name_presets,
)
from homespun.models.generation.settings import SpecialTokens, TokenId
from homespun.models.layer_parts import PositionsConfig
from homespun.models.presets import default_kind, expand_preset
from homespun.models.recurrent import AdditiveAttentionConfig, NoAttentionConfig, RecurrentConfig

# fields that a decoder does not inherit from its encoder
_NOT_INHERITED = ("kind", "attention", "causal", "bidirectional")
_STACKS: dict[str, type[EncoderConfig | RecurrentConfig]] = {"encoder": EncoderConfig, "recurrent": RecurrentConfig}

StackConfig = Annotated[EncoderConfig | RecurrentConfig, Field(discriminator="kind"), BeforeValidator(default_kind)]


class EncoderDecoderConfig(Config):
    """Config of an encoder-decoder with shared word embeddings; ``decoder`` inherits fields from ``encoder``.

    The decoder is causal with full attention by default, and its layers have cross-attention. Both stacks support every
    kind of attention and recurrent layers.
    """

    model_config = ConfigDict(json_schema_extra=name_presets)
    kind: Literal["encoder_decoder"] = "encoder_decoder"
    has_decoder: ClassVar[Literal[True]] = True
    is_recurrent: ClassVar[Literal[False]] = False
    causal: ClassVar[bool] = False
    needs_padding_token: ClassVar[bool] = False  # it may have another use
    encoder: StackConfig = EncoderConfig()
    decoder: StackConfig = EncoderConfig(causal=True)
    decoder_start_token_id: int = Field(default=0, ge=0, description="first input token of the decoder")
    bos_token_id: TokenId | None = Field(default=None, description="beginning of a text")
    eos_token_id: TokenId | None = Field(default=None, description="end of a text")
    forced_bos_token_id: TokenId | None = Field(default=None, description="forced first token of generation")
    forced_eos_token_id: TokenId | None = Field(default=None, description="forced last token at the maximum length")
    learned_padding: bool = Field(
        default=False, description="train the embedding of the padding token (T5, where it starts the decoder)"
    )
    ngram: int = Field(default=0, ge=0, description="prediction streams of the decoder (ProphetNet); 0: none")
    copy_heads: bool = Field(
        default=False,
        description="initialise a head to copy: it attends to the source tokens that follow the last token and adds "
        "them to the prediction. Needs encoder.neighbour_heads=1",
    )

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, tree: object) -> object:
        if not isinstance(tree, dict):
            return tree
        tree = expand_preset(tree)
        encoder, decoder = (tree.get(name, {}) for name in ("encoder", "decoder"))
        if not isinstance(encoder, (dict, Config)) or not isinstance(decoder, dict):
            return tree
        if isinstance(encoder, dict):
            encoder = {"kind": "encoder"} | expand_preset(encoder)
            if encoder["kind"] not in _STACKS:
                return tree  # validation lists the kinds
            try:
                encoder = _STACKS[encoder["kind"]].model_validate(encoder)
            except ValidationError:  # raised again by validation of `encoder`
                return tree | {"decoder": EncoderConfig(causal=True)}
        if encoder.of_one_stack:
            raise ValueError(f"{encoder.of_one_stack} is for single-stack models, not encoder-decoders; remove it")
        decoder = {"kind": encoder.kind} | expand_preset(decoder)
        fields = _STACKS[decoder["kind"]].model_fields if decoder["kind"] in _STACKS else {}
        inherited = {
            name: value for name, value in encoder.model_dump().items() if name in fields and name not in _NOT_INHERITED
        }
        if "causal" in fields:
            inherited |= {"causal": True} | ({"attention": {"kind": "ngram"}} if tree.get("ngram") else {})
        return tree | {"encoder": encoder, "decoder": inherited | decoder}

    @model_validator(mode="after")
    def _check_stacks(self) -> EncoderDecoderConfig:
        if self.decoder.of_one_stack:
            raise ValueError(f"{self.decoder.of_one_stack} is for single-stack models, not encoder-decoders; remove it")
        if self.decoder.is_recurrent and self.decoder.bidirectional:
            raise ValueError("a decoder generates from left to right; set bidirectional=true in the encoder only")
        if not self.decoder.causal or (self.encoder.causal and not self.encoder.is_recurrent):
            raise ValueError("the decoder must be causal and the encoder must not; remove causal from both")
        if self.ngram and self.decoder.attention.kind != "ngram":
            raise ValueError(
                f"ngram={self.ngram} needs decoder.attention.kind=ngram, not {self.decoder.attention.kind}; remove "
                f"decoder.attention or set ngram: 0"
            )
        if self.copy_heads:
            self._check_copy_heads()
        for name in ("vocab_size", "pad_token_id", "embedding_size"):
            values = getattr(self.encoder, name), getattr(self.decoder, name)
            if values[0] != values[1]:
                raise ValueError(f"both stacks share word embeddings, but {name} is {values[0]} and {values[1]}")
        if not self.encoder.embedding_size and self.encoder.hidden_size != self.decoder.hidden_size:
            raise ValueError(
                f"both stacks share word embeddings, but hidden_size is {self.encoder.hidden_size} and "
                f"{self.decoder.hidden_size}; set embedding_size"
            )
        return self

    def _check_copy_heads(self) -> None:
        if self.encoder.is_recurrent or self.decoder.is_recurrent:
            raise ValueError("copy_heads is for transformers, not recurrent stacks; remove it")
        if self.encoder.neighbour_heads != 1 or self.encoder.initialization != "fan_in":
            raise ValueError(
                "copy_heads needs an encoder head that sees the previous token; set encoder.neighbour_heads=1 and "
                "encoder.initialization=fan_in"
            )
        if self.encoder.positions.kind == "sinusoidal":  # neighbour heads see several positions
            raise ValueError("copy_heads does not support sinusoidal positions; set encoder.positions.kind=learned")
        if self.ngram:
            raise ValueError("copy_heads does not support prediction streams (ngram); remove one of them")

    @property
    def stacks(self) -> tuple[StackConfig, StackConfig]:
        return self.encoder, self.decoder

    @property
    def vocab_size(self) -> int:
        return self.encoder.vocab_size

    @property
    def pad_token_id(self) -> int:
        return self.encoder.pad_token_id

    @property
    def embedding_size(self) -> int:
        return self.encoder.embedding_size

    @property
    def type_vocab_size(self) -> int:
        return self.encoder.type_vocab_size

    @property
    def hidden_size(self) -> int:
        return self.decoder.hidden_size

    @property
    def initializer_range(self) -> float:
        return self.decoder.initializer_range

    @property
    def max_position_embeddings(self) -> int:
        """Maximum sequence length of the encoder."""
        return self.encoder.max_position_embeddings

    @property
    def num_hidden_layers(self) -> int:
        """Number of layers of both stacks."""
        return self.encoder.num_hidden_layers + self.decoder.num_hidden_layers

    @property
    def own_layers(self) -> int:
        """Number of layers with their own weights in both stacks."""
        return self.encoder.own_layers + self.decoder.own_layers

    @property
    def attention(self) -> AttentionConfig | AdditiveAttentionConfig | NoAttentionConfig:
        return self.encoder.attention

    @property
    def positions(self) -> PositionsConfig:
        return self.encoder.positions

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

    def check_length(self, length: int, target_length: int) -> None:
        """Raise `UserError` for rows longer than the encoder or targets longer than the decoder."""
        check_row_length(length, self.max_position_embeddings)
        limit = self.decoder.max_position_embeddings
        if target_length > limit:
            raise UserError(
                f"data.max_length={length} gives targets of up to {target_length} tokens, more than the decoder's "
                f"max_position_embeddings={limit}; decrease data.max_length or set "
                f"model.decoder.max_position_embeddings={target_length}"
            )

    def with_seed(self, seed: int) -> EncoderDecoderConfig:
        """Return a copy with this seed in both stacks, unless the encoder sets one."""
        encoder = self.encoder.with_seed(seed)
        if encoder is self.encoder:
            return self
        return self.model_copy(update={"encoder": encoder, "decoder": self.decoder.model_copy(update={"seed": seed})})

    def with_tokens(self, vocab_size: int, pad_token_id: int) -> EncoderDecoderConfig:
        """Return a copy for another vocabulary."""
        stacks = {name: getattr(self, name).with_tokens(vocab_size, pad_token_id) for name in ("encoder", "decoder")}
        return self.model_copy(update=stacks)

    def build(self) -> EncoderDecoder:
        """Build both stacks.

        Raises:
            UserError: invalid settings of a stack, or a token that is not in the vocabulary.
        """
        encoder = self.encoder.build()
        if self.learned_padding:
            encoder.embeddings.words.padding_idx = None
        check_vocabulary(self.vocab_size, **{name: getattr(self, name) for name in NAMED_TOKENS})
        embeddings = self.decoder.build_embeddings(words=encoder.embeddings.words)
        decoder = self.decoder.build(embeddings, source_size=encoder.hidden_size)
        model = EncoderDecoder(
            encoder, decoder, decoder_start_token_id=self.decoder_start_token_id, predicting=self._predicting()
        )
        if self.copy_heads:
            initialise_copy_heads(model)
        return model

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
