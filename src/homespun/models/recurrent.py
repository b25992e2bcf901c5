"""Config of a recurrent stack: RNN, LSTM or GRU in one or both directions, as model, encoder or decoder."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from torch import nn

from homespun.attention.additive import AlignedLayer
from homespun.attention.multi_head import AttentionSettings
from homespun.models.backbone import Encoder
from homespun.models.embeddings import CharacterEmbeddings, CharactersConfig, Embeddings
from homespun.models.encoder import StackSettings, check_row_length, check_vocabulary, initialise, shared_modules
from homespun.models.layer_parts import NoPositionsConfig
from homespun.nn.layers import SequentialStack
from homespun.nn.positions import NoPositions
from homespun.nn.recurrent import STATES, Bridge, IndependentDirections, RecurrentLayer


class AdditiveAttentionConfig(AttentionSettings):
    """Config of additive attention of the first decoder layer to the source (Bahdanau et al. 2015)."""

    kind: Literal["additive"] = "additive"
    is_positional: ClassVar[bool] = True


class NoAttentionConfig(AttentionSettings):
    """Config without attention: the initial decoder state encodes the source (Sutskever et al. 2014)."""

    kind: Literal["none"] = "none"
    is_positional: ClassVar[bool] = True


class RecurrentConfig(StackSettings):
    """Config of a stack of recurrent layers.

    A stack of one direction is causal, a stack of both directions is an encoder. ``independent_directions`` and
    ``characters`` give ELMo's language models (Peters et al. 2018; `homespun.models.elmo`). A decoder starts from the
    first and last hidden states of its source. The state is reset at each packed document.
    """

    kind: Literal["recurrent"] = "recurrent"
    is_recurrent: ClassVar[Literal[True]] = True
    needs_padding_token: ClassVar[bool] = False  # padding is never read
    mlp_bias: ClassVar[bool] = True
    norm_has_bias: ClassVar[bool] = True
    hidden_act: ClassVar[str] = "gelu"
    num_attention_heads: ClassVar[int] = 1
    seed: ClassVar[int] = 0
    positions: ClassVar[NoPositionsConfig] = NoPositionsConfig()
    cell: Literal["rnn", "lstm", "gru"] = Field(default="lstm", description="rnn: Elman network with tanh")
    hidden_size: int = Field(
        default=256, ge=1, description="width of a layer's output, half of it for each of two directions"
    )
    embedding_size: int = Field(
        default=0, ge=0, description="width of the embeddings; 0: hidden_size, or the width of an independent direction"
    )
    characters: CharactersConfig | None = Field(
        default=None, description="word vectors from characters; null: an embedding of each word"
    )
    num_hidden_layers: int = Field(default=2, ge=1)
    bidirectional: bool = Field(default=False, description="read in both directions (encoder)")
    independent_directions: bool = Field(
        default=False,
        description="directions are independent through all layers, with residual connections after the first (ELMo)",
    )
    cell_size: int = Field(
        default=0, ge=0, description="width of an LSTM's memory, projected to the output; 0: no projection"
    )
    attention: Annotated[AdditiveAttentionConfig | NoAttentionConfig, Field(discriminator="kind")] = Field(
        default=AdditiveAttentionConfig(), description="attention of a decoder to its source"
    )
    hidden_dropout_prob: float = Field(
        default=0.1, ge=0, lt=1, description="dropout of embeddings and layer outputs, not of states"
    )
    type_vocab_size: int = Field(default=0, ge=0, description="segments; 0: none")
    max_position_embeddings: int = Field(
        default=65_536, ge=1, description="maximum sequence length; layers have no limit"
    )
    initializer_range: float = Field(
        default=0.05,
        gt=0,
        description="standard deviation of the embeddings; recurrent weights are initialised by width",
    )
    layer_norm_eps: float = Field(default=1e-12, gt=0, description="epsilon of norms in heads")

    @model_validator(mode="after")
    def _check_sizes(self) -> RecurrentConfig:
        if self.bidirectional and self.hidden_size % 2:
            raise ValueError(f"hidden_size={self.hidden_size} must be even for two directions")
        if self.independent_directions and not self.bidirectional:
            raise ValueError("independent_directions=true needs two directions; set bidirectional=true")
        if self.cell_size and self.cell != "lstm":
            raise ValueError(f"cell_size={self.cell_size} needs cell=lstm, not {self.cell}; remove it")
        if 0 < self.cell_size <= self._width:
            raise ValueError(
                f"cell_size={self.cell_size} must be greater than the width {self._width} of a direction of "
                f"hidden_size={self.hidden_size}, or 0"
            )
        if self.characters is not None and self.type_vocab_size:
            raise ValueError(f"characters does not support type_vocab_size={self.type_vocab_size}; remove it")
        return self

    @property
    def _width(self) -> int:
        """Width of a direction."""
        return self.hidden_size // (1 + self.bidirectional)

    @property
    def of_one_stack(self) -> str:
        """Name of a given field that encoder-decoders do not support; empty: none."""
        return next((name for name in ("characters", "independent_directions", "cell_size") if getattr(self, name)), "")

    @property
    def causal(self) -> bool:
        return not self.bidirectional

    @property
    def has_word_embeddings(self) -> bool:
        return self.characters is None

    def causal_setting(self, causal: bool) -> str:
        """Return the setting that makes a model causal or bidirectional, for error messages."""
        return f"model.bidirectional={str(not causal).lower()}"

    @property
    def own_layers(self) -> int:
        return self.num_hidden_layers

    def check_length(self, length: int, target_length: int) -> None:
        """Raise `UserError` for rows longer than the model."""
        check_row_length(length, self.max_position_embeddings)

    def with_seed(self, seed: int) -> RecurrentConfig:
        """Return the config itself, which has no seed."""
        return self

    def build_embeddings(self, *, words: nn.Embedding | None = None) -> Embeddings | CharacterEmbeddings:
        """Build the embeddings; ``words`` are word embeddings of another stack to share."""
        size = self.embedding_size or (self._width if self.independent_directions else self.hidden_size)
        if self.characters is not None:
            return self.characters.build(
                self.vocab_size,
                size,
                dropout=self.hidden_dropout_prob,
                max_position_embeddings=self.max_position_embeddings,
            )
        return Embeddings(
            self.vocab_size,
            size,
            positions=NoPositions(self.max_position_embeddings),
            norm=nn.Identity(),
            type_vocab_size=self.type_vocab_size,
            dropout=self.hidden_dropout_prob,
            pad_token_id=self.pad_token_id,
            words=words,
        )

    def build(self, embeddings: Embeddings | CharacterEmbeddings | None = None, *, source_size: int = 0) -> Encoder:
        """Build the stack; embeddings are normal, recurrent weights uniform within ``1 / sqrt(width)``.

        Args:
            embeddings: embeddings of another model to share.
            source_size: width of the encoder's hidden states for a decoder; 0: no source.

        Raises:
            UserError: the vocabulary is empty or does not contain the padding token.
        """
        check_vocabulary(self.vocab_size, pad_token_id=self.pad_token_id)
        shared = shared_modules(embeddings, source_size)
        embeddings = self.build_embeddings() if embeddings is None else embeddings
        layers = [
            self._layer(number, embeddings.embedding_size, source_size) for number in range(self.num_hidden_layers)
        ]
        stack = Encoder(
            embeddings,
            layers,
            input_size=embeddings.embedding_size,
            layer_stack=SequentialStack(copies=2 if self.independent_directions else 1),
            final_norm=nn.Identity(),
            layer_norm_eps=self.layer_norm_eps,
            causal=self.causal,
        )
        stack.hidden_size = self.hidden_size  # changed by the first layer
        if self.characters is None:  # characters are initialised by width
            initialise((m for m in stack.embeddings.modules() if m not in shared), self.initializer_range)
        return stack

    def _layer(self, number: int, embedding_size: int, source_size: int) -> nn.Module:
        size, dropout = self.hidden_size, self.hidden_dropout_prob
        width = size if number else embedding_size
        if source_size and self.attention.kind == "additive" and not number:
            return AlignedLayer(width, size, source_size, cell=self.cell, dropout=dropout)
        bridge = Bridge(source_size, size, states=STATES[self.cell]) if source_size else None
        if self.independent_directions:
            half = self._width if number else embedding_size
            forwards, backwards = (self._network(half, self._width, dropout=0.0, bidirectional=False) for _ in range(2))
            return IndependentDirections(forwards, backwards, residual=number > 0, dropout=dropout)
        return self._network(width, size, dropout=dropout, bidirectional=self.bidirectional, bridge=bridge)

    def _network(
        self, input_size: int, size: int, *, dropout: float, bidirectional: bool, bridge: Bridge | None = None
    ) -> RecurrentLayer:
        layer = RecurrentLayer(
            input_size,
            size,
            cell=self.cell,
            bidirectional=bidirectional,
            dropout=dropout,
            bridge=bridge,
            cell_size=self.cell_size,
        )
        for name, parameter in layer.network.named_parameters():
            if self.cell == "lstm" and name.startswith("bias_ih"):  # gates: input, forget, cell, output
                nn.init.constant_(parameter[len(parameter) // 4 : len(parameter) // 2], _FORGET_BIAS)
        return layer


_FORGET_BIAS = 1.0  # Jozefowicz et al. 2015, section 2.3
