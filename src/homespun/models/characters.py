"""Words as their characters: filters of several widths over them, the highest value of each, highways, a projection.

It stands where a stack has its embeddings, and is given ids as they are: the characters of each id are in a table that
is made of the tokenizer's words (`fill_character_table`), and kept with the weights.
"""

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
from homespun.nn.elementwise import Dropout
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
