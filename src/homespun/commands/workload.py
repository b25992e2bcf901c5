"""Rows, backbone and planner workload of a recipe: real rows, or made-up text without a corpus."""

from __future__ import annotations

import dataclasses
import itertools
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import nn

from homespun.batch import Batch, RowSeed
from homespun.commands.adaptation import Start
from homespun.commands.recipe import PretrainRecipe
from homespun.data.corpus import Corpus, build_corpus
from homespun.data.loader import Collate
from homespun.data.rows import Row, Rows, UnsegmentedRows
from homespun.errors import UserError
from homespun.models.bundle import ModelBundle
from homespun.models.config import BackboneConfig, ModelConfig
from homespun.planning.budget import DatasetSize
from homespun.planning.predict import Workload
from homespun.planning.tracer import StepTracer
from homespun.tasks.protocol import Task, TaskObjective, TaskRows, TrainingSetup
from homespun.text.sources import Document
from homespun.text.tokenizer import Tokenizer
from homespun.text.vocabulary_extension import with_sentinels
from homespun.training.config import TrainConfig


def with_backbone(recipe: PretrainRecipe, tokenizer: Tokenizer, start: Start | None) -> PretrainRecipe:
    """Copy of the recipe with the backbone that is trained: new or from a checkpoint, with the tokenizer's vocabulary.

    Raises:
        UserError: see `with_vocabulary`.
    """
    length = recipe.data.max_length
    backbone = with_vocabulary(
        recipe.backbone.with_seed(recipe.train.seed) if start is None else start.backbone,
        tokenizer,
        length,
        target_length=recipe.objective.target_length(length),
    )
    return recipe.model_copy(update={"model": backbone})


def model_config(recipe: PretrainRecipe, start: Start | None) -> ModelConfig:
    """Config to build the objective with: a new backbone without a head, or the checkpoint's model."""
    return ModelConfig(backbone=recipe.backbone) if start is None else start.config


def with_vocabulary(
    backbone: BackboneConfig, tokenizer: Tokenizer, length: int, *, target_length: int = 0
) -> BackboneConfig:
    """Config of the backbone with the tokenizer's vocabulary, checked for rows of ``length`` tokens.

    A vocabulary larger than the tokenizer's stays: released checkpoints are often padded to a round number.

    Args:
        backbone: config as given.
        tokenizer: tokenizer of the text.
        length: tokens in a row.
        target_length: most tokens that its decoder writes.

    Raises:
        UserError: rows longer than the model, a vocabulary smaller than the tokenizer's, or no padding token for a
            bidirectional model.
    """
    if backbone.needs_padding_token and "pad" not in tokenizer.roles:
        raise UserError(
            "the tokenizer names no padding, which a model that reads both ways needs; name one as pad_token in its "
            "tokenizer_config.json"
        )
    if 0 < backbone.vocab_size < tokenizer.vocab_size:
        raise UserError(
            f"model.vocab_size={backbone.vocab_size}, but the tokenizer has {tokenizer.vocab_size} tokens; leave it out"
        )
    backbone.check_length(length, target_length)
    size = max(backbone.vocab_size, tokenizer.vocab_size)
    return backbone.with_tokens(size, tokenizer.pad_id)


def mixes_documents(recipe: PretrainRecipe) -> bool:
    """Return True if tokens attend to other documents that are packed into their row."""
    return recipe.objective.packs and not recipe.backbone.attention.supports_packing


def pretraining_rows(recipe: PretrainRecipe, corpus: Corpus) -> tuple[Rows, Rows]:
    """Training and held-out rows, from different documents.

    Raises:
        UserError: less text than one row.
    """
    data, seed = recipe.data, recipe.train.seed
    training, held_out = corpus.split(data.validation, data.split_seed)
    tokens = int(corpus.lengths[training].sum())
    if tokens < data.max_length:
        raise UserError(
            f"{tokens:,} tokens to train on do not fill one row of data.max_length={data.max_length}; give more text"
        )
    rows = recipe.objective.rows(corpus, training, length=data.max_length, seed=seed)
    validation = recipe.objective.rows(corpus, held_out, length=data.max_length, seed=data.split_seed)
    if mixes_documents(recipe):
        rows, validation = UnsegmentedRows(rows), UnsegmentedRows(validation)
    return rows, FirstRows(validation, data.validation_rows)


class FirstRows:
    """The first ``count`` rows, or all where there are fewer."""

    def __init__(self, rows: Rows, count: int) -> None:
        self.rows = rows
        self.lengths: np.ndarray = rows.lengths[:count]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]


M = TypeVar("M", bound=nn.Module)

MADE_UP_VOCABULARY = 30_522  # BERT's, where the recipe has none of its own
_MADE_UP_TOKENS = 2**19
_SENTINELS = 100
_SENTENCE_LENGTH = 23  # words


@dataclass(frozen=True)
class Work:
    """Workload and its data.

    Args:
        workload: of one training: of several that with the most examples.
        dataset: training data of that training.
        row_tokens: mean length of its rows.
        shares: of the trainings that the recipe asks for, what each has of that.
        made_up: the text means nothing.
    """

    workload: Workload
    dataset: DatasetSize
    row_tokens: float
    shares: Sequence[float] = (1.0,)
    made_up: bool = False


def build_work(
    rows: Rows,
    collate: Collate,
    build: Callable[[], nn.Module],
    train: TrainConfig,
    *,
    sorted_: bool,
    lighter: str = "",
) -> Work:
    """Work of training on ``rows``.

    ``sorted_``: rows of like length come together, so that the longest are met in one micro-batch. ``lighter``: a
    setting that would take less memory.
    """

    def batches(size: int, count: int) -> list[Batch]:
        order = np.argsort(-rows.lengths, kind="stable") if sorted_ else np.arange(len(rows))
        # the heaviest first, then what is met as a rule
        starts = [0, *[(len(rows) - size) // 2 if sorted_ else size * number for number in range(1, count)]]
        return [
            _batch(rows, collate, train.seed, [int(order[(s + i) % len(rows)]) for i in range(size)]) for s in starts
        ]

    tokens = int(rows.lengths.sum())
    return Work(Workload(build, batches, train, lighter), DatasetSize(len(rows), tokens), tokens / len(rows))


def typical_batch(rows: Rows, collate: Collate, seed: int) -> Batch:
    """Batch of one row of median length."""
    return _batch(rows, collate, seed, [int(np.argsort(rows.lengths, kind="stable")[len(rows) // 2])])


def _batch(rows: Rows, collate: Collate, seed: int, numbers: list[int]) -> Batch:
    return collate([rows[number] for number in numbers], [RowSeed(seed, 0, number) for number in numbers])


def pretraining_work(recipe: PretrainRecipe, corpus: Corpus, start: Start | None) -> Work:
    """Work of a pretraining recipe on ``corpus``.

    Raises:
        UserError: the objective cannot be built.
    """
    recipe, tokenizer = with_backbone(recipe, corpus.tokenizer, start), corpus.tokenizer
    rows, _ = pretraining_rows(recipe, corpus)
    return build_work(
        rows,
        recipe.objective.collate(tokenizer),
        seeded(lambda: recipe.objective.build(model_config(recipe, start), tokenizer), seed=recipe.train.seed),
        recipe.train,
        sorted_=not recipe.objective.packs,
        lighter=recipe.objective.lighter,
    )


def finetuning_work(
    task: Task[object, TaskRows], objective: TaskObjective, stored: ModelBundle, training: TaskRows, train: TrainConfig
) -> Work:
    """Work of fine-tuning; its model is built, not copied, so that tracing takes no memory."""

    def setup() -> TrainingSetup:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # fake tensors have no address to copy
            return task.training_setup(objective, dataclasses.replace(stored, model=stored.config.build()), training)

    with StepTracer():
        first = setup()
    return build_work(first.rows, first.collate, lambda: setup().objective, train, sorted_=True)


@contextmanager
def made_up_corpus(recipe: PretrainRecipe) -> Iterator[Corpus]:
    """A corpus of the recipe's vocabulary and length, for as long as it is needed."""
    vocabulary = recipe.model.vocab_size or MADE_UP_VOCABULARY
    words = max(vocabulary - _SENTINELS, 16)
    tokenizer = with_sentinels(made_up_tokenizer(words), vocabulary - words)
    length = recipe.data.max_length
    count = min(2 * recipe.train.batch_size + 64, max(64, _MADE_UP_TOKENS // length))
    texts = itertools.islice(made_up_texts(words, tokens=length), count)
    with tempfile.TemporaryDirectory(prefix="homespun-plan-") as folder:
        yield build_corpus((Document(text) for text in texts), tokenizer, Path(folder) / "corpus", sentences=True)


def made_up_tokenizer(vocab_size: int) -> Tokenizer:
    """A tokenizer of ``vocab_size`` tokens, one for each word of `made_up_texts`."""
    words = (f"w{number}" for number in range(vocab_size))
    return Tokenizer.train([" ".join([".", *words])], kind="words", vocab_size=vocab_size, lowercase=True)


def made_up_texts(vocab_size: int, *, tokens: int, seed: int = 0) -> Iterator[str]:
    """Endless texts of ``tokens`` uniformly drawn words each, in sentences."""
    draw = random.Random(seed)
    highest = max(1, vocab_size - 8)
    while True:
        words = [f"w{draw.randrange(highest)}" for _ in range(tokens)]
        for end in range(_SENTENCE_LENGTH, tokens, _SENTENCE_LENGTH):
            words[end - 1] = "."
            words[end] = words[end].capitalize()
        yield " ".join(words).replace(" .", ".")


def seeded(build: Callable[[], M], *, seed: int) -> Callable[[], M]:
    """Return ``build`` with initial weights drawn from ``seed``."""

    def built() -> M:
        torch.manual_seed(seed)
        return build()

    return built
