"""Initialise the embeddings of a model with word vectors."""

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
    """Numbers of tokens with a vector, special tokens excluded; the others keep their random initialisation.

    Args:
        source: of the vectors.
        size: their dimensions.
        tokens: tokens of the vocabulary.
        by_name: found by their name in the vocabulary.
        by_word: found by the word that they spell.
        by_lower_case: found by that word in lower case.
    """

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
        """Fields and ``found``, for ``result.json``."""
        return {"found": self.found, **asdict(self)}


def word_tables(model: nn.Module) -> list[nn.Embedding]:
    """Return the word embeddings of all stacks of ``model``, shared ones once."""
    return list({id(m.words): m.words for m in model.modules() if isinstance(m, Embeddings)}.values())


def init_embeddings(model: nn.Module, tokenizer: Tokenizer, vectors: WordVectors, *, source: str) -> EmbeddingCoverage:
    """Copy word vectors to the word embeddings of all stacks of ``model``.

    A token is looked up by its name in the vocabulary (vectors of ``words.unit=tokens``), and, if it begins a word, by
    the word that it spells. Subwords inside words are found by name alone.

    Args:
        model: a module with `homespun.models.embeddings.Embeddings`; tied weights change too.
        tokenizer: of the model.
        vectors: of the size of the embeddings.
        source: of the vectors, for messages.

    Raises:
        UserError: another size, no embeddings, or no token with a vector; nothing is changed.
    """
    tables = word_tables(model)
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
    """Token ids, rows of their vectors, and the coverage."""
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
