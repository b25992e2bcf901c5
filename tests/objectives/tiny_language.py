"""A language of 24 words, each of which mostly says which comes next, and models small enough to learn it at once."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from homespun.batch import Batch, Loss, RowSeed
from homespun.data.rows import Row
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.models.recurrent import RecurrentConfig
from homespun.text.tokenizer import Tokenizer
from homespun.text.vocabulary_extension import with_sentinels

WORDS = [chr(letter) * 2 for letter in range(ord("a"), ord("a") + 24)]
UNIGRAM_ENTROPY = math.log(len(WORDS))  # all words are equally frequent
SURE = 0.95  # how often the next word is the one that usually follows


def tiny_tokenizer() -> Tokenizer:
    return with_sentinels(Tokenizer.train([" ".join(WORDS)], kind="words", vocab_size=5 + len(WORDS)), 7)


def tiny_model(tokenizer: Tokenizer, **fields: Any) -> ModelConfig:
    sizes: dict[str, Any] = {
        "vocab_size": tokenizer.vocab_size,
        "pad_token_id": tokenizer.pad_id,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 32,
        "hidden_dropout_prob": 0.0,
        "initializer_range": 0.1,  # so narrow a model is slow to leave its start from 0.02
    }
    return ModelConfig(backbone=EncoderConfig.model_validate(sizes | fields))


def tiny_recurrent(tokenizer: Tokenizer, **fields: Any) -> ModelConfig:
    tokens = {"vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.pad_id, "max_position_embeddings": 32}
    sizes = {"cell": "lstm", "hidden_size": 48, "hidden_dropout_prob": 0.0, "initializer_range": 0.3}
    return ModelConfig(backbone=RecurrentConfig.model_validate(tokens | sizes | fields))


def tiny_elmo(tokenizer: Tokenizer, **fields: Any) -> ModelConfig:
    """Two directions apart, over words of their two letters."""
    characters = {"max_word_length": 6, "embedding_size": 8, "filters": [[1, 12], [2, 20]]}
    directions = {"bidirectional": True, "independent_directions": True, "cell_size": 40, "characters": characters}
    return tiny_recurrent(tokenizer, **directions, **fields)


def tiny_writer(tokenizer: Tokenizer, *, ngram: int = 0, **fields: Any) -> ModelConfig:
    """An encoder with a decoder of the same sizes, and of so many streams."""
    stack = tiny_model(tokenizer, type_vocab_size=0, **fields).backbone
    return ModelConfig(backbone=EncoderDecoderConfig.model_validate({"encoder": stack, "ngram": ngram}))


def some_words(length: int, random: np.random.Generator) -> np.ndarray:
    """(length,) ids: a walk through the language; word ``i`` is mostly followed by word ``7 i + 5``."""
    ids = np.empty(length, dtype=np.int64)
    word = int(random.integers(24))
    for place in range(length):
        ids[place] = 5 + word
        word = (7 * word + 5) % 24 if random.random() < SURE else int(random.integers(24))
    return ids


def some_rows(tokenizer: Tokenizer, lengths: Sequence[int], *, seed: int = 1, packed: bool = False) -> list[Row]:
    """Rows of these many tokens: one document each, or two; with segments and a label where a pair is asked for."""
    random = np.random.default_rng(seed)
    rows = []
    for length in lengths:
        parts = [length // 3, length - length // 3] if packed and length >= 8 else [length]
        pieces = [
            np.concatenate([[tokenizer.cls_id], some_words(part - 2, random), [tokenizer.sep_id]]) for part in parts
        ]
        documents = np.repeat(np.arange(len(parts)), parts) if len(parts) > 1 else None
        rows.append(Row(np.concatenate(pieces), documents=documents))
    return rows


def some_pairs(tokenizer: Tokenizer, count: int, *, seed: int = 1) -> list[Row]:
    """[CLS] A [SEP] B [SEP]; with label 1 B holds one word only, which is as random as it gets."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        second = np.full(6, 5 + random.integers(24)) if number % 2 else some_words(6, random)
        ids = np.concatenate(
            [[tokenizer.cls_id], some_words(5, random), [tokenizer.sep_id], second, [tokenizer.sep_id]]
        )
        rows.append(Row(ids, token_type_ids=np.repeat([0, 1], [7, 7]), label=number % 2))
    return rows


def row_seeds(count: int, *, epoch: int = 0, first: int = 0) -> list[RowSeed]:
    return [RowSeed(1, epoch, first + index) for index in range(count)]


class TinyCorpus:
    """Documents of these many words, in sentences of five."""

    path = Path("tiny")
    has_sentences = True

    def __init__(self, tokenizer: Tokenizer, lengths: Sequence[int], *, seed: int = 1) -> None:
        random = np.random.default_rng(seed)
        self.tokenizer = tokenizer
        self.lengths = np.array(lengths)
        self.documents = [some_words(length, random) for length in lengths]

    def tokens(self, index: int) -> np.ndarray:
        return self.documents[index]

    def sentence_ends(self, index: int) -> np.ndarray:
        return np.append(np.arange(5, self.lengths[index], 5), self.lengths[index])


def rows_of(config: Any, tokenizer: Tokenizer, lengths: Sequence[int], *, seed: int = 1) -> list[Row]:
    """The rows that an objective makes of documents, the row of each of these many tokens, more or less."""
    corpus = TinyCorpus(tokenizer, [length - 2 for length in lengths], seed=seed)
    rows = config.rows(corpus, np.arange(len(lengths)), length=max(lengths), seed=1)
    return [rows[number] for number in range(len(rows))]


def batches(config: Any, tokenizer: Tokenizer) -> Iterator[Batch]:
    """Endless, of new text."""
    collate, step = config.collate(tokenizer), 0
    make = partial(rows_of, config) if config.target_length(24) else some_rows
    while True:
        yield collate(make(tokenizer, [24] * 16, seed=step), row_seeds(16, first=16 * step))
        step += 1


def means(loss: Loss) -> dict[str, float]:
    return {name: term.sum.item() / max(float(term.count), 1e-9) for name, term in loss.terms.items()}


def fit(objective: nn.Module, stream: Iterator[Batch], steps: int, *, learning_rate: float = 3e-3) -> dict[str, float]:
    """Each term's mean over the last twenty of ``steps`` steps."""
    optimizer = torch.optim.Adam(objective.parameters(), lr=learning_rate, fused=True)
    last: list[dict[str, float]] = []
    objective.train()
    for step in range(steps):
        batch = next(stream)
        loss = objective(batch)
        optimizer.zero_grad()
        loss.total(batch.targets).backward()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min((step + 1) / 20, (steps - step) / (steps / 2), 1.0)
        nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
        optimizer.step()
        if step >= steps - 20:
            last.append(means(loss))
    return {name: float(np.mean([values[name] for values in last])) for name in last[0]}
