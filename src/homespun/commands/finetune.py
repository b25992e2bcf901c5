"""Fine-tuning, whole: a pretrained model and examples in, a measured model beside its baselines out."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from homespun.commands.error_analysis import describe_leakage, find_leakage, summarize_leakage, top_errors
from homespun.commands.lengths import task_lengths
from homespun.commands.memory import fit_memory
from homespun.commands.processes import processes_to_start, run_in_processes
from homespun.commands.provenance import create_run, identify_model, identify_vectors, restore_settings
from homespun.commands.recipe import FinetuneRecipe
from homespun.commands.result import summarise, watch
from homespun.commands.trials import Trial, average_metrics, copy_model, plan_trials, write_run_predictions
from homespun.commands.workload import finetuning_work, typical_batch
from homespun.data.loader import Loader
from homespun.hf.export import export_run
from homespun.hf.heads import dropped_head_warning
from homespun.hf.open import open_for_training
from homespun.metrics.classification import Metrics
from homespun.metrics.registry import check_best_metric
from homespun.models.bundle import ModelBundle, load_weights, save_model
from homespun.models.scalar_mix import summarize_mix
from homespun.planning.rates import flops_per_token
from homespun.report.console import Display
from homespun.report.page import write_report
from homespun.tasks.protocol import CalibratedTask, Task, TrainingSetup, validate
from homespun.text.tokenizer import Tokenizer
from homespun.training.config import TrainConfig
from homespun.training.devices import DistributedContext
from homespun.training.run import Run
from homespun.training.trainer import Trainer
from homespun.training.validation import EvalResult
from homespun.vectors.embedding_init import init_embeddings
from homespun.vectors.store import open_vectors

logger = logging.getLogger(__name__)


def finetune(
    recipe: FinetuneRecipe,
    out: str | Path,
    *,
    start_from: str,
    vectors: str | Path | None = None,
    resume: bool = False,
    display: Display | None = None,
) -> dict[str, Any]:
    """Fine-tune ``start_from`` as ``recipe`` says, into the run directory ``out``; returns its ``result.json``.

    With several seeds, folds or numbers of examples each is a run of its own under ``out/trials``, and ``out/model`` is
    that of the trial whose validation was best, among those of the most examples. Without a test set the measures are
    those of the validation examples, which also chose the checkpoint: ``measured_on`` says so.

    Raises:
        UserError: data that cannot be used, a model that cannot be opened or does not fit, an interrupted run.
    """
    display = display or Display(json=True)
    if (count := processes_to_start(recipe.train)) > 1:
        return run_in_processes(
            count, finetune, recipe, out, display=display, start_from=start_from, vectors=vectors, resume=resume
        )
    context = DistributedContext.join()
    recipe = restore_settings(recipe, out, main=context.is_main) if resume else recipe
    data = recipe.data
    everything = data.read("train")
    assert everything is not None
    stored = open_for_training(start_from)
    opened = None if vectors is None else open_vectors(vectors)
    inputs = {"--from": identify_model(start_from, stored), "--vectors": identify_vectors(vectors, opened)}
    initialized = None
    if opened is not None:
        initialized = init_embeddings(stored.model, stored.tokenizer, opened, source=str(vectors))
    task = data.task(recipe.objective, stored, everything)
    test = data.read("test")
    trials = plan_trials(recipe, task, everything, data.read("validation"), test)

    most = max(trial.size or 0 for trial in trials)
    largest = [trial for trial in trials if (trial.size or 0) == most]
    found = find_leakage(task, largest) if context.is_main else {}
    if leakage := describe_leakage(found):
        logger.warning("%s", leakage)
    ready = None if resume else _ready(recipe, trials[0], task, stored, display)  # or a mistake leaves a run behind
    if ready is not None and context.is_main and (left := dropped_head_warning(ready.setup.export_model()[1])):
        logger.warning("%s", left)
    run = create_run(out, recipe, inputs, resume=resume, main=context.is_main)
    results: list[dict[str, Any]] = []
    for trial in trials:
        alone = len(trials) == 1
        trial_recipe = _of_trial(recipe, trial)
        folder = run.path / "trials" / trial.name
        trial_run = run if alone else Run.create(folder, trial_recipe, resume=resume, main=context.is_main)
        finished = trial_run.path / "result.json"
        if not alone and finished.is_file():
            results.append(json.loads(finished.read_text(encoding="utf-8")))
            continue
        ready = ready or _ready(recipe, trial, task, stored, display)
        trained = _train(trial_recipe, trial, task, stored.tokenizer, ready, trial_run, context, display, start_from)
        results.append(trained)
        ready = None
        if not alone:
            trial_run.write_result(results[-1])
    if not context.is_main:
        return {}

    chosen = [(trial, result) for trial, result in zip(trials, results, strict=True) if (trial.size or 0) == most]
    folders = [run.path if len(trials) == 1 else run.path / "trials" / trial.name for trial in largest]
    first, best = chosen[0][0], max((result for _, result in chosen), key=lambda result: result["score"])
    measured = [result["test"] for _, result in chosen]
    final = dict(best["summary"]) | {
        "name": run.path.name,
        "start_from": str(start_from),
        "task": recipe.objective.kind,
        "measures": list(task.reported_metrics),
        **task.result_fields(),
        "rows": {"train": len(first.training), "validation": len(first.validation), "test": len(first.test or ())},
        **{name: max(result["counts"][name] for result in results) for name in results[0]["counts"]},
        "measured_on": "folds" if recipe.folds else "test" if test is not None else "validation",
        "test": average_metrics(measured),
        "seeds": measured if len(measured) > 1 else [],
        "tuning": best.get("tuning", {}),
        "calibration": best["test"].get("calibration", {}),
        "overlap": summarize_leakage(found, task, largest, folders),
        "most_wrong": best.get("most_wrong", []),
        "lengths": task_lengths(task, stored.tokenizer, {"train": everything} | ({"test": test} if test else {})),
        "seconds_all": sum(result["summary"]["seconds"] or 0.0 for result in results),
    }
    if len(trials) > 1:
        copy_model(run.path, run.path / "trials" / str(best["trial"]))
    baselines: dict[int, dict[str, Metrics]] = {}
    if recipe.baselines:
        line = display.task("baselines", total=1.0)
        baselines = _baselines(task, trials, run.path)
        final["baselines"] = baselines[most]
        line.update(1.0)
    if recipe.examples is not None:
        final["curve"] = _curve(trials, results, baselines)
    if initialized is not None:
        final["vectors"] = initialized.summary()
    run.write_result(final)
    write_report([run.path], run.path / "report", title=f"Fine-tuning: {run.path.name}")
    return final


def _of_trial(recipe: FinetuneRecipe, trial: Trial) -> FinetuneRecipe:
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"seed": trial.seed})})


@dataclass(frozen=True)
class _Ready:
    """A trial that may begin: its training within the memory given, its rows by part, its model under its head."""

    config: TrainConfig
    planned: dict[str, Any] | None
    parts: list[Any]
    setup: TrainingSetup


def _ready(recipe: FinetuneRecipe, trial: Trial, task: Task[Any, Any], stored: ModelBundle, display: Display) -> _Ready:
    train = _of_trial(recipe, trial).train
    parts = [task.rows(part) for part in (trial.training, trial.validation, trial.test) if part is not None]
    truth = getattr(parts[1], "targets", getattr(parts[1], "numbers", None))
    check_best_metric(train.best_metric, recipe.objective.kind, recipe.objective.metrics, task.labels, truth)
    work = partial(finetuning_work, task, recipe.objective, stored, parts[0], train)
    config, planned = fit_memory(train, work, display)
    torch.manual_seed(config.seed)
    return _Ready(config, planned, parts, task.training_setup(recipe.objective, stored, parts[0]))


def _train(
    recipe: FinetuneRecipe,
    trial: Trial,
    task: Task[Any, Any],
    tokenizer: Tokenizer,
    ready: _Ready,
    run: Run,
    context: DistributedContext,
    display: Display,
    start_from: str,
) -> dict[str, Any]:
    config, planned, parts, setup = ready.config, ready.planned, ready.parts, ready.setup
    validation, objective = parts[1], setup.objective
    loader = Loader(
        setup.rows,
        setup.collate,
        batch_size=config.batch_size,
        micro_batch_size=config.micro_batch_size,
        seed=config.seed,
        rank=context.rank,
        world_size=context.world_size,
        workers=config.workers,
        order="bucketed",
    )

    counted = (
        flops_per_token(objective, typical_batch(setup.rows, setup.collate, config.seed)) if context.is_main else None
    )

    def rows_that_fit() -> int:
        return trainer.loader.micro_batch_size or config.batch_size

    def evaluate() -> EvalResult:
        was_training = objective.training
        evaluation = validate(task, recipe.objective, setup, validation, batch_size=rows_that_fit())
        objective.train(was_training)
        return evaluation

    trainer = Trainer(objective, loader, config, run, validate=evaluate)
    watch(trainer, display, f"fine-tuning {run.path.name}")
    context.wait()  # the main process writes the checkpoints that all read now
    best = run.best_checkpoint()
    if best is not None:
        load_weights(objective, best.tensors("model"), source=str(best.path))
    model, model_config = setup.export_model()
    if not context.is_main:
        return {"counts": {}, "score": 0.0}
    calibrated = CalibratedTask(task, {})
    if setup.calibrate is not None and trial.test is not None:
        calibrated = setup.calibrate(validation, recipe.tuning, rows_that_fit())
    save_model(
        run.path / "model", model, model_config, tokenizer, labels=task.labels, task=calibrated.task.to_metadata()
    )
    exported = export_run(run.path, model, model_config, tokenizer, labels=task.labels, base_model=start_from)
    chosen = evaluate()
    measured = calibrated.task.measure(setup.model, parts[-1], batch_size=rows_that_fit())
    write_run_predictions(run.path, "model", trial.measured_rows, measured.predictions)
    size = sum(p.numel() for p in model.parameters())
    summary = summarise(
        run.path, kind="finetune", parameters=size, precision=trainer.precision, flops_per_token=counted
    )
    return {
        "trial": trial.name,
        "score": chosen.score(config.best_metric),
        "summary": summary
        | ({"plan": planned} if planned else {})
        | summarize_mix(model.head)
        | {"export": exported, "validation_metrics": chosen.metrics},
        "test": measured.metrics,
        "tuning": calibrated.result,
        "most_wrong": top_errors(task, trial, measured.predictions),
        "counts": {name: sum(rows.counts[name] for rows in parts) for name in parts[0].counts},
    }


def _baselines(task: Task[Any, Any], trials: Sequence[Trial], out: Path) -> dict[int, dict[str, Metrics]]:
    """The baselines' metrics by number of examples, over the folds; what they said beside what the models said."""
    measured: dict[int, list[Mapping[str, Metrics]]] = {}
    for _, found in groupby(trials, key=lambda trial: (trial.fold, trial.size)):
        group = list(found)
        first = group[0]
        report = task.baselines(first.baseline_examples, first.validation if first.test is None else first.test)
        for trial in group:
            folder = out if len(trials) == 1 else out / "trials" / trial.name
            for name, baseline in report.items():
                write_run_predictions(folder, name, trial.measured_rows, baseline.predictions)
        measured.setdefault(first.size or 0, []).append({name: line.metrics for name, line in report.items()})
    return {
        size: {name: average_metrics([report[name] for report in reports]) for name in reports[0]}
        for size, reports in measured.items()
    }


def _curve(
    trials: Sequence[Trial], results: Sequence[Mapping[str, Any]], baselines: Mapping[int, Mapping[str, Metrics]]
) -> list[dict[str, Any]]:
    """What came of each number of examples: the models' metrics, and the baselines' with as many."""
    curve = []
    for size in sorted({trial.size or 0 for trial in trials}):
        measured = [r["test"] for trial, r in zip(trials, results, strict=True) if trial.size == size]
        lines = {name: _plain(metrics) for name, metrics in baselines.get(size, {}).items()}
        curve.append(
            {
                "examples": size,
                "test": _plain(average_metrics(measured)),
                "seeds": [_plain(metrics) for metrics in measured] if len(measured) > 1 else [],
                "baselines": lines,
            }
        )
    return curve


def _plain(metrics: Metrics) -> Metrics:
    """Without the tables by class."""
    return {name: value for name, value in metrics.items() if isinstance(value, int | float) or name == "std"}
