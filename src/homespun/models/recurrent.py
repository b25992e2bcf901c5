"""The config of a recurrent stack: RNN, LSTM, GRU, in one direction or in both; alone, or a side of two stacks."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator
from torch import nn

from homespun.attention.additive import AlignedLayer
from homespun.attention.multi_head import AttentionSettings
from homespun.config import Config
from homespun.models.backbone import Encoder
from homespun.models.embeddings import CharacterEmbeddings, CharactersConfig, Embeddings
from homespun.models.encoder import check_row_length, check_vocabulary, initialise, name_presets, with_preset
from homespun.models.generation.settings import SpecialTokens
from homespun.models.layer_parts import NoPositionsConfig
from homespun.nn.layers import SequentialStack
from homespun.nn.positions import NoPositions
from homespun.nn.recurrent import STATES, Bridge, DirectionStack, IndependentDirections, RecurrentLayer


class AdditiveAttentionConfig(AttentionSettings):
    """The first layer looks at the source before every token, through an alignment model (Bahdanau et al. 2015)."""

    kind: Literal["additive"] = "additive"
    is_positional: ClassVar[bool] = True


class NoAttentionConfig(AttentionSettings):
    """No attention: the first decoder state carries the source (Sutskever et al. 2014; Cho et al. 2014)."""

    kind: Literal["none"] = "none"
    is_positional: ClassVar[bool] = True


class RecurrentConfig(Config):
    """One stack of recurrent layers, the first of which reads the embeddings as wide as they are.

    In one direction it is causal, and a language model may stand on it; in both it is an encoder.
    ``independent_directions`` and ``characters`` make it ELMo's two language models (Peters et al. 2018): see
    `homespun.models.elmo`. As a decoder it
    begins from what its source's first and last vectors say, and ``attention`` is how it looks at the source besides.
    Documents that are packed into a row are kept apart: the state begins anew at each.
    """

    model_config = ConfigDict(json_schema_extra=name_presets)
    kind: Literal["recurrent"] = "recurrent"
    has_decoder: ClassVar[Literal[False]] = False
    is_recurrent: ClassVar[Literal[True]] = True
    mlp_bias: ClassVar[bool] = True
    norm_has_bias: ClassVar[bool] = True
    hidden_act: ClassVar[str] = "gelu"
    num_attention_heads: ClassVar[int] = 1
    seed: ClassVar[int] = 0
    positions: ClassVar[NoPositionsConfig] = NoPositionsConfig()
    cell: Literal["rnn", "lstm", "gru"] = Field(default="lstm", description="rnn: Elman's, with tanh")
    vocab_size: int = Field(default=0, ge=0, description="entries of the vocabulary; 0: as many as the tokenizer has")
    pad_token_id: int = Field(default=0, ge=0, description="set from the tokenizer in training")
    hidden_size: int = Field(default=256, ge=1, description="width of what a layer gives; of two directions half each")
    embedding_size: int = Field(
        default=0, ge=0, description="width of the embeddings; 0: hidden_size, or what a direction apart has of it"
    )
    characters: CharactersConfig | None = Field(
        default=None, description="words are made of their characters; not given: each has a vector of its own"
    )
    num_hidden_layers: int = Field(default=2, ge=1)
    bidirectional: bool = Field(default=False, description="read from the end too: an encoder, no language model")
    independent_directions: bool = Field(
        default=False,
        description="the two directions never read each other, through all layers; layers after the first add to what "
        "they read (ELMo)",
    )
    cell_size: int = Field(
        default=0, ge=0, description="width of an LSTM's memory, from which its output is projected; 0: as wide as that"
    )
    attention: Annotated[AdditiveAttentionConfig | NoAttentionConfig, Field(discriminator="kind")] = Field(
        default=AdditiveAttentionConfig(), description="of a decoder: how it looks at what is read"
    )
    hidden_dropout_prob: float = Field(
        default=0.1, ge=0, lt=1, description="after the embeddings and after each layer, never from token to token"
    )
    type_vocab_size: int = Field(default=0, ge=0, description="segments; 0: none")
    max_position_embeddings: int = Field(
        default=65_536, ge=1, description="longest text it is given; its layers have no limit, so raise it at will"
    )
    initializer_range: float = Field(default=0.05, gt=0, description="of the embeddings; networks are drawn by width")
    layer_norm_eps: float = Field(default=1e-12, gt=0, description="of heads that have a norm")

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, tree: object) -> object:
        return with_preset(tree)

    @model_validator(mode="after")
    def _halves(self) -> RecurrentConfig:
        if self.bidirectional and self.hidden_size % 2:
            raise ValueError(f"hidden_size={self.hidden_size} is for two directions, half each; give an even number")
        if self.independent_directions and not self.bidirectional:
            raise ValueError("independent_directions needs two directions; set bidirectional=true")
        if self.cell_size and self.cell != "lstm":
            raise ValueError(f"cell_size is of an LSTM's memory, and a cell of kind {self.cell} has none; leave it out")
        if 0 < self.cell_size <= self._width:
            raise ValueError(
                f"cell_size={self.cell_size} is projected to the {self._width} that a direction has of "
                f"hidden_size={self.hidden_size}; give more than that, or 0"
            )
        if self.characters is not None and self.type_vocab_size:
            raise ValueError("words that are made of their characters know of no segments; leave type_vocab_size out")
        return self

    @property
    def _width(self) -> int:
        """Of a direction."""
        return self.hidden_size // (1 + self.bidirectional)

    @property
    def of_one_stack(self) -> str:
        """A setting that it has and that no side of two stacks can have; empty: none."""
        found = [name for name in ("characters", "independent_directions", "cell_size") if getattr(self, name)]
        return found[0] if found else ""

    @property
    def causal(self) -> bool:
        """True if no token depends on a later one."""
        return not self.bidirectional

    @property
    def stacks(self) -> tuple[RecurrentConfig]:
        """Only stack; see `homespun.models.backbone.Backbone.stacks`."""
        return (self,)

    @property
    def has_word_embeddings(self) -> bool:
        """False if words are made of their characters."""
        return self.characters is None

    def causal_setting(self, causal: bool) -> str:
        """Setting that makes a new model causal or not, for messages."""
        return f"model.bidirectional={str(not causal).lower()}"

    @property
    def own_layers(self) -> int:
        """Layers with weights of their own: all."""
        return self.num_hidden_layers

    @property
    def special_tokens(self) -> SpecialTokens:
        """Special tokens of generation; the tokenizer defines the end of a text."""
        return SpecialTokens(pad_token_id=self.pad_token_id)

    @property
    def needs_padding_token(self) -> bool:
        """False: the recurrence stops at the end of a text."""
        return False

    def check_length(self, length: int, target_length: int) -> None:
        """Refuse rows that are longer than the model; see `check_row_length`."""
        check_row_length(length, self.max_position_embeddings)

    def with_seed(self, seed: int) -> RecurrentConfig:
        """The config itself: it draws nothing but weights."""
        return self

    def with_tokens(self, vocab_size: int, pad_token_id: int) -> RecurrentConfig:
        """The same for another vocabulary."""
        return self.model_copy(update={"vocab_size": vocab_size, "pad_token_id": pad_token_id})

    def build_embeddings(self, *, words: nn.Embedding | None = None) -> Embeddings | CharacterEmbeddings:
        """The embeddings alone. ``words``: those of another stack, to share them."""
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
        """The stack: embeddings normal with ``initializer_range``, networks uniform in ``1 / sqrt(width)``.

        Args:
            embeddings: those of another model, to share them.
            source_size: width of the vectors of what is read, for a decoder; 0: there are none.

        Raises:
            UserError: the vocabulary is empty, or the padding token is not in it.
        """
        check_vocabulary(self.vocab_size, pad_token_id=self.pad_token_id)
        given = embeddings
        embeddings = self.build_embeddings() if embeddings is None else embeddings
        layers = [
            self._layer(number, embeddings.embedding_size, source_size) for number in range(self.num_hidden_layers)
        ]
        stack = Encoder(
            embeddings,
            layers,
            input_size=embeddings.embedding_size,
            layer_stack=DirectionStack() if self.independent_directions else SequentialStack(),
            final_norm=nn.Identity(),
            layer_norm_eps=self.layer_norm_eps,
            causal=self.causal,
        )
        stack.hidden_size = self.hidden_size  # the first layer changes the width, so nothing has to before it
        shared = set() if given is None else {given.words} if source_size else set(given.modules())
        if self.characters is None:  # which draws by width, as the networks do
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
            onwards, back = (self._network(half, self._width, dropout=0.0, bidirectional=False) for _ in range(2))
            return IndependentDirections(onwards, back, residual=number > 0, dropout=dropout)
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
            if self.cell == "lstm" and name.startswith("bias_ih"):  # its gates come as input, forget, cell, output
                nn.init.constant_(parameter[len(parameter) // 4 : len(parameter) // 2], _REMEMBERING)
        return layer


_REMEMBERING = 1.0  # of the gate that forgets: at first nothing much is (Jozefowicz et al. 2015, section 2.3)
