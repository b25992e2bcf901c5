"""Validation of all trials before the first one runs: each can be built, and the budget fits corpus and memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from pydantic import JsonValue

from homespun.commands.adaptation import open_start
from homespun.commands.recipe import FinetuneRecipe, PretrainRecipe, finetune_recipe, load_recipe, pretrain_recipe
from homespun.commands.trials import plan_trials
from homespun.commands.workload import model_config, with_backbone
from homespun.compare.recipe import CompareRecipe
from homespun.compare.trials import Stage, Trial, first_trials, to_yaml
from homespun.data.corpus import Corpus
from homespun.data.labels import Labels
from homespun.errors import UserError
from homespun.hf.open import open_model
from homespun.metrics.registry import check_best_metric
from homespun.models.bundle import ModelBundle, SkipInit
from homespun.models.model import Model
from homespun.planning.predict import NothingFits
from homespun.recipes import split_overrides
from homespun.tasks.protocol import TaskData
from homespun.text.tokenizer import Tokenizer
from homespun.vectors.embedding_init import init_embeddings
from homespun.vectors.store import open_vectors

_MAX_EXAMPLES = 64  # examples that a head is built for
Examples = list[object] | None


def check(recipe: CompareRecipe, trials: Sequence[Trial]) -> list[str]:
    """Build every trial without weights, read its data, and describe the budget.

    With a search, trials are built with values of its space: every choice, and numbers at the ends and between them.

    Returns:
        A sentence for each corpus that the budget passes over more than once.

    Raises:
        UserError: variants that cannot be built, each with its reason; or corpora with different tokenizers.
    """
    reader = _Reader()
    problems: dict[str, list[str]] = defaultdict(list)
    bad: set[str] = set()
    every = first_trials(trials)
    for trial, title in _with_values(every):
        if trial.name in bad:
            continue
        try:
            _build(trial, reader)
        # parts of a model refuse settings by a ValueError; any other exception is a bug and keeps its traceback
        except ValueError as error:
            problems[" ".join(str(error).split())].append(title)
            bad.add(trial.name)
    if problems:
        reasons = _numbered({", ".join(names): why for why, names in problems.items()})
        raise UserError(f"{len(bad)} of {len(every)} variations cannot be built; no trial was started: {reasons}")
    if len(reader.tokenizers) > 1 and not recipe.different_tokenizers:
        groups = " against ".join(", ".join(sorted(set(corpora))) for corpora in reader.tokenizers.values())
        raise UserError(
            f"corpora with different tokenizers, whose losses and token counts cannot be compared: {groups}; build "
            f"them with one tokenizer, or set different_tokenizers=true"
        )
    return list(dict.fromkeys(reader.notes))


def plan_variants(recipe: CompareRecipe, trials: Sequence[Trial]) -> tuple[dict[str, dict[str, JsonValue]], list[str]]:
    """Plan the micro-batches of the first stage of each variant if the budget limits memory.

    Returns:
        Plans by variant, and a note for each variant that does not fit, whose trials fail with that reason.

    Raises:
        UserError: no variant fits, each with its minimum memory; or a variant cannot be planned.
    """
    if recipe.budget is None or recipe.budget.memory is None:
        return {}, []
    from homespun.commands.plan import plan

    plans: dict[str, dict[str, JsonValue]] = {}
    refused: dict[str, str] = {}
    for trial in first_trials(trials):
        stage = trial.stages[0]
        try:
            settings, changes = split_overrides(stage.settings, has_checkpoint=stage.start_from is not None)
            plans[trial.name] = plan(load_recipe(stage.recipe, settings), start_from=stage.start_from, changes=changes)
        except NothingFits as error:
            refused[trial.name] = str(error)
        except UserError as error:
            raise UserError(f"variation {trial.name}: {error}") from error
    if refused and not plans:
        raise UserError(f"no variation fits into the memory of the budget; no trial was started: {_numbered(refused)}")
    return plans, [f"{name} does not fit into the budget: {why}" for name, why in refused.items()]


def _numbered(reasons: dict[str, str]) -> str:
    return " ".join(f"({n}) {names}: {why}" for n, (names, why) in enumerate(reasons.items(), start=1))


def _with_values(trials: Sequence[Trial]) -> Iterator[tuple[Trial, str]]:
    """Yield each trial, and copies with other values of a search, with their titles."""
    for trial in trials:
        yield trial, trial.name
    for trial in trials:
        search = trial.recipe.search
        for point in search.points()[1:] if search is not None else []:
            settings = (f"{key}={to_yaml(value)}" for key, value in point.items() if value != trial.found[key])
            yield replace(trial, found=point), f"{trial.name} with {', '.join(settings)}"


class _Reader:
    """Cache that opens each corpus, model and labelled file once, and collects notes and tokenizers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.tokenizers: dict[str, list[str]] = defaultdict(list)  # corpora by fingerprint
        self.corpus = cache(Corpus.open)
        self.split = cache(lambda corpus, share, seed: self.corpus(corpus).split(share, seed))
        self.model = cache(open_model)
        self.vectors = cache(open_vectors)
        self._examples: dict[str, tuple[list[object], Examples, Examples]] = {}

    def examples(self, data: TaskData) -> tuple[list[object], Examples, Examples]:
        """Read training, validation and test examples."""
        name = data.model_dump_json()
        if name not in self._examples:
            self._examples[name] = data.read("train") or [], data.read("validation"), data.read("test")
        return self._examples[name]


def _build(trial: Trial, reader: _Reader) -> None:
    model: ModelBundle | None = None
    search = trial.recipe.search
    for stage in trial.stages:
        metric = search.metric if search is not None and stage.name == trial.recipe.searched else ""
        if stage.kind == "pretrain":
            model = _build_pretrained(stage, reader, metric)
        else:
            start = model if stage.start_from is None else reader.model(stage.start_from)
            assert start is not None
            _check_finetuning(stage, start, reader, metric)


def _build_pretrained(stage: Stage, reader: _Reader, search_metric: str) -> ModelBundle:
    """Build the pretrained model without its weights."""
    settings, changes = split_overrides(stage.settings, has_checkpoint=stage.start_from is not None)
    recipe = pretrain_recipe(stage.recipe, settings)
    if not recipe.data.corpus:
        raise UserError("data.corpus is empty; set it in pretrain.settings to a folder of `homespun corpus build`")
    corpus = reader.corpus(recipe.data.corpus)
    reader.tokenizers[corpus.tokenizer.fingerprint].append(recipe.data.corpus)
    reader.notes += _passes(recipe, reader)
    _check_metrics(recipe, search_metric)
    start = None
    if stage.start_from is not None:
        start = open_start(stage.start_from, corpus.tokenizer, corpus=recipe.data.corpus, changes=changes)
    config = model_config(with_backbone(recipe, corpus.tokenizer, start), start)
    with torch.device("meta"), SkipInit():
        model, made = recipe.objective.build(config, corpus.tokenizer).export_model()
    if stage.vectors is not None:
        _check_vectors(stage, model, corpus.tokenizer, reader)
    return ModelBundle(model, made, corpus.tokenizer)


def _check_vectors(stage: Stage, model: Model, tokenizer: Tokenizer, reader: _Reader) -> None:
    if not stage.vectors:
        raise UserError("pretrain.vectors is empty; set it to vectors of `homespun vectors train`, or leave it out")
    if stage.start_from is not None:
        raise UserError("start_from already has embeddings; give start_from or vectors, not both")
    init_embeddings(model, tokenizer, reader.vectors(stage.vectors), source=stage.vectors)


def _passes(recipe: PretrainRecipe, reader: _Reader) -> list[str]:
    """Describe the budget as passes over the corpus, if there is more than one.

    Raises:
        UserError: the corpus cannot be split, does not fill one row, or does not suit the objective.
    """
    data, corpus = recipe.data, reader.corpus(recipe.data.corpus)
    training, held_out = reader.split(data.corpus, data.validation, data.split_seed)
    total = corpus.count_tokens(training)
    if total < data.max_length:
        raise UserError(f"{data.corpus} has {total:,} tokens to train on, less than one row of {data.max_length}")
    # held-out rows suffice: training rows are made in the same way, but are many
    recipe.objective.rows(corpus, held_out, length=data.max_length, seed=data.split_seed)
    budget = recipe.train.budget
    rows = recipe.train.batch_size * recipe.data.max_length
    requested = [("tokens", budget.tokens), ("steps", None if budget.steps is None else budget.steps * rows)]
    return [
        f"{given} of the budget are {tokens / total:,.1f} passes over {recipe.data.corpus}, which has {total:,} "
        f"tokens to train on; more text would be better than more passes"
        for given, tokens in requested
        if tokens is not None and tokens > total
    ]


def _check_metrics(
    recipe: PretrainRecipe | FinetuneRecipe,
    search_metric: str,
    metrics: Sequence[str] = (),
    labels: Labels | None = None,
) -> None:
    """Raise `UserError` for a metric that the validation does not have."""
    check_best_metric(recipe.train.best_metric, recipe.objective.kind, metrics, labels)
    check_best_metric(search_metric or "loss", recipe.objective.kind, metrics, labels, key="search.metric")


def _check_finetuning(stage: Stage, start: ModelBundle, reader: _Reader, search_metric: str) -> None:
    """Read and split the examples, and build the head on a model without weights."""
    recipe = finetune_recipe(stage.recipe, stage.settings)
    training, validation, test = reader.examples(recipe.data)
    task = recipe.data.task(recipe.objective, start, training)
    _check_metrics(recipe, search_metric, recipe.objective.metrics, task.labels)
    plan_trials(recipe, task, training, validation, test)
    _, kinds = np.unique(task.stratify_by(training), axis=0, return_index=True)
    sample = [training[index] for index in np.sort(kinds)[:_MAX_EXAMPLES].tolist()]
    with torch.device("meta"), SkipInit():
        bare = ModelBundle(start.config.build(), start.config, start.tokenizer, start.labels, start.task)
        if len(kinds) <= _MAX_EXAMPLES:
            task.training_setup(recipe.objective, bare, task.rows(sample))
