"""Preparation, training and evaluation of one trial of a fine-tuning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from pydantic import BaseModel

from homespun.commands.error_analysis import notable_predictions
from homespun.commands.machine import fit_memory
from homespun.commands.recipe import FinetuneRecipe, with_train
from homespun.commands.result import summarise, watch
from homespun.commands.trials import Trial, write_run_predictions
from homespun.commands.workload import finetuning_work, training_loader, typical_batch
from homespun.config import Tree
from homespun.data.loader import Loader
from homespun.hf.export import export_run
from homespun.metrics.classification import Metrics, scalars
from homespun.metrics.registry import check_best_metric
from homespun.models.bundle import ModelBundle, load_weights, save_model
from homespun.models.composite_heads import summarize_mix
from homespun.planning.rates import flops_per_token
from homespun.report.console import Display
from homespun.tasks.protocol import CalibratedTask, Task, TaskObjective, TaskRows, TrainingSetup
from homespun.training.config import TrainConfig
from homespun.training.devices import DistributedContext
from homespun.training.run import Run
from homespun.training.step import check_sharding
from homespun.training.trainer import Trainer
from homespun.training.validation import EvalResult, evaluate_loss


class TrialResult(BaseModel):
    """``result.json`` of one trial."""

    trial: str = ""  # name of the trial
    score: float = 0.0  # best validation metric, higher is better
    summary: Tree = {}  # fields that the result of the run takes from the best trial
    test: Metrics = {}
    decision_rule: Tree = {}  # temperature and thresholds chosen on the validation examples
    top_errors: list[Tree] = []  # predictions with the largest losses
    most_confident: list[Tree] = []  # right predictions with the smallest losses
    counts: dict[str, int] = {}  # counts of rows, such as truncated inputs, over all parts


@dataclass(frozen=True)
class ModelSource:
    """Pretrained model and its name in the options."""

    name: str
    stored: ModelBundle


@dataclass(frozen=True)
class PreparedTrial:
    """Trial that is ready to train."""

    recipe: FinetuneRecipe  # with the seed of the trial
    trial: Trial
    config: TrainConfig  # training settings, with the micro-batches that fit into memory
    plan: Mapping[str, object]  # choices for a memory limit; empty without one
    parts: list[TaskRows]  # rows for training, validation and, if there are test examples, test
    setup: TrainingSetup


def prepare_trial(
    recipe: FinetuneRecipe, trial: Trial, task: Task[object, TaskRows], stored: ModelBundle, display: Display
) -> PreparedTrial:
    """Make the rows of a trial and build its model.

    Raises:
        UserError: the task does not fit the model, its model cannot be sharded, or no micro-batch fits the memory
            limit.
    """
    recipe = with_train(recipe, seed=trial.seed)
    parts = [task.rows(part) for part in (trial.training, trial.validation, trial.test) if part is not None]
    truth = getattr(parts[1], "targets", getattr(parts[1], "numbers", None))
    check_best_metric(recipe.train.best_metric, recipe.objective.kind, recipe.objective.metrics, task.labels, truth)
    work = partial(finetuning_work, task, recipe.objective, stored, parts[0], recipe.train)
    config, plan = fit_memory(recipe.train, work, display)
    torch.manual_seed(config.seed)
    setup = task.training_setup(recipe.objective, stored, parts[0])
    check_sharding(setup.objective, config)
    return PreparedTrial(recipe, trial, config, plan, parts, setup)


def train_trial(
    prepared: PreparedTrial, task: Task[object, TaskRows], start_from: ModelSource, run: Run, display: Display
) -> TrialResult:
    """Train, load the best checkpoint, save the model and evaluate it; empty in all processes but the first.

    Raises:
        UserError: the training was interrupted.
    """
    config, setup, context = prepared.config, prepared.setup, DistributedContext.join()
    loader = training_loader(setup.rows, setup.collate, config, context, order="bucketed")
    batch = typical_batch(setup.rows, setup.collate, config.seed)
    flops = flops_per_token(setup.objective, batch) if context.is_main else None

    def evaluate() -> EvalResult:
        rows, objective = prepared.parts[1], prepared.recipe.objective
        return _validate(task, objective, setup, rows, batch_size=rows_that_fit(trainer))

    trainer = Trainer(setup.objective, loader, config, run, validate=evaluate)
    watch(trainer, display, f"fine-tuning {run.path.name}")
    context.wait()  # for the main process, which writes the checkpoints
    best = run.best_checkpoint()
    if not context.is_main:  # only the main process evaluates: it has all weights
        return TrialResult()
    if best is not None:
        load_weights(setup.objective, best.tensors("model"), source=str(best.path))
    return _evaluate(prepared, task, start_from, run, trainer, evaluate, flops)


def rows_that_fit(trainer: Trainer) -> int:
    """Return the micro-batch size of the training, which fits into memory."""
    return trainer.loader.micro_batch_size or trainer.config.batch_size


def _evaluate(
    prepared: PreparedTrial,
    task: Task[object, TaskRows],
    start_from: ModelSource,
    run: Run,
    trainer: Trainer,
    evaluate: Callable[[], EvalResult],
    flops: float | None,
) -> TrialResult:
    """Calibrate, save, export and measure the trained model."""
    setup, trial, parts = prepared.setup, prepared.trial, prepared.parts
    model, config = setup.objective.export_model()
    calibrated = CalibratedTask(task, {})
    if setup.calibrate is not None and trial.test is not None:
        calibrated = setup.calibrate(parts[1], prepared.recipe.calibration, rows_that_fit(trainer))
    tokenizer, labels = start_from.stored.tokenizer, task.labels
    save_model(run.path / "model", model, config, tokenizer, labels=labels, task=calibrated.task.to_metadata())
    export = export_run(run.path, ModelBundle(model, config, tokenizer, labels), base_model=start_from.name)
    measured = calibrated.task.measure(setup.objective.model, parts[-1], batch_size=rows_that_fit(trainer))
    # without test examples, those of the validation were just measured
    validation = evaluate() if trial.test is not None else _validation_of(measured.metrics, setup) or evaluate()
    write_run_predictions(run.path, "model", trial.measured_rows, measured.predictions)
    size = sum(p.numel() for p in model.parameters())
    summary: Tree = summarise(
        run.path, kind="finetune", parameters=size, precision=trainer.precision, flops_per_token=flops
    )
    summary |= {"plan": prepared.plan} if prepared.plan else {}
    summary |= summarize_mix(model.head) | {"export": export, "validation_metrics": validation.metrics}
    return TrialResult(
        trial=trial.name,
        score=validation.score(prepared.config.best_metric),
        summary=summary,
        test=measured.metrics,
        decision_rule=calibrated.result,
        counts={name: sum(rows.counts[name] for rows in parts) for name in parts[0].counts},
        **notable_predictions(task, trial, measured.predictions),
    )


def _validate(
    task: Task[object, TaskRows], objective: TaskObjective, setup: TrainingSetup, rows: TaskRows, *, batch_size: int
) -> EvalResult:
    """Compute the loss and, if the objective has any, the metrics on the validation rows, to select the checkpoint."""
    metrics = task.measure(setup.objective.model, rows, batch_size=batch_size).metrics if objective.metrics else {}
    if (validation := _validation_of(metrics, setup)) is not None:
        return validation
    labelled = rows if setup.labelled_rows is None else setup.labelled_rows(rows)
    loader = Loader(labelled, setup.collate, batch_size=batch_size, seed=0)
    evaluated = evaluate_loss(setup.objective, loader.once(), next(setup.objective.parameters()).device)
    return replace(evaluated, metrics=scalars(metrics))


def _validation_of(metrics: Metrics, setup: TrainingSetup) -> EvalResult | None:
    """Return the result of a validation by its metrics; ``None`` if its loss is not among them."""
    if setup.loss_from_metrics is None:
        return None
    loss = setup.loss_from_metrics(metrics)
    return EvalResult(loss, {"loss": loss}, scalars(metrics))
