"""What can be known of all trials before one of them runs: whether each can be built, and what the budget means."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from homespun.commands.adaptation import open_start, split_overrides
from homespun.commands.fitting import with_vocabulary
from homespun.commands.recipe import CorpusData, FinetuneRecipe, PretrainRecipe, finetune_recipe, pretrain_recipe
from homespun.commands.trials import plan_trials
from homespun.compare.recipe import CompareRecipe
from homespun.compare.trials import Stage, Trial, first_trials, to_yaml
from homespun.data.corpus import Corpus
from homespun.data.labels import Labels
from homespun.errors import UserError
from homespun.hf.open import open_model
from homespun.metrics.registry import check_best_metric
from homespun.models.bundle import ModelBundle, SkipInit
from homespun.models.config import ModelConfig
from homespun.models.model import Model
from homespun.text.tokenizer import Tokenizer
from homespun.vectors.embedding_init import init_embeddings
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

    Where there is a search, what is built has values of its space: every one of its choices, and numbers at its ends
    and between them.

    Returns:
        Notes, a sentence each: how many passes over a corpus the budget means, where it is more than one.

    Raises:
        UserError: all variations that cannot be built, each with its reason; or corpora with different tokenizers.
    """
    reader = _Reader()
    problems: dict[str, list[str]] = defaultdict(list)
    bad: set[str] = set()
    every = first_trials(trials)
    for trial, called in _with_values(every):
        if trial.name in bad:
            continue
        try:
            _build(trial, reader)
        # what a part of the model refuses is a ValueError; anything else is a bug, and keeps its traceback
        except ValueError as error:
            problems[" ".join(str(error).split())].append(called)
            bad.add(trial.name)
    if problems:
        listed = [f"({n}) {', '.join(names)}: {why}" for n, (why, names) in enumerate(problems.items(), start=1)]
        raise UserError(
            f"{len(bad)} of {len(every)} variations cannot be built, so nothing was begun: {' '.join(listed)}"
        )
    if len(reader.checked.tokenizers) > 1 and not recipe.different_tokenizers:
        groups = " against ".join(", ".join(sorted(set(corpora))) for corpora in reader.checked.tokenizers.values())
        raise UserError(
            f"the trials' corpora have different tokenizers, so that their losses and token counts do not compare: "
            f"{groups}; build them with one tokenizer, or set different_tokenizers=true"
        )
    return list(dict.fromkeys(reader.checked.notes))


def _with_values(trials: Sequence[Trial]) -> Iterator[tuple[Trial, str]]:
    """Each trial, with other values of a search too, and what it is called."""
    for trial in trials:
        yield trial, trial.name
    for trial in trials:
        search = trial.recipe.search
        for point in search.points()[1:] if search is not None else []:
            settings = (f"{key}={to_yaml(value)}" for key, value in point.items() if value != trial.found[key])
            yield replace(trial, found=point), f"{trial.name} with {', '.join(settings)}"


class _Reader:
    """Opens each corpus, model and labelled file once."""

    def __init__(self) -> None:
        self.checked = Checked()
        self._corpora: dict[str, Corpus] = {}
        self._splits: dict[tuple[str, float, int], tuple[NDArray[Any], NDArray[Any]]] = {}
        self._models: dict[str, ModelBundle] = {}
        self._vectors: dict[str, WordVectors] = {}
        self._examples: dict[str, _Examples] = {}

    def corpus(self, path: str) -> Corpus:
        if path not in self._corpora:
            self._corpora[path] = Corpus.open(path)
        return self._corpora[path]

    def model(self, source: str) -> ModelBundle:
        if source not in self._models:
            self._models[source] = open_model(source)
        return self._models[source]

    def split(self, data: CorpusData) -> tuple[NDArray[Any], NDArray[Any]]:
        """Documents of the corpus to train on, and to validate on."""
        corpus = self.corpus(data.corpus)
        key = (data.corpus, data.validation, data.split_seed)
        if key not in self._splits:
            self._splits[key] = corpus.split(data.validation, data.split_seed)
        return self._splits[key]

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
    model: ModelBundle | None = None
    search = trial.recipe.search
    for stage in trial.stages:
        measure = search.metric if search is not None and stage.name == trial.recipe.searched else ""
        if stage.kind == "pretrain":
            model = _pretrained(stage, reader, measure)
        else:
            begin = model if stage.start_from is None else reader.model(stage.start_from)
            assert begin is not None
            _finetuned(stage, begin, reader, measure)


def _pretrained(stage: Stage, reader: _Reader, measure: str) -> ModelBundle:
    """The model that pretraining will leave, without its weights; ``measure`` is that of a search."""
    settings, changes = (stage.settings, None) if stage.start_from is None else split_overrides(list(stage.settings))
    recipe = pretrain_recipe(stage.recipe, settings)
    if not recipe.data.corpus:
        raise UserError("which corpus? set data.corpus, made by `homespun corpus build`, in pretrain.settings")
    corpus = reader.corpus(recipe.data.corpus)
    reader.checked.tokenizers[corpus.tokenizer.fingerprint].append(recipe.data.corpus)
    reader.checked.notes += _passes(recipe, reader)
    _check_measures(recipe, measure)
    begin = None
    if stage.start_from is not None:
        begin = open_start(
            stage.start_from, corpus.tokenizer, corpus=recipe.data.corpus, changes=changes, generator=None
        )
    length = recipe.data.max_length
    backbone = with_vocabulary(
        recipe.backbone if begin is None else begin.backbone,
        corpus.tokenizer,
        length=length,
        target_length=recipe.objective.target_length(length),
    )
    config = ModelConfig(backbone=backbone) if begin is None else begin.config
    with torch.device("meta"), SkipInit():
        model, made = recipe.objective.build(config, corpus.tokenizer).export_model()
    if stage.vectors is not None:
        _check_vectors(stage, model, corpus.tokenizer, reader)
    return ModelBundle(model, made, corpus.tokenizer)


def _check_vectors(stage: Stage, model: Model, tokenizer: Tokenizer, reader: _Reader) -> None:
    """Refuse vectors that do not fit."""
    if not stage.vectors:
        raise UserError("which word vectors? set pretrain.vectors, made by `homespun vectors train`, or leave it out")
    if stage.start_from is not None:
        raise UserError("start_from brings embeddings of its own; give it or vectors, not both")
    init_embeddings(model, tokenizer, reader.vectors(stage.vectors), source=stage.vectors)


def _passes(recipe: PretrainRecipe, reader: _Reader) -> list[str]:
    """What the tokens asked for are in passes over the corpus, where there is more than one.

    Raises:
        UserError: the corpus cannot be divided, does not fill one row, or is not of the objective's kind.
    """
    data, corpus = recipe.data, reader.corpus(recipe.data.corpus)
    training, held_out = reader.split(data)
    total = int(corpus.lengths[training].sum())
    if total < data.max_length:
        raise UserError(f"{data.corpus} has {total:,} tokens to train on, less than one row of {data.max_length}")
    # the rows of training are many, and are made alike
    recipe.objective.rows(corpus, held_out, length=data.max_length, seed=data.split_seed)
    budget = recipe.train.budget
    rows = recipe.train.batch_size * recipe.data.max_length
    requested = [("tokens", budget.tokens), ("steps", None if budget.steps is None else budget.steps * rows)]
    return [
        f"{given} of the budget come to {tokens / total:,.1f} passes over {recipe.data.corpus}, which has {total:,} "
        f"tokens to train on; more text would be better than more passes"
        for given, tokens in requested
        if tokens is not None and tokens > total
    ]


def _check_measures(
    recipe: PretrainRecipe | FinetuneRecipe, measure: str, metrics: Sequence[str] = (), labels: Labels | None = None
) -> None:
    """Refuse what the validation does not measure, to choose a checkpoint by, or settings."""
    check_best_metric(recipe.train.best_metric, recipe.objective.kind, metrics, labels)
    check_best_metric(measure or "loss", recipe.objective.kind, metrics, labels, key="search.metric")


def _finetuned(stage: Stage, begin: ModelBundle, reader: _Reader, measure: str) -> None:
    """Read the examples, divide them, and put the head on a model without weights; ``measure`` is that of a search."""
    recipe = finetune_recipe(stage.recipe, stage.settings)
    examples = reader.examples(recipe)
    task = recipe.data.task(recipe.objective, begin, examples.training)
    _check_measures(recipe, measure, recipe.objective.metrics, task.labels)
    plan_trials(recipe, task, examples.training, examples.validation, examples.test)
    _, kinds = np.unique(task.stratify_by(examples.training), axis=0, return_index=True)
    sample = [examples.training[index] for index in np.sort(kinds)[:_EXAMPLES].tolist()]
    with torch.device("meta"), SkipInit():
        bare = ModelBundle(begin.config.build(), begin.config, begin.tokenizer, begin.labels, begin.task)
        if len(kinds) <= _EXAMPLES:
            task.training_setup(recipe.objective, bare, task.rows(sample))
