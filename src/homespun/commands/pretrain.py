"""Pretraining, whole: a corpus and a recipe in, a run directory out."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from homespun.commands.adaptation import Start, measure_adaptation, open_start
from homespun.commands.memory import Machine, fit_memory, with_precision
from homespun.commands.model_size import size_to_dict, with_size
from homespun.commands.preflight import Preflight, check_first_step, check_pretraining
from homespun.commands.processes import processes_to_start, run_in_processes
from homespun.commands.provenance import create_run, identify_model, identify_vectors, restore_settings
from homespun.commands.recipe import PretrainRecipe
from homespun.commands.result import summarise, watch
from homespun.commands.workload import Work, build_work, seeded, typical_batch
from homespun.data.corpus import Corpus
from homespun.data.loader import Loader, Order
from homespun.data.rows import Rows, UnsegmentedRows
from homespun.errors import UserError
from homespun.hf.export import export_run
from homespun.metrics.registry import check_best_metric
from homespun.models.bundle import save_model
from homespun.models.config import BackboneConfig, ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.objectives.config import PretrainingObjective
from homespun.objectives.elmo import BiLM
from homespun.objectives.tbptt import StatefulCausalLM
from homespun.objectives.unigram_baseline import unigram_losses
from homespun.planning.budget import DatasetSize, epochs_warning, forecast_budget
from homespun.planning.rates import flops_per_token
from homespun.report.console import Display
from homespun.report.page import write_report
from homespun.text.tokenizer import Tokenizer
from homespun.training.devices import DistributedContext
from homespun.training.run import Run
from homespun.training.trainer import Trainer
from homespun.training.validation import evaluate_loss
from homespun.vectors.embedding_init import init_embeddings
from homespun.vectors.spectral import init_embeddings_from_cooccurrence
from homespun.vectors.store import open_vectors

logger = logging.getLogger(__name__)

_UNPLANNED_SECONDS = 60.0  # a budget of time that is not worth the seconds of a plan


def pretrain(
    recipe: PretrainRecipe,
    out: str | Path,
    *,
    start_from: str | None = None,
    changes: Mapping[str, Any] | None = None,
    generator: str | None = None,
    vectors: str | Path | None = None,
    resume: bool = False,
    preflight: bool = True,
    display: Display | None = None,
) -> dict[str, Any]:
    """Pretrain as ``recipe`` says, into the run directory ``out``; returns its ``result.json``.

    Args:
        recipe: see `homespun.commands.recipe.pretrain_recipe`.
        out: a new folder, or with ``resume`` a run that was stopped, or that is given a larger budget.
        start_from: a run, a ``model/`` folder, or a Hugging Face folder or name to go on from, in place of the
            recipe's model: its backbone, and its head where that is the objective's. Its tokenizer must be the
            corpus's, or the corpus's an extension of it (`homespun.commands.adaptation.extend_tokenizer`).
        changes: to that backbone: what `homespun.models.weight_transfer.CHANGEABLE` names, such as
            ``{"max_position_embeddings": 4096}``. How far its outputs moved is in the result's ``adaptation``.
        generator: the same for the generator of objective electra, which is fresh where none is given.
        vectors: word vectors that the embeddings begin with, see `homespun.vectors.embedding_init.init_embeddings`; how
            many tokens have one is in the result's ``vectors``.
        resume: go on with the run in ``out``.
        preflight: warn, before the first step, of a budget, size, optimizer or model that do not suit each other
            (`homespun.commands.preflight`). A budget of time alone, of more than a minute, is planned for that.
        display: where progress is shown; nowhere by default.

    Raises:
        UserError: no corpus, a recipe that cannot be built, a budget too small for one step, an interrupted run.
    """
    display = display or Display(json=True)
    if (count := processes_to_start(recipe.train)) > 1:
        _check_shared(recipe, count)
        return run_in_processes(
            count,
            pretrain,
            recipe,
            out,
            display=display,
            start_from=start_from,
            changes=changes,
            generator=generator,
            vectors=vectors,
            resume=resume,
            preflight=preflight,
        )
    context = DistributedContext.join()
    _check_shared(recipe, context.world_size)
    recipe = restore_settings(recipe, out, main=context.is_main) if resume else recipe
    if not recipe.data.corpus:
        raise UserError("which corpus? give data.corpus=FOLDER, made by `homespun corpus build`")
    check_best_metric(recipe.train.best_metric, recipe.objective.kind)
    corpus = Corpus.open(recipe.data.corpus)
    tokenizer = corpus.tokenizer
    begin = None
    if vectors is not None and start_from is not None:
        raise UserError("--from brings embeddings of its own; give it or --vectors, not both")
    opened = None if vectors is None else open_vectors(vectors)
    if start_from is not None:
        begin = open_start(start_from, tokenizer, corpus=recipe.data.corpus, changes=changes, generator=generator)
    elif changes or generator is not None:
        raise UserError("changes to a checkpoint and --generator want --from, the checkpoint")
    inputs = {
        "--from": identify_model(start_from, None if begin is None else begin.stored),
        "--generator": identify_model(generator, None if begin is None else begin.generator),
        "--vectors": identify_vectors(vectors, opened),
    }
    machine = functools.cache(Machine.here if recipe.train.budget.memory else Machine.timed)
    chosen_size = None
    if begin is None:
        recipe, chosen_size = with_size(recipe, machine, lambda sized: pretraining_work(sized, corpus, None), display)
    recipe = with_backbone(recipe, tokenizer, begin)
    training, validation = pretraining_rows(recipe, corpus)
    build = seeded(lambda: recipe.objective.build(_config(recipe, begin), tokenizer), recipe.train.seed)
    config, planned = fit_memory(recipe.train, lambda: pretraining_work(recipe, corpus, begin), display)
    objective: Any = build()
    checked = None
    if (
        preflight and context.is_main and recipe.train.budget.steps != 0
    ):  # of what can be built: a mistake is one error alone
        _warn(recipe, training)
        checked = _checked(recipe, objective, corpus, begin, machine, display)
    if begin is None and opened is None and not (resume and Run(out).latest_state()):
        start_embeddings(objective, recipe, corpus)
    initialized = None if opened is None else init_embeddings(objective, tokenizer, opened, source=str(vectors))
    origins = None if begin is None else begin.fill(objective)
    run = create_run(out, recipe, inputs, resume=resume, main=context.is_main)
    collate = recipe.objective.collate(tokenizer)
    loader = Loader(
        training,
        collate,
        batch_size=config.batch_size,
        micro_batch_size=config.micro_batch_size,
        seed=config.seed,
        rank=context.rank,
        world_size=context.world_size,
        order=_order(recipe.objective),
        workers=config.workers,
    )
    # the held-out rows keep one set of masks, that of epoch 0, so that their losses compare over time, and over seeds
    held_out = Loader(
        validation,
        collate,
        batch_size=config.micro_batch_size or config.batch_size,
        seed=recipe.data.split_seed,
    )
    counted = flops_per_token(objective, typical_batch(training, collate, config.seed)) if context.is_main else None
    adaptation = None
    if begin is not None and origins is not None and context.is_main:
        objective.to(context.device)
        adaptation = measure_adaptation(
            run.path,
            begin,
            origins,
            evaluate=lambda: evaluate_loss(objective, held_out.once(), context.device),
            held_out=validation,
            corpus=corpus,
            model=objective.export_model()[0],
        )
    trainer = Trainer(
        objective,
        loader,
        config,
        run,
        validate=lambda: evaluate_loss(objective, held_out.once(), trainer.device),
    )
    watch(trainer, display, f"pretraining {Path(out).name}")

    model, model_config = objective.export_model()
    if not context.is_main:
        return {}
    save_model(run.path / "model", model, model_config, tokenizer, task={"length": recipe.data.length})
    exported = export_run(run.path, model, model_config, tokenizer, base_model=start_from)
    size = sum(p.numel() for p in model.parameters())
    result = summarise(run.path, kind="pretrain", parameters=size, precision=trainer.precision, flops_per_token=counted)
    if planned:
        result |= {"plan": planned}
    if chosen_size is not None:
        result |= {"size": size_to_dict(chosen_size)}
    if checked is not None and checked.forecast is not None:
        result |= {"forecast": checked.forecast.to_dict()}
    result |= {
        "trained_parameters": sum(p.numel() for p in objective.parameters()),
        "export": exported,
        "frequencies": unigram_losses(recipe.objective, lambda: corpus.counts(0), held_out.once(), tokenizer),
        "corpus": {
            "documents": len(corpus),
            "tokens": corpus.num_tokens,
            "bytes": corpus.num_bytes,
            "rows": len(training),
            "validation_rows": len(validation),
        },
    }
    if adaptation is not None:
        result |= {"adaptation": adaptation}
    if initialized is not None:
        result |= {"vectors": initialized.summary()}
    run.write_result(result)
    write_report([run.path], run.path / "report", title=f"Pretraining: {run.path.name}")
    return result


def start_embeddings(objective: nn.Module, recipe: PretrainRecipe, corpus: Corpus) -> None:
    """Start the word embeddings of a new objective as ``recipe.embeddings`` says, from the training documents.

    Raises:
        UserError: the model has no embeddings of tokens to start from counts.
    """
    if recipe.embeddings == "cooccurrence" and recipe.train.budget.steps != 0:
        training, _ = corpus.split(recipe.data.validation, recipe.data.split_seed)
        init_embeddings_from_cooccurrence(objective, corpus, training, seed=recipe.train.seed)


def _check_shared(recipe: PretrainRecipe, processes: int) -> None:
    if isinstance(recipe.objective, StatefulCausalLM) and processes > 1:
        raise UserError(
            f"objective streamed_clm carries its state in one process, and there are {processes}; set "
            f"train.processes=1, or take objective.kind=clm"
        )


def _warn(recipe: PretrainRecipe, training: Rows) -> None:
    short = epochs_warning(recipe.train.budget, DatasetSize(len(training), int(training.lengths.sum())))
    if short is not None:
        logger.warning(short)
    if _mixes_documents(recipe):
        logger.warning(
            "%s attention cannot tell the documents of a row apart: they see each other", recipe.backbone.attention.kind
        )


def _checked(
    recipe: PretrainRecipe,
    objective: Any,
    corpus: Corpus,
    begin: Start | None,
    machine: Callable[[], Machine],
    display: Display,
) -> Preflight:
    """Show and log what `homespun.commands.preflight.check_pretraining` finds."""
    train, budget, seconds = recipe.train, recipe.train.budget, None
    work = pretraining_work(recipe, corpus, begin)
    if any(limit is not None for limit in (budget.tokens, budget.steps, budget.epochs)):
        # whether the time ends before is not worth the seconds of a plan
        budget = budget.model_copy(update={"time": None})
        recipe = recipe.model_copy(update={"train": train.model_copy(update={"budget": budget})})
    elif budget.time is not None and budget.time > _UNPLANNED_SECONDS:
        workload = with_precision(work, machine().device).workload
        seconds = machine().choose(workload, None).step_seconds
        check_first_step(seconds, budget.time)
    reach = forecast_budget(
        budget, work.dataset, batch_size=train.batch_size, row_tokens=work.row_tokens, step_seconds=seconds
    )
    checked = check_pretraining(
        recipe,
        objective,
        reach,
        lambda sized: pretraining_work(sized, corpus, None),
        machine,
        from_scratch=begin is None,
    )
    if checked.forecast is not None and (summary := checked.forecast.summary()) is not None:
        display.task("forecast", total=1.0).update(1.0, note=summary)
    for warning in checked.warnings:
        logger.warning(warning)
    return checked


def _mixes_documents(recipe: PretrainRecipe) -> bool:
    """Whether documents that are packed into a row see each other."""
    return recipe.objective.packs and not recipe.backbone.attention.supports_packing


def _order(objective: PretrainingObjective) -> Order:
    if isinstance(objective, StatefulCausalLM):
        return "in_order"
    return "shuffled" if objective.packs else "bucketed"


def pretraining_work(recipe: PretrainRecipe, corpus: Corpus, begin: Start | None) -> Work:
    """What the recipe is to train on ``corpus``, to be planned.

    Raises:
        UserError: it cannot be built.
    """
    recipe, tokenizer = with_backbone(recipe, corpus.tokenizer, begin), corpus.tokenizer
    rows, _ = pretraining_rows(recipe, corpus)
    build = seeded(lambda: recipe.objective.build(_config(recipe, begin), tokenizer), recipe.train.seed)
    lighter = recipe.objective.lighter if isinstance(recipe.objective, BiLM) else ""
    return build_work(
        rows,
        recipe.objective.collate(tokenizer),
        build,
        recipe.train,
        sorted_=not recipe.objective.packs,
        lighter=lighter,
    )


def with_backbone(recipe: PretrainRecipe, tokenizer: Tokenizer, begin: Start | None) -> PretrainRecipe:
    """With the backbone as it is trained: drawn, or begun from, and of the tokenizer's vocabulary."""
    length = recipe.data.length
    backbone = with_vocabulary(
        _with_seed(recipe.backbone, recipe.train.seed) if begin is None else begin.backbone,
        tokenizer,
        length,
        target_length=recipe.objective.target_length(length),
    )
    return recipe.model_copy(update={"model": backbone})


def _config(recipe: PretrainRecipe, begin: Start | None) -> ModelConfig:
    return ModelConfig(backbone=recipe.backbone) if begin is None else begin.config


def _with_seed(backbone: BackboneConfig, seed: int) -> BackboneConfig:
    """The backbone; what its attention draws once comes from the run's seed, unless it has its own."""
    if backbone.is_recurrent:
        return backbone
    if not backbone.has_decoder:
        return backbone if "seed" in backbone.model_fields_set else backbone.model_copy(update={"seed": seed})
    if "seed" in backbone.encoder.model_fields_set or backbone.encoder.is_recurrent:
        return backbone
    stacks = {"encoder": backbone.encoder, "decoder": backbone.decoder}
    return backbone.model_copy(update={name: stack.model_copy(update={"seed": seed}) for name, stack in stacks.items()})


def with_vocabulary(
    backbone: BackboneConfig, tokenizer: Tokenizer, length: int, *, target_length: int = 0
) -> BackboneConfig:
    """The backbone's config with the tokenizer's vocabulary, if it can read rows of ``length`` tokens.

    A vocabulary larger than the tokenizer's stays: released checkpoints are often padded to a round number.

    Args:
        backbone: as it is given.
        tokenizer: of the text.
        length: tokens in a row.
        target_length: tokens that its decoder is to write, at the most.

    Raises:
        UserError: rows longer than the model, a vocabulary smaller than the tokenizer's, or no padding of its own for a
            model that reads both ways: the token in its place would not be learned.
    """
    if isinstance(backbone, EncoderConfig) and not backbone.causal and "pad" not in tokenizer.roles:
        raise UserError(
            "the tokenizer names no padding, which a model that reads both ways needs; name one as pad_token in its "
            "tokenizer_config.json"
        )
    if 0 < backbone.vocab_size < tokenizer.vocab_size:
        raise UserError(
            f"model.vocab_size={backbone.vocab_size}, but the tokenizer has {tokenizer.vocab_size} tokens; leave it out"
        )
    if length > backbone.max_position_embeddings:
        raise UserError(
            f"rows of data.length={length} tokens exceed max_position_embeddings={backbone.max_position_embeddings}; "
            f"lower the one or raise the other"
        )
    if backbone.has_decoder and target_length > backbone.decoder.max_position_embeddings:
        raise UserError(
            f"of rows of data.length={length} tokens a decoder has up to {target_length} to write, which exceeds its "
            f"max_position_embeddings={backbone.decoder.max_position_embeddings}; lower data.length or set "
            f"model.decoder.max_position_embeddings={target_length}"
        )
    size = max(backbone.vocab_size, tokenizer.vocab_size)
    return backbone.with_tokens(size, tokenizer.pad_id)


def pretraining_rows(recipe: PretrainRecipe, corpus: Corpus) -> tuple[Rows, Rows]:
    """Training and held-out rows; whole documents are held out, so that none is on both sides.

    Raises:
        UserError: less text than one row.
    """
    data, seed = recipe.data, recipe.train.seed
    training, held_out = corpus.split(data.validation, data.split_seed)
    tokens = int(corpus.lengths[training].sum())
    if tokens < data.length:
        raise UserError(
            f"{tokens:,} tokens to train on do not fill one row of data.length={data.length}; give more text"
        )
    rows = recipe.objective.rows(corpus, training, length=data.length, seed=seed)
    validation = recipe.objective.rows(corpus, held_out, length=data.length, seed=data.split_seed)
    if _mixes_documents(recipe):
        rows, validation = UnsegmentedRows(rows), UnsegmentedRows(validation)
    return rows, FirstRows(validation, data.validation_rows)


class FirstRows:
    """At most the first ``count`` of some rows."""

    def __init__(self, rows: Rows, count: int) -> None:
        self.rows = rows
        self.lengths: np.ndarray = rows.lengths[:count]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]
