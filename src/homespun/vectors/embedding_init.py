"""Word vectors as the embeddings that a model begins with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import nn

from homespun.errors import UserError
from homespun.models.embeddings import Embeddings
from homespun.text.tokenizer import Tokenizer
from homespun.vectors.word_vectors import WordVectors


@dataclass(frozen=True)
class EmbeddingCoverage:
    """How many tokens of a vocabulary, special ones left out, have a vector: by their very name, by the word they
    spell, or by its lower case. The others are as the model drew them."""

    source: str
    size: int
    tokens: int
    by_name: int
    by_word: int
    by_lower_case: int

    @property
    def found(self) -> int:
        return self.by_name + self.by_word + self.by_lower_case

    def summary(self) -> dict[str, int | str]:
        """``source``, ``size``, ``found`` and the counts: for a result."""
        return {"found": self.found, **asdict(self)}


def init_embeddings(model: nn.Module, tokenizer: Tokenizer, vectors: WordVectors, *, source: str) -> EmbeddingCoverage:
    """Put vectors into the rows of ``model``'s embeddings whose tokens have one, in all of its stacks.

    A token is looked up by its name in the vocabulary (vectors of ``words.unit=tokens``), then, where it begins a word,
    by the word that it spells. Pieces inside words have no vector but by name.

    Args:
        model: any module with `homespun.models.embeddings.Embeddings` in it; what is tied to them changes too.
        tokenizer: the model's.
        vectors: as wide as the embeddings.
        source: where the vectors come from, for errors.

    Raises:
        UserError: another width, no embeddings of tokens, or no token has a vector; nothing is changed.
    """
    tables = list({id(m.words): m.words for m in model.modules() if isinstance(m, Embeddings)}.values())
    if not tables:
        raise UserError(f"this model has no embeddings of tokens, into which the vectors of {source} could go")
    for table in tables:
        if table.embedding_dim != vectors.size:
            raise UserError(
                f"the vectors of {source} are {vectors.size} wide and the model's embeddings {table.embedding_dim}: "
                f"give model.embedding_size={vectors.size}, or vectors of that width"
            )
    tokens, rows, coverage = _match(tokenizer, vectors, source)
    if not len(tokens):
        raise UserError(
            f"none of the tokenizer's {coverage.tokens:,} tokens has a vector in {source}; train them on a corpus of "
            f"this tokenizer, with words.unit=tokens"
        )
    given = torch.from_numpy(vectors.vectors[rows])
    with torch.no_grad():
        for table in tables:
            table.weight[torch.from_numpy(tokens)] = given.to(table.weight)
    return coverage


def _match(tokenizer: Tokenizer, vectors: WordVectors, source: str) -> tuple[np.ndarray, np.ndarray, EmbeddingCoverage]:
    """Ids of tokens and the rows of their vectors."""
    special, names = tokenizer.special_mask, tokenizer.tokens
    ordinary = np.flatnonzero(~special)
    spelt = tokenizer.decode_batch([np.array([i]) for i in ordinary])
    begins = tokenizer.word_starts
    lookups: list[Callable[[int, str], str]] = [
        lambda i, word: names[i],
        lambda i, word: word if begins[i] else "",
        lambda i, word: word.lower() if begins[i] else "",
    ]
    tokens, rows, counts = [], [], [0, 0, 0]
    for i, text in zip(ordinary.tolist(), spelt, strict=True):
        word = text.strip()
        for number, name in enumerate(lookups):
            if name(i, word) in vectors:
                tokens.append(i)
                rows.append(vectors.row(name(i, word)))
                counts[number] += 1
                break
    return (
        np.array(tokens, np.int64),
        np.array(rows, np.int64),
        EmbeddingCoverage(source, vectors.size, len(ordinary), *counts),
    )
