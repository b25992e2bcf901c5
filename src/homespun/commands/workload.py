"""Rows, backbone and planner workload of a recipe, on its data or on random text."""

from __future__ import annotations

import dataclasses
import itertools
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from homespun.batch import Batch, RowSeed
from homespun.commands.adaptation import Start, open_start
from homespun.commands.recipe import PretrainRecipe
from homespun.data.corpus import Corpus
from homespun.data.corpus_build import build_corpus
from homespun.data.loader import Collate, Loader, Order
from homespun.data.rows import Rows, SubsetRows, UnsegmentedRows
from homespun.data.stream_rows import StreamRows, split_shards
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
from homespun.training.devices import DistributedContext, loader_workers


def open_data(
    recipe: PretrainRecipe,
    start_from: str | None,
    changes: Mapping[str, object] | None,
    generator: str | None = None,
) -> tuple[Corpus, Start | None]:
    """Open the corpus of a recipe, and the checkpoint to continue from with it; see `open_start`.

    Raises:
        UserError: there is no corpus, or the checkpoint does not fit it.
    """
    name = recipe.data.corpus
    if not name:
        raise UserError("data.corpus is missing; give data.corpus=FOLDER, made by `homespun corpus build`")
    corpus = Corpus.open(name)
    if start_from is None:
        return corpus, None
    return corpus, open_start(start_from, corpus.tokenizer, corpus=name, changes=changes, generator=generator)


def with_backbone(recipe: PretrainRecipe, tokenizer: Tokenizer, start: Start | None) -> PretrainRecipe:
    """Return a copy of the recipe with the backbone of the recipe or checkpoint, and the tokenizer's vocabulary.

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
    """Return the config to build the objective with: a new backbone without a head, or the checkpoint's model."""
    return ModelConfig(backbone=recipe.backbone) if start is None else start.config


def with_vocabulary(
    backbone: BackboneConfig, tokenizer: Tokenizer, length: int, *, target_length: int = 0
) -> BackboneConfig:
    """Set the vocabulary of a backbone to the tokenizer's, and check the length of rows.

    A vocabulary larger than the tokenizer's stays: released checkpoints are often padded to a round number. ``length``
    is the number of tokens per row, ``target_length`` the maximum of the decoder, 0 without one.

    Raises:
        UserError: the rows are longer than the model's maximum, the vocabulary is smaller than the tokenizer's, or a
            bidirectional model has no padding token.
    """
    if backbone.needs_padding_token and "pad" not in tokenizer.roles:
        raise UserError(
            "the tokenizer has no padding token, which a bidirectional model needs; set pad_token in its "
            "tokenizer_config.json"
        )
    if 0 < backbone.vocab_size < tokenizer.vocab_size:
        raise UserError(
            f"model.vocab_size={backbone.vocab_size} is less than the {tokenizer.vocab_size} tokens of the tokenizer; "
            f"leave it out"
        )
    backbone.check_length(length, target_length)
    size = max(backbone.vocab_size, tokenizer.vocab_size)
    return backbone.with_tokens(size, tokenizer.pad_id)


def mixes_documents(recipe: PretrainRecipe) -> bool:
    """Return True if tokens attend to other documents of a packed row."""
    return recipe.objective.packs and not recipe.backbone.attention.supports_packing


def pretraining_rows(recipe: PretrainRecipe, corpus: Corpus) -> tuple[Rows, Rows]:
    """Return training and held-out rows, of different documents.

    Raises:
        UserError: the training documents do not fill one row.
    """
    data, seed = recipe.data, recipe.train.seed
    if data.packing == "stream":
        shards = split_shards(corpus, data.validation, data.split_seed)
        return _unsegmented(recipe, *(StreamRows(corpus, side, length=data.max_length) for side in shards))
    training, held_out = corpus.split(data.validation, data.split_seed)
    tokens = corpus.count_tokens(training)
    if tokens < data.max_length:
        raise UserError(
            f"{tokens:,} training tokens do not fill one row of data.max_length={data.max_length}; give more text"
        )
    rows = recipe.objective.rows(corpus, training, length=data.max_length, seed=seed)
    validation = recipe.objective.rows(corpus, held_out, length=data.max_length, seed=data.split_seed)
    return _unsegmented(recipe, rows, validation)


def _unsegmented(recipe: PretrainRecipe, rows: Rows, validation: Rows) -> tuple[Rows, Rows]:
    if mixes_documents(recipe):
        rows, validation = UnsegmentedRows(rows), UnsegmentedRows(validation)
    return rows, SubsetRows(validation, np.arange(min(recipe.data.validation_rows, len(validation))))


MADE_UP_VOCABULARY = 30_522  # BERT's vocabulary size, for recipes without model.vocab_size
_MADE_UP_TOKENS = 2**19
_SENTINELS = 100
_SENTENCE_LENGTH = 23  # words


@dataclass(frozen=True)
class Work:
    """Workload of a training, and its data."""

    workload: Workload  # of several trainings, that with the most examples
    dataset: DatasetSize  # size of the training data
    row_tokens: float  # mean length of the rows
    shares: Sequence[float] = (1.0,)  # number of examples of each training of the recipe, relative to `dataset`
    made_up: bool = False  # the text is random


def build_work(
    rows: Rows,
    collate: Collate,
    build: Callable[[], nn.Module],
    train: TrainConfig,
    *,
    sorted_: bool,
    lighter: str = "",
) -> Work:
    """Make the work of a training.

    Args:
        rows: training rows.
        collate: rows to a batch.
        build: builds the objective.
        train: training settings.
        sorted_: batches have rows of similar length, so that one micro-batch may have the longest rows.
        lighter: setting that takes less memory, for errors.
    """

    def batches(size: int) -> tuple[Batch, Batch]:
        largest = np.arange(size) % len(rows)
        typical = (largest + ((len(rows) - size) // 2 if sorted_ else size)) % len(rows)
        if sorted_:
            order = np.argsort(-rows.lengths, kind="stable")
            largest, typical = order[largest], order[typical]
        return _batch(rows, collate, train.seed, largest.tolist()), _batch(rows, collate, train.seed, typical.tolist())

    tokens = round(rows.lengths.mean() * len(rows))
    return Work(Workload(build, batches, train, lighter), DatasetSize(len(rows), tokens), tokens / len(rows))


def training_loader(
    rows: Rows, collate: Collate, config: TrainConfig, context: DistributedContext, *, order: Order
) -> Loader:
    """Make the loader of the training rows of this process."""
    return Loader(
        rows,
        collate,
        batch_size=config.batch_size,
        micro_batch_size=config.micro_batch_size,
        seed=config.seed,
        rank=context.rank,
        world_size=context.world_size,
        order=order,
        workers=loader_workers(config.workers, context.device),
    )


def typical_batch(rows: Rows, collate: Collate, seed: int) -> Batch:
    """Return a batch of one row, of median length among the first million."""
    lengths = rows.lengths[:1_000_000]
    return _batch(rows, collate, seed, [int(np.argsort(lengths, kind="stable")[len(lengths) // 2])])


def _batch(rows: Rows, collate: Collate, seed: int, numbers: list[int]) -> Batch:
    return collate([rows[number] for number in numbers], [RowSeed(seed, 0, number) for number in numbers])


def pretraining_work(recipe: PretrainRecipe, corpus: Corpus, start: Start | None) -> Work:
    """Make the work of a pretraining recipe on ``corpus``.

    Raises:
        UserError: the objective cannot be built.
    """
    recipe, tokenizer = with_backbone(recipe, corpus.tokenizer, start), corpus.tokenizer
    rows, _ = pretraining_rows(recipe, corpus)

    def build() -> nn.Module:
        torch.manual_seed(recipe.train.seed)
        return recipe.objective.build(model_config(recipe, start), tokenizer)

    return build_work(
        rows,
        recipe.objective.collate(tokenizer),
        build,
        recipe.train,
        sorted_=not recipe.objective.packs,
        lighter=recipe.objective.lighter,
    )


def finetuning_work(
    task: Task[object, TaskRows], objective: TaskObjective, stored: ModelBundle, training: TaskRows, train: TrainConfig
) -> Work:
    """Make the work of a fine-tuning. The stored weights are not copied, so that tracing takes no memory."""

    def setup() -> TrainingSetup:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # fake tensors have no address to copy
            return task.training_setup(objective, dataclasses.replace(stored, model=stored.config.build()), training)

    with StepTracer():
        first = setup()
    return build_work(first.rows, first.collate, lambda: setup().objective, train, sorted_=True)


@contextmanager
def made_up_corpus(recipe: PretrainRecipe) -> Iterator[Corpus]:
    """Yield a temporary corpus of random text with the recipe's vocabulary and length."""
    vocabulary = recipe.model.vocab_size or MADE_UP_VOCABULARY
    words = max(vocabulary - _SENTINELS, 16)
    tokenizer = with_sentinels(made_up_tokenizer(words), vocabulary - words)
    length = recipe.data.max_length
    count = min(2 * recipe.train.batch_size + 64, max(64, _MADE_UP_TOKENS // length))
    texts = itertools.islice(made_up_texts(words, tokens=length), count)
    with tempfile.TemporaryDirectory(prefix="homespun-plan-") as folder:
        yield build_corpus((Document(text) for text in texts), tokenizer, Path(folder) / "corpus", sentences=True)


def made_up_tokenizer(vocab_size: int) -> Tokenizer:
    """Train a tokenizer of ``vocab_size`` tokens, one for each word of `made_up_texts`."""
    words = (f"w{number}" for number in range(vocab_size))
    return Tokenizer.train([" ".join([".", *words])], kind="words", vocab_size=vocab_size, lowercase=True)


def made_up_texts(vocab_size: int, *, tokens: int) -> Iterator[str]:
    """Yield random texts without end, each of ``tokens`` uniformly drawn words in sentences."""
    draw = random.Random(0)
    highest = max(1, vocab_size - 8)
    while True:
        words = [f"w{draw.randrange(highest)}" for _ in range(tokens)]
        for end in range(_SENTENCE_LENGTH, tokens, _SENTENCE_LENGTH):
            words[end - 1] = "."
            words[end] = words[end].capitalize()
        yield " ".join(words).replace(" .", ".")
