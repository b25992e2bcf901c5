"""What can be known of all trials before one of them runs: whether each can be built, and what the budget means."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from homespun.compare.recipe import CompareRecipe
from homespun.compare.trials import Stage, Trial
from homespun.data.corpus import Corpus
from homespun.errors import UserError
from homespun.hf.open import open_model
from homespun.jobs.adapt import changes_in, start
from homespun.jobs.pretrain import fitted
from homespun.jobs.recipe import FinetuneRecipe, PretrainRecipe, finetune_recipe, pretrain_recipe
from homespun.jobs.trials import plan
from homespun.models.config import ModelConfig
from homespun.models.model import Model
from homespun.models.store import Stored, Undrawn
from homespun.text.tokenizer import Tokenizer
from homespun.vectors.starting import begin_embeddings
from homespun.vectors.store import open_vectors
from homespun.vectors.word_vectors import WordVectors

_EXAMPLES = 64  # that a head is built for


@dataclass
class Checked:
    """What the trials have in common, found on the way."""

    notes: list[str] = field(default_factory=list)
    tokenizers: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # corpora by fingerprint


def check(recipe: CompareRecipe, trials: Sequence[Trial]) -> list[str]:
    """Build every trial without its weights, read its data, and say what is to be known of the budget.

    Returns:
        Notes, a sentence each: how many passes over a corpus the budget means, where it is more than one.

    Raises:
        UserError: all trials that cannot be built, each with its reason; or corpora with different tokenizers.
    """
    reader = _Reader()
    problems: dict[str, list[str]] = defaultdict(list)
    for trial in trials:
        if trial.seed != trials[0].seed:  # seeds change nothing that is looked at here
            continue
        try:
            _build(trial, reader)
        # what a part of the model refuses is a ValueError; anything else is a bug, and keeps its traceback
        except ValueError as error:
            problems[" ".join(str(error).split())].append(trial.name)
    if problems:
        count = sum(map(len, problems.values()))
        listed = [f"({n}) {', '.join(names)}: {why}" for n, (why, names) in enumerate(problems.items(), start=1)]
        every = len({trial.name for trial in trials})
        raise UserError(f"{count} of {every} variations cannot be built, so nothing was begun: {' '.join(listed)}")
    if len(reader.checked.tokenizers) > 1 and not recipe.different_tokenizers:
        groups = " against ".join(", ".join(sorted(set(corpora))) for corpora in reader.checked.tokenizers.values())
        raise UserError(
            f"the trials' corpora have different tokenizers, so that their losses and token counts do not compare: "
            f"{groups}; build them with one tokenizer, or set different_tokenizers=true"
        )
    return list(dict.fromkeys(reader.checked.notes))


class _Reader:
    """Opens each corpus, model and labelled file once."""

    def __init__(self) -> None:
        self.checked = Checked()
        self._corpora: dict[str, Corpus] = {}
        self._models: dict[str, Stored] = {}
        self._vectors: dict[str, WordVectors] = {}
        self._examples: dict[str, _Examples] = {}

    def corpus(self, path: str) -> Corpus:
        if path not in self._corpora:
            self._corpora[path] = Corpus.open(path)
        return self._corpora[path]

    def model(self, source: str) -> Stored:
        if source not in self._models:
            self._models[source] = open_model(source)
        return self._models[source]

    def vectors(self, path: str) -> WordVectors:
        if path not in self._vectors:
            self._vectors[path] = open_vectors(path)
        return self._vectors[path]

    def examples(self, recipe: FinetuneRecipe) -> _Examples:
        name = recipe.data.model_dump_json()
        return self._examples.setdefault(name, _Examples(recipe.data))


@dataclass
class _Examples:
    data: Any

    @cached_property
    def training(self) -> list[Any]:
        found: list[Any] = self.data.read("train")
        return found

    @cached_property
    def validation(self) -> list[Any] | None:
        found: list[Any] | None = self.data.read("validation")
        return found

    @cached_property
    def test(self) -> list[Any] | None:
        found: list[Any] | None = self.data.read("test")
        return found


def _build(trial: Trial, reader: _Reader) -> None:
    model: Stored | None = None
    for stage in trial.stages:
        if stage.kind == "pretrain":
            model = _pretrained(stage, reader)
        else:
            begin = model if stage.start_from is None else reader.model(stage.start_from)
            assert begin is not None
            _finetuned(stage, begin, reader)


def _pretrained(stage: Stage, reader: _Reader) -> Stored:
    """The model that pretraining will leave, without its weights."""
    settings, changes = (stage.settings, None) if stage.start_from is None else changes_in(list(stage.settings))
    recipe = pretrain_recipe(stage.recipe, settings)
    if not recipe.data.corpus:
        raise UserError("which corpus? set data.corpus, made by `homespun corpus build`, in pretrain.settings")
    corpus = reader.corpus(recipe.data.corpus)
    reader.checked.tokenizers[corpus.tokenizer.fingerprint].append(recipe.data.corpus)
    reader.checked.notes += _passes(recipe, corpus)
    begin = None
    if stage.start_from is not None:
        begin = start(stage.start_from, corpus.tokenizer, corpus=recipe.data.corpus, changes=changes, generator=None)
    length = recipe.data.length
    backbone = fitted(
        recipe.model if begin is None else begin.backbone,
        corpus.tokenizer,
        length=length,
        target_length=recipe.objective.target_length(length),
    )
    config = ModelConfig(backbone=backbone) if begin is None else begin.config
    with torch.device("meta"), Undrawn():
        model, made = recipe.objective.build(config, corpus.tokenizer).product()
    if stage.vectors is not None:
        _begin_with(stage, model, corpus.tokenizer, reader)
    return Stored(model, made, corpus.tokenizer)


def _begin_with(stage: Stage, model: Model, tokenizer: Tokenizer, reader: _Reader) -> None:
    """Refuse vectors that do not fit."""
    if not stage.vectors:
        raise UserError("which word vectors? set pretrain.vectors, made by `homespun vectors train`, or leave it out")
    if stage.start_from is not None:
        raise UserError("start_from brings embeddings of its own; give it or vectors, not both")
    begin_embeddings(model, tokenizer, reader.vectors(stage.vectors), source=stage.vectors)


def _passes(recipe: PretrainRecipe, corpus: Corpus) -> list[str]:
    """What the tokens asked for are in passes over the corpus, where there is more than one.

    Raises:
        UserError: the corpus does not fill one row.
    """
    there = round(corpus.num_tokens * (1 - recipe.data.validation))
    if there < recipe.data.length:
        raise UserError(
            f"{recipe.data.corpus} has {there:,} tokens to train on, less than one row of {recipe.data.length}"
        )
    budget = recipe.train.budget
    rows = recipe.train.batch_size * recipe.data.length
    asked = [("tokens", budget.tokens), ("steps", None if budget.steps is None else budget.steps * rows)]
    return [
        f"{given} of the budget come to {tokens / there:,.1f} passes over {recipe.data.corpus}, which has {there:,} "
        f"tokens to train on; more text would be better than more passes"
        for given, tokens in asked
        if tokens is not None and tokens > there
    ]


def _finetuned(stage: Stage, begin: Stored, reader: _Reader) -> None:
    """Read the examples, divide them, and put the head on a model without weights."""
    recipe = finetune_recipe(stage.recipe, stage.settings)
    examples = reader.examples(recipe)
    task = recipe.data.task(recipe.objective, begin, examples.training)
    plan(recipe, task, examples.training, examples.validation, examples.test)
    _, kinds = np.unique(task.strata(examples.training), axis=0, return_index=True)
    some = [examples.training[index] for index in np.sort(kinds)[:_EXAMPLES].tolist()]
    with torch.device("meta"), Undrawn():
        bare = Stored(begin.config.build(), begin.config, begin.tokenizer, begin.labels, begin.task)
        if len(kinds) <= _EXAMPLES:
            task.lesson(recipe.objective, bare, task.rows(some))
