"""Pretraining of a recipe on a corpus, into a run directory."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from homespun.commands.adaptation import Start
from homespun.commands.adaptation_metrics import measure_adaptation
from homespun.commands.machine import Machine, fit_memory, size_to_dict, with_size
from homespun.commands.preflight import Preflight, preflight_pretraining
from homespun.commands.processes import check_processes, processes_to_start, run_in_processes
from homespun.commands.provenance import RunInputs, create_run, identify_model, identify_vectors, restore_settings
from homespun.commands.recipe import PretrainRecipe
from homespun.commands.result import summarise, watch, write_results
from homespun.commands.workload import (
    model_config,
    open_data,
    pretraining_rows,
    pretraining_work,
    training_loader,
    typical_batch,
    with_backbone,
)
from homespun.config import Tree
from homespun.data.corpus import Corpus
from homespun.data.loader import Collate, Loader
from homespun.data.rows import Rows
from homespun.errors import UserError
from homespun.hf.export import export_run
from homespun.metrics.registry import check_best_metric
from homespun.models.bundle import ModelBundle, save_model
from homespun.models.config import ModelConfig
from homespun.models.model import Model
from homespun.models.weight_transfer import TransferReport
from homespun.objectives.protocol import unigram_losses
from homespun.planning.budget import SizeChoice
from homespun.planning.rates import flops_per_token
from homespun.report.console import SILENT, Display
from homespun.training.config import TrainConfig
from homespun.training.devices import DistributedContext
from homespun.training.run import Run, holds_run
from homespun.training.trainer import Trainer
from homespun.training.validation import evaluate_loss
from homespun.vectors.embedding_init import EmbeddingCoverage, init_embeddings, init_embeddings_from_cooccurrence
from homespun.vectors.store import open_vectors
from homespun.vectors.word_vectors import WordVectors

logger = logging.getLogger(__name__)


def pretrain(
    recipe: PretrainRecipe,
    out: str | Path,
    *,
    start_from: str | None = None,
    changes: Mapping[str, object] | None = None,
    generator: str | None = None,
    vectors: str | Path | None = None,
    resume: bool = False,
    preflight: bool = True,
    display: Display = SILENT,
) -> Tree:
    """Pretrain a model into the run directory ``out``.

    Args:
        recipe: pretraining recipe, see `homespun.commands.recipe.pretrain_recipe`.
        out: a new folder; with ``resume`` a stopped run, or a finished run to extend with a larger budget.
        start_from: checkpoint to continue from instead of the model of the recipe: a run, a ``model/`` folder, a
            Hugging Face folder or a hub name. Its head is kept if it fits the objective. The corpus must have its
            tokenizer or an extension of it (`homespun.commands.preparation.extend_tokenizer`).
        changes: changes to the backbone of the checkpoint, of `homespun.models.weight_transfer.CHANGEABLE`, such as
            ``{"max_position_embeddings": 4096}``. ``adaptation`` of the result compares the outputs before and after.
        generator: checkpoint of the generator, for objective electra; by default it is newly initialised.
        vectors: word vectors to initialise the embeddings with, see
            `homespun.vectors.embedding_init.init_embeddings`; ``vectors`` of the result counts the covered tokens.
        resume: continue the run in ``out``.
        preflight: check budget, model size, optimizer and export before the first step, and log warnings
            (`homespun.commands.preflight`). For a time above one minute, without a limit of tokens or steps, a step is
            timed.
        display: where progress is shown; nowhere by default.

    Returns:
        The content of ``result.json``; empty in all processes but the first.

    Example:
        ``pretrain(pretrain_recipe("spun-decoder", ["data.corpus=corpus", "train.budget.time=2h"]), "runs/base")``

    Raises:
        UserError: the corpus is missing, the recipe is invalid, the budget is too small for one step, or the run was
            interrupted.
    """
    options = {"start_from": start_from, "changes": changes, "generator": generator, "vectors": vectors}
    if (count := processes_to_start(recipe.train)) > 1:
        check_processes(recipe.objective, count)
        flags = {"resume": resume, "preflight": preflight}
        return run_in_processes(count, pretrain, recipe, out, display=display, **options, **flags)
    context = DistributedContext.join()
    check_processes(recipe.objective, context.world_size)
    recipe = restore_settings(recipe, out, main=context.is_main) if resume else recipe
    if context.is_main:
        holds_run(Path(out), resume=resume)  # before the checks, which take a minute on a slow machine
    inputs = _read_inputs(recipe, start_from, changes, generator, vectors)
    machine = functools.cache(Machine.here if recipe.train.budget.memory else Machine.timed)
    setup = _build(recipe, inputs, machine, display)
    checked = None
    if preflight and context.is_main and recipe.train.budget.steps != 0:
        # after the objective is built, so that an invalid recipe gives one error and no warnings
        checked = _check(setup, inputs, machine, display)
    transfer, coverage = _initialize(setup, inputs, fresh=not (resume and Run(out).latest_state()))
    run = create_run(out, setup.recipe, inputs.identities, resume=resume, main=context.is_main)
    training, held_out = setup.loaders(context)
    measured = _measure_initial(setup, inputs, transfer, run, held_out, context) if context.is_main else None
    trainer = Trainer(
        setup.objective,
        training,
        setup.config,
        run,
        validate=lambda: evaluate_loss(setup.objective, held_out.once(), trainer.device),
    )
    watch(trainer, display, f"pretraining {Path(out).name}")
    if measured is None:
        return {}
    exported = _save(run, setup, inputs)
    result = _summarise(run, setup, inputs, trainer, held_out) | measured | {"export": exported}
    result |= {} if checked is None or checked.forecast is None else {"forecast": checked.forecast.to_dict()}
    result |= {} if coverage is None else {"vectors": coverage.summary()}
    return write_results(run, result, title="Pretraining")


@dataclass(frozen=True)
class _Inputs:
    """Corpus and initial weights of a run."""

    corpus: Corpus
    start: Start | None  # checkpoint to continue from; None: from scratch
    vectors: WordVectors | None  # initial embeddings of words
    identities: RunInputs  # names and digests of the initial weights, by option


@dataclass(frozen=True)
class _Setup:
    """Objective and rows of a run, ready to train."""

    recipe: PretrainRecipe  # with a model of known size and the tokenizer's vocabulary
    config: TrainConfig  # training settings, with the micro-batches that fit into memory
    objective: nn.Module  # returns the loss
    export_model: Callable[[], tuple[Model, ModelConfig]]  # returns the model to save, and its config
    training: Rows
    validation: Rows  # held-out rows
    collate: Collate  # rows to a batch, with masks and noise
    plan: Tree  # choices for a memory limit; empty without one
    size: SizeChoice | None  # choice of the model size; None if the recipe gives a size

    def loaders(self, context: DistributedContext) -> tuple[Loader, Loader]:
        """Return loaders of training rows and of held-out rows.

        Held-out rows keep the masks of epoch 0, so that losses of different steps and seeds are comparable.
        """
        collate, config = self.collate, self.config
        training = training_loader(self.training, collate, config, context, order=self.recipe.objective.row_order)
        batch_size = config.micro_batch_size or config.batch_size
        return training, Loader(self.validation, collate, batch_size=batch_size, seed=self.recipe.data.split_seed)


def _read_inputs(
    recipe: PretrainRecipe,
    start_from: str | None,
    changes: Mapping[str, object] | None,
    generator: str | None,
    vectors: str | Path | None,
) -> _Inputs:
    check_best_metric(recipe.train.best_metric, recipe.objective.kind)
    if vectors is not None and start_from is not None:
        raise UserError("--from and --vectors both set the embeddings; give either --from or --vectors, not both")
    if start_from is None and (changes or generator is not None):
        raise UserError("changes to a checkpoint and --generator need --from, the checkpoint")
    opened = None if vectors is None else open_vectors(vectors)
    corpus, start = open_data(recipe, start_from, changes, generator)
    identities = {
        "--from": identify_model(start_from, None if start is None else start.stored),
        "--generator": identify_model(generator, None if start is None else start.generator),
        "--vectors": identify_vectors(vectors, opened),
    }
    return _Inputs(corpus, start, opened, identities)


def _build(recipe: PretrainRecipe, inputs: _Inputs, machine: Callable[[], Machine], display: Display) -> _Setup:
    """Choose model size and micro-batches, and build the objective."""
    corpus, start, size = inputs.corpus, inputs.start, None
    if start is None:
        recipe, size = with_size(recipe, machine, lambda sized: pretraining_work(sized, corpus, None), display)
    recipe = with_backbone(recipe, corpus.tokenizer, start)
    training, validation = pretraining_rows(recipe, corpus)
    config, plan = fit_memory(recipe.train, lambda: pretraining_work(recipe, corpus, start), display)
    torch.manual_seed(recipe.train.seed)
    objective = recipe.objective.build(model_config(recipe, start), corpus.tokenizer)
    collate = recipe.objective.collate(corpus.tokenizer)
    return _Setup(recipe, config, objective, objective.export_model, training, validation, collate, plan, size)


def _check(setup: _Setup, inputs: _Inputs, machine: Callable[[], Machine], display: Display) -> Preflight:
    """Show the forecast and log the warnings of `homespun.commands.preflight`."""
    _, config = setup.export_model()
    checked = preflight_pretraining(setup.recipe, setup.objective, config, inputs.corpus, inputs.start, machine)
    if checked.forecast is not None and (summary := checked.forecast.summary()) is not None:
        display.line(f"forecast: {summary}")
    for warning in checked.warnings:
        logger.warning(warning)
    return checked


def _initialize(
    setup: _Setup, inputs: _Inputs, *, fresh: bool
) -> tuple[TransferReport | None, EmbeddingCoverage | None]:
    """Initialise weights from word vectors, a checkpoint, or, if ``fresh`` (no checkpoint to resume), from counts.

    Returns:
        Origins of the weights: tensors of the checkpoint, tokens with word vectors.
    """
    transfer, coverage = None, None
    if inputs.vectors is not None:
        identity = inputs.identities["--vectors"]
        assert identity is not None
        coverage = init_embeddings(setup.objective, inputs.corpus.tokenizer, inputs.vectors, source=identity.name)
    elif inputs.start is not None:
        transfer = inputs.start.fill(setup.objective, *setup.export_model())
    elif fresh:
        start_embeddings(setup.objective, setup.recipe, inputs.corpus)
    return transfer, coverage


def start_embeddings(objective: nn.Module, recipe: PretrainRecipe, corpus: Corpus) -> None:
    """Initialise the word embeddings of a new objective by ``recipe.embeddings``, from the training documents.

    Raises:
        UserError: the model has no word embeddings to initialise from counts.
    """
    if recipe.embeddings == "cooccurrence" and recipe.train.budget.steps != 0:
        training, _ = corpus.split(recipe.data.validation, recipe.data.split_seed)
        init_embeddings_from_cooccurrence(objective, corpus, training, seed=recipe.train.seed)


def _measure_initial(
    setup: _Setup,
    inputs: _Inputs,
    transfer: TransferReport | None,
    run: Run,
    held_out: Loader,
    context: DistributedContext,
) -> Tree:
    """Measure FLOPs per token, and compare a changed checkpoint with the original, before the first step."""
    batch = typical_batch(setup.training, setup.collate, setup.config.seed)
    result: Tree = {"flops_per_token": flops_per_token(setup.objective, batch)}
    if inputs.start is not None and transfer is not None:
        setup.objective.to(context.device)
        result["adaptation"] = measure_adaptation(
            run.path,
            inputs.start,
            transfer,
            evaluate=lambda: evaluate_loss(setup.objective, held_out.once(), context.device),
            held_out=setup.validation,
            corpus=inputs.corpus,
            model=setup.export_model()[0],
        )
    return result


def _save(run: Run, setup: _Setup, inputs: _Inputs) -> Tree:
    """Save ``model/`` and ``hf/``; returns the report of the export."""
    model, config = setup.export_model()
    tokenizer, base = inputs.corpus.tokenizer, None if inputs.start is None else inputs.start.source
    save_model(run.path / "model", model, config, tokenizer, task={"max_length": setup.recipe.data.max_length})
    return export_run(run.path, ModelBundle(model, config, tokenizer), base_model=base)


def _summarise(run: Run, setup: _Setup, inputs: _Inputs, trainer: Trainer, held_out: Loader) -> Tree:
    """Metrics, sizes and unigram baseline of a finished run."""
    corpus, term = inputs.corpus, setup.recipe.objective.unigram_term
    parameters = sum(p.numel() for p in setup.export_model()[0].parameters())
    result = summarise(run.path, kind="pretrain", parameters=parameters, precision=trainer.precision)
    result |= {"plan": setup.plan} if setup.plan else {}
    result |= {} if setup.size is None else {"size": size_to_dict(setup.size)}
    return result | {
        "trained_parameters": sum(p.numel() for p in setup.objective.parameters()),
        "unigram_baseline": unigram_losses(term, lambda: corpus.counts(0), held_out.once(), corpus.tokenizer),
        "corpus": {
            "documents": len(corpus),
            "tokens": corpus.num_tokens,
            "bytes": corpus.num_bytes,
            "rows": len(setup.training),
            "validation_rows": len(setup.validation),
        },
    }
