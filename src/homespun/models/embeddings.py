"""Embeddings of token ids: tables of words or convolutions over characters, positions and segments."""

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

# what a character is numbered as: nothing, a byte of UTF-8 and 1, marks
NOTHING, BEGIN, END, SPECIAL = 0, 257, 258, 259
_NUMBERS = 260
_DRAWN = 1.0  # characters are drawn from -1 to 1, as in the authors' code

Width = Annotated[int, Field(ge=1, description="characters that a filter sees at once")]
Count = Annotated[int, Field(ge=1, description="filters of this width")]


class CharactersConfig(Config):
    """Word vectors from characters; defaults of Peters et al. 2018.

    Characters are bytes of UTF-8, with marks at the beginning and the end of each word.
    """

    embedding_size: int = Field(default=16, ge=1, description="width of a character")
    max_word_length: int = Field(default=50, ge=3, description="characters of a word, marks included; the rest is cut")
    filters: tuple[tuple[Width, Count], ...] = Field(
        default=((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024)),
        min_length=1,
        description="widths of the filters and how many there are of each",
    )
    num_highway_layers: int = Field(default=2, ge=0)

    @model_validator(mode="after")
    def _fits(self) -> CharactersConfig:
        widest = max(width for width, _ in self.filters)
        if widest > self.max_word_length:
            raise ValueError(
                f"a filter of {widest} characters is wider than a word of max_word_length={self.max_word_length}"
            )
        return self

    def build(self, vocab_size: int, size: int, *, dropout: float, max_position_embeddings: int) -> CharacterEmbeddings:
        """The module for words of ``size``."""
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
    """Vectors of words from their characters, in the place of `homespun.models.embeddings.Embeddings`.

    A word is as long as it is: what a filter sees of it ends with its end mark, and a word shorter than the filter is
    filled up with nothing. Each word of a batch is computed once, however often it is there.

    Args:
        vocab_size: words.
        embedding_size: width of a word.
        character_size: width of a character.
        longest: characters of a word that are read, its marks included.
        filters: (width, count) of each kind.
        highways: `Highway` layers over all filters.
        dropout: of the words' vectors.
        max_position_embeddings: the longest sequence.

    Attributes:
        characters: (vocab, longest) int16, what each word is made of. Until `fill_character_table` gave it
            words, an id is spelled by its number.
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
        self.table = nn.Embedding(_NUMBERS, character_size, padding_idx=NOTHING)
        self.filters = nn.ModuleList([nn.Conv1d(character_size, count, width) for width, count in filters])
        features = sum(count for _, count in filters)
        self.highways = nn.Sequential(*[Highway(features) for _ in range(highways)])
        self.projection = nn.Linear(features, embedding_size)
        self.positions = NoPositions(max_position_embeddings)
        self.norm = nn.Identity()
        self.dropout = Dropout(dropout)
        self.late: nn.Module | None = None
        self.segments: nn.Embedding | None = None
        nn.init.uniform_(self.table.weight, -_DRAWN, _DRAWN)
        with torch.no_grad():
            self.table.weight[NOTHING] = 0.0
        nn.init.normal_(self.projection.weight, std=1 / math.sqrt(features))
        nn.init.zeros_(self.projection.bias)

    @property
    def words(self) -> nn.Embedding:
        """Refuse: there is no embedding table to tie an output to.

        Raises:
            UserError: always.
        """
        raise UserError(
            "the words of this model are made of their characters, so it has no table of them to tell words by; take "
            "objective.kind=elmo, which has its own, or leave model.characters out"
        )

    @property
    def max_position_embeddings(self) -> int:
        """The longest sequence."""
        return self.positions.max_position_embeddings

    def forward(
        self,
        input_ids: Tensor,
        *,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        start: int = 0,
    ) -> Tensor:
        """(batch, seq) ids -> (batch, seq, embedding). There are no segments, and places are not told."""
        nothing = self.positions(position_ids, start + input_ids.shape[1])
        if torch.compiler.is_compiling():  # where shapes must not depend on which words there are
            vectors = self.of_words(self.characters[input_ids.flatten()]).view(*input_ids.shape, -1)
        else:
            ids, positions = torch.unique(input_ids, return_inverse=True)
            spelled = self.characters[ids]
            most = max(int((spelled != NOTHING).sum(1).amax()), *(conv.kernel_size[0] for conv in self._filters()))
            vectors = F.embedding(positions, self.of_words(spelled[:, :most]))
        result: Tensor = self.dropout(self.norm(vectors + nothing))
        return result

    def of_words(self, characters: Tensor) -> Tensor:
        """(words, longest) numbers of characters, 0 after the end of each -> (words, embedding)."""
        lengths = (characters != NOTHING).sum(1, keepdim=True)  # (words, 1)
        letters = self.table(characters.int()).transpose(1, 2)  # (words, character, longest)
        found = []
        for conv in self._filters():
            seen = conv(letters)  # (words, count, begins)
            begins = torch.arange(seen.shape[-1], device=seen.device)
            inside = begins <= (lengths - conv.kernel_size[0]).clamp(min=0)
            found.append(seen.masked_fill(~inside[:, None], -torch.inf).amax(-1))
        features = self.highways(torch.cat(found, dim=-1).relu())
        vectors: Tensor = self.projection(features)
        return vectors

    def _filters(self) -> list[nn.Conv1d]:
        return [conv for conv in self.filters if isinstance(conv, nn.Conv1d)]

    @torch.no_grad()
    def fill_character_table(self, tokenizer: Tokenizer) -> None:
        """Fill the table with the words of ``tokenizer``, whose ids are those of the model.

        Raises:
            UserError: its tokens are pieces of words.
        """
        if tokenizer.kind != "words":
            raise UserError(
                f"words are made of their characters here, and this tokenizer is of kind {tokenizer.kind}, whose "
                f"tokens are pieces of words; train one with `homespun tokenizer train --kind words`"
            )
        marks = ((SPECIAL,) if special else () for special in tokenizer.special_mask.tolist())
        words = [_character_ids(name, *mark) for name, mark in zip(tokenizer.tokens, marks, strict=True)]
        made = torch.from_numpy(_table(words, self.characters.shape[1]))
        self.characters[: len(made)] = made.to(self.characters.device)


def fill_character_table(module: nn.Module, tokenizer: Tokenizer) -> None:
    """Give every `CharacterEmbeddings` in ``module`` the words of ``tokenizer``.

    Raises:
        UserError: its tokens are pieces of words.
    """
    for part in module.modules():
        if isinstance(part, CharacterEmbeddings):
            part.fill_character_table(tokenizer)


def _character_ids(word: str, *mark: int) -> list[int]:
    """The characters of a word between its marks; what a text could not have written has a mark of its own."""
    return [BEGIN, *mark, *(byte + 1 for byte in word.encode("utf-8", "surrogatepass")), END]


def _table(words: Sequence[Sequence[int]], longest: int) -> NDArray[np.int16]:
    """(words, longest), nothing behind the end of each; one that is too long is cut before its end mark."""
    table = np.full((len(words), longest), NOTHING, dtype=np.int16)
    for row, word in zip(table, words, strict=True):
        kept = word if len(word) <= longest else [*word[: longest - 1], END]
        row[: len(kept)] = kept
    return table


_CARRIED = -2.0  # of the gate's bias: at first most goes on as it came in (Srivastava et al. 2015, section 3.1)


class Highway(nn.Module):
    """``g relu(W x + b) + (1 - g) x`` with ``g = sigmoid(V x + c)`` (Srivastava et al. 2015)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.transform, self.gate = nn.Linear(size, size), nn.Linear(size, size)
        for linear, bias in ((self.transform, 0.0), (self.gate, _CARRIED)):
            nn.init.normal_(linear.weight, std=1 / math.sqrt(size))
            nn.init.constant_(linear.bias, bias)

    def forward(self, features: Tensor) -> Tensor:
        """(..., size) -> (..., size)."""
        return torch.lerp(features, self.transform(features).relu(), self.gate(features).sigmoid())


class Embeddings(nn.Module):
    """BERT's embeddings (Devlin et al. 2019, figure 2), with any `homespun.nn.positions`.

    A projection of factorised embeddings belongs to the backbone, so that ELECTRA's two models can share all of this.

    Args:
        type_vocab_size: segments; 0: none.
        norm: identity for embeddings that are not normalised.
        scale: multiply words by ``sqrt(embedding_size)`` (Vaswani et al. 2017, section 3.4).
        words: those of another stack, whose decoder this is.
        late: positions that `Encoder.decode_masked` adds.
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
        """The longest sequence."""
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
        """(batch, seq) ids -> (batch, seq, embedding). Segments are 0 by default; positions count from ``start``."""
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
        result: Tensor = self.dropout(self.norm(vectors))
        return result


class NgramStreams(nn.Module):
    """Prediction streams of a decoder, each a learned vector plus the position to predict (Qi et al. 2020, section
    3.2).

    Stream ``s`` predicts, at position ``t``, the token of ``t + 1`` from those up to ``t - s``; the first is an
    ordinary decoder's, and the only one in decoding. `homespun.attention.ngram` has their masks. The last position has
    none after it: there the streams take its own.

    Args:
        ngram: number of streams.
        embedding_size: width of the embeddings.
        max_position_embeddings: longest input.
    """

    def __init__(self, ngram: int, embedding_size: int, *, max_position_embeddings: int) -> None:
        super().__init__()
        self.ngram, self.last = ngram, max_position_embeddings - 1
        self.embedding = nn.Embedding(ngram, embedding_size)

    def forward(
        self, embeddings: Embeddings | CharacterEmbeddings, input_ids: Tensor, *, streams: int, start: int = 0
    ) -> Tensor:
        """(batch, seq) ids -> (batch, 1 + streams, seq, embedding): the main stream, then the first of the others.

        ``embeddings`` are the decoder's; ``start`` is the position of the first token.
        """
        main = embeddings(input_ids, start=start)  # (batch, seq, embedding)
        length = input_ids.shape[1]
        next_ids = torch.arange(start + 1, start + length + 1, device=input_ids.device).clamp(max=self.last)
        positions = embeddings.positions(next_ids[None], length)  # (1, seq, embedding)
        predicting = embeddings.norm(self.embedding.weight[:streams, None] + positions)  # (streams, seq, embedding)
        predicting = embeddings.dropout(predicting.expand(len(main), -1, -1, -1))
        return torch.cat([main[:, None], predicting], 1)
