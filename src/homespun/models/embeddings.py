"""Embeddings of token ids: word embeddings or character convolutions, positions and segments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.config import Config
from homespun.errors import UserError
from homespun.nn.layers import Dropout
from homespun.nn.positions import NoPositions
from homespun.text.tokenizer import Tokenizer

# character ids: padding, bytes of UTF-8 plus 1, marks
NOTHING, BEGIN, END, SPECIAL = 0, 257, 258, 259
_NUM_CHARACTERS = 260
_INIT_RANGE = 1.0  # range of character embeddings in the authors' code

Width = Annotated[int, Field(ge=1, description="width of a filter in characters")]
Count = Annotated[int, Field(ge=1, description="number of filters of this width")]


class CharactersConfig(Config):
    """Word vectors from characters, with the defaults of Peters et al. 2018.

    Characters are bytes of UTF-8, with marks at the beginning and end of each word.
    """

    embedding_size: int = Field(default=16, ge=1, description="width of a character embedding")
    max_word_length: int = Field(default=50, ge=3, description="maximum characters of a word, with marks")
    filters: tuple[tuple[Width, Count], ...] = Field(
        default=((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024)),
        min_length=1,
        description="width and number of filters",
    )
    num_highway_layers: int = Field(default=2, ge=0)

    @model_validator(mode="after")
    def _check_filters(self) -> CharactersConfig:
        widest = max(width for width, _ in self.filters)
        if widest > self.max_word_length:
            raise ValueError(
                f"filters of width {widest} must be at most max_word_length={self.max_word_length}; change one of them"
            )
        return self

    def build(self, vocab_size: int, size: int, *, dropout: float, max_position_embeddings: int) -> CharacterEmbeddings:
        """Build embeddings of width ``size``."""
        return CharacterEmbeddings(
            vocab_size,
            size,
            character_size=self.embedding_size,
            longest=self.max_word_length,
            filters=self.filters,
            highways=self.num_highway_layers,
            dropout=dropout,
            max_position_embeddings=max_position_embeddings,
        )


class CharacterEmbeddings(nn.Module):
    """Word vectors from characters: convolutions, max pooling, highways, projection (Peters et al. 2018).

    Same interface as `Embeddings`. The characters of each token id are in a table (`fill_character_table`), which is
    part of the state dict. Each distinct word of a batch is computed once.

    Args:
        vocab_size: number of words.
        embedding_size: width of a word vector.
        character_size: width of a character embedding.
        longest: maximum characters of a word, with marks.
        filters: (width, count) pairs.
        highways: number of `Highway` layers.
        dropout: dropout of the word vectors.
        max_position_embeddings: maximum sequence length.

    Attributes:
        characters: (vocab, longest) int16 characters of each word; before `fill_character_table`, those of its id.
    """

    characters: Tensor

    def __init__(
        self,
        vocab_size: int,
        embedding_size: int,
        *,
        character_size: int,
        longest: int,
        filters: Sequence[tuple[int, int]],
        highways: int,
        dropout: float,
        max_position_embeddings: int,
    ) -> None:
        super().__init__()
        self.vocab_size, self.embedding_size = vocab_size, embedding_size
        numbers = [_character_ids(str(number)) for number in range(vocab_size)]
        self.register_buffer("characters", torch.from_numpy(_table(numbers, longest)))
        self.table = nn.Embedding(_NUM_CHARACTERS, character_size, padding_idx=NOTHING)
        self.filters = nn.ModuleList([nn.Conv1d(character_size, count, width) for width, count in filters])
        features = sum(count for _, count in filters)
        self.highways = nn.Sequential(*[Highway(features) for _ in range(highways)])
        self.projection = nn.Linear(features, embedding_size)
        self.positions = NoPositions(max_position_embeddings)
        self.norm = nn.Identity()
        self.dropout = Dropout(dropout)
        self.late: nn.Module | None = None
        self.segments: nn.Embedding | None = None
        nn.init.uniform_(self.table.weight, -_INIT_RANGE, _INIT_RANGE)
        with torch.no_grad():
            self.table.weight[NOTHING] = 0.0
        nn.init.normal_(self.projection.weight, std=1 / math.sqrt(features))
        nn.init.zeros_(self.projection.bias)

    @property
    def words(self) -> nn.Embedding:
        """Raise `UserError`, since a tied output has no embedding table."""
        raise UserError(
            "model.characters gives no embedding table for a tied output; use objective.kind=elmo or remove "
            "model.characters"
        )

    @property
    def max_position_embeddings(self) -> int:
        """Maximum sequence length."""
        return self.positions.max_position_embeddings

    def forward(
        self,
        input_ids: Tensor,
        *,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        start: int = 0,
    ) -> Tensor:
        """Map (batch, seq) ids to (batch, seq, embedding); segments and positions have no effect."""
        zero = self.positions(position_ids, start + input_ids.shape[1])
        if torch.compiler.is_compiling():  # shapes must not depend on the words
            vectors = self.of_words(self.characters[input_ids.flatten()]).view(*input_ids.shape, -1)
        else:
            ids, positions = torch.unique(input_ids, return_inverse=True)
            characters = self.characters[ids]
            longest = max(
                int((characters != NOTHING).sum(1).amax()), *(conv.kernel_size[0] for conv in self._filters())
            )
            vectors = F.embedding(positions, self.of_words(characters[:, :longest]))
        return self.dropout(self.norm(vectors + zero))

    def of_words(self, characters: Tensor) -> Tensor:
        """Map (words, longest) characters, 0 after the end of a word, to (words, embedding)."""
        lengths = (characters != NOTHING).sum(1, keepdim=True)  # (words, 1)
        vectors = self.table(characters.int()).transpose(1, 2)  # (words, character, longest)
        maxima = []
        for conv in self._filters():
            outputs = conv(vectors)  # (words, count, begins)
            begins = torch.arange(outputs.shape[-1], device=outputs.device)
            inside = begins <= (lengths - conv.kernel_size[0]).clamp(min=0)
            maxima.append(outputs.masked_fill(~inside[:, None], -torch.inf).amax(-1))
        features = self.highways(torch.cat(maxima, dim=-1).relu())
        return self.projection(features)

    def _filters(self) -> list[nn.Conv1d]:
        return [conv for conv in self.filters if isinstance(conv, nn.Conv1d)]

    @torch.no_grad()
    def fill_character_table(self, tokenizer: Tokenizer) -> None:
        """Fill the table with the words of ``tokenizer``.

        Raises:
            UserError: tokens are not words.
        """
        if tokenizer.kind != "words":
            raise UserError(
                f"model.characters needs a tokenizer of words, not of kind {tokenizer.kind}; train one with `homespun "
                f"tokenizer train --kind words`"
            )
        marks = ((SPECIAL,) if special else () for special in tokenizer.special_mask.tolist())
        words = [_character_ids(name, *mark) for name, mark in zip(tokenizer.tokens, marks, strict=True)]
        table = torch.from_numpy(_table(words, self.characters.shape[1]))
        self.characters[: len(table)] = table.to(self.characters.device)


def fill_character_table(module: nn.Module, tokenizer: Tokenizer) -> None:
    """Call `CharacterEmbeddings.fill_character_table` for every such module in ``module``."""
    for part in module.modules():
        if isinstance(part, CharacterEmbeddings):
            part.fill_character_table(tokenizer)


def _character_ids(word: str, *mark: int) -> list[int]:
    """Return the characters of a word between marks; ``mark`` is a further mark of special tokens."""
    return [BEGIN, *mark, *(byte + 1 for byte in word.encode("utf-8", "surrogatepass")), END]


def _table(words: Sequence[Sequence[int]], longest: int) -> NDArray[np.int16]:
    """Pad words to a (words, longest) table; longer words are truncated before the end mark."""
    table = np.full((len(words), longest), NOTHING, dtype=np.int16)
    for row, word in zip(table, words, strict=True):
        truncated = word if len(word) <= longest else [*word[: longest - 1], END]
        row[: len(truncated)] = truncated
    return table


_GATE_BIAS = -2.0  # initially most of the input is carried (Srivastava et al. 2015, section 3.1)


class Highway(nn.Module):
    """Highway layer ``g relu(W x + b) + (1 - g) x`` with ``g = sigmoid(V x + c)`` (Srivastava et al. 2015)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.transform, self.gate = nn.Linear(size, size), nn.Linear(size, size)
        for linear, bias in ((self.transform, 0.0), (self.gate, _GATE_BIAS)):
            nn.init.normal_(linear.weight, std=1 / math.sqrt(size))
            nn.init.constant_(linear.bias, bias)

    def forward(self, features: Tensor) -> Tensor:
        """Map (..., size) to (..., size)."""
        return torch.lerp(features, self.transform(features).relu(), self.gate(features).sigmoid())


class Embeddings(nn.Module):
    """Sum of word, position and segment embeddings, norm and dropout (BERT, Devlin et al. 2019, figure 2).

    Args:
        vocab_size: number of tokens.
        embedding_size: width; a projection to the layers belongs to the backbone.
        positions: a module of `homespun.nn.positions`.
        norm: norm of the sum, or identity.
        type_vocab_size: number of segments; 0: none.
        dropout: dropout of the sum.
        pad_token_id: token whose embedding is not trained.
        scale: multiply words by ``sqrt(embedding_size)`` (Vaswani et al. 2017, section 3.4).
        words: word embeddings of another stack, to share them.
        late: positions added by `Encoder.decode_masked`.
    """

    def __init__(
        self,
        vocab_size: int,
        embedding_size: int,
        *,
        positions: nn.Module,
        norm: nn.Module,
        type_vocab_size: int,
        dropout: float,
        pad_token_id: int | None = 0,
        scale: bool = False,
        words: nn.Embedding | None = None,
        late: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.embedding_size = embedding_size
        self.scale = math.sqrt(embedding_size) if scale else 1.0
        self.words = words or nn.Embedding(vocab_size, embedding_size, padding_idx=pad_token_id)
        self.positions = positions
        self.late = late
        self.segments = nn.Embedding(type_vocab_size, embedding_size) if type_vocab_size else None
        self.norm = norm
        self.dropout = Dropout(dropout)

    @property
    def vocab_size(self) -> int:
        """Number of tokens in the vocabulary."""
        return self.words.num_embeddings

    @property
    def max_position_embeddings(self) -> int:
        """Maximum sequence length."""
        longest = self.positions.max_position_embeddings
        assert isinstance(longest, int)
        return longest

    def forward(
        self,
        input_ids: Tensor,
        *,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        start: int = 0,
    ) -> Tensor:
        """Map (batch, seq) ids to (batch, seq, embedding); by default segment 0 and positions from ``start``."""
        length = start + input_ids.shape[1]
        if position_ids is None and start:
            position_ids = torch.arange(start, length, device=input_ids.device)[None]
        words = self.words(input_ids)
        if self.scale != 1.0:
            words = words * self.scale
        vectors = words + self.positions(position_ids, length)
        if self.segments is not None:
            if token_type_ids is None:
                vectors = vectors + self.segments.weight[0]
            else:
                vectors = vectors + self.segments(token_type_ids)
        return self.dropout(self.norm(vectors))


class NgramStreams(nn.Module):
    """Inputs of prediction streams: learned stream vector plus next position (Qi et al. 2020, section 3.2).

    At position ``t``, stream ``s`` predicts token ``t + 1`` from tokens up to ``t - s``; generation uses only the first
    stream. The attention is in `homespun.attention.ngram`. The last position uses its own embedding.

    Args:
        ngram: number of streams.
        embedding_size: width of the embeddings.
        max_position_embeddings: maximum sequence length.
    """

    def __init__(self, ngram: int, embedding_size: int, *, max_position_embeddings: int) -> None:
        super().__init__()
        self.ngram, self.last = ngram, max_position_embeddings - 1
        self.embedding = nn.Embedding(ngram, embedding_size)

    def forward(
        self, embeddings: Embeddings | CharacterEmbeddings, input_ids: Tensor, *, streams: int, start: int = 0
    ) -> Tensor:
        """Compute (batch, 1 + streams, seq, embedding) vectors, the main stream first.

        Args:
            embeddings: embeddings of the decoder.
            input_ids: (batch, seq).
            streams: number of prediction streams.
            start: position of the first token.
        """
        main = embeddings(input_ids, start=start)  # (batch, seq, embedding)
        length = input_ids.shape[1]
        next_ids = torch.arange(start + 1, start + length + 1, device=input_ids.device).clamp(max=self.last)
        positions = embeddings.positions(next_ids[None], length)  # (1, seq or 1, embedding or 1)
        predicting = embeddings.norm(self.embedding.weight[:streams, None] + positions)  # (streams, seq or 1, ...)
        predicting = embeddings.dropout(predicting.expand(len(main), -1, length, -1))
        return torch.cat([main[:, None], predicting], 1)
