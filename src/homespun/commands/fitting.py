"""Rows and backbone of a pretraining recipe, fitted to its corpus and tokenizer."""

from __future__ import annotations

import numpy as np

from homespun.commands.adaptation import Start
from homespun.commands.recipe import PretrainRecipe
from homespun.data.corpus import Corpus
from homespun.data.rows import Row, Rows, UnsegmentedRows
from homespun.errors import UserError
from homespun.models.config import BackboneConfig, ModelConfig
from homespun.text.tokenizer import Tokenizer


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
