"""Fine-tuning of a pretrained model on examples, with baselines, into a run directory."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from homespun.commands.error_analysis import describe_leakage, find_leakage, summarize_leakage
from homespun.commands.preparation import task_lengths
from homespun.commands.processes import processes_to_start, run_in_processes
from homespun.commands.provenance import (
    EXAMPLES,
    RunInputs,
    create_run,
    identify_examples,
    identify_model,
    identify_vectors,
    restore_settings,
)
from homespun.commands.recipe import FinetuneRecipe, with_train
from homespun.commands.result import write_results
from homespun.commands.trial_training import ModelSource, PreparedTrial, TrialResult, prepare_trial, train_trial
from homespun.commands.trials import (
    Trial,
    average_baselines,
    average_metrics,
    copy_model,
    group_baselines,
    largest_trials,
    plan_trials,
    write_run_predictions,
)
from homespun.config import Tree
from homespun.hf.match import own_class_warning
from homespun.hf.open import open_for_training
from homespun.io.json import read_object
from homespun.metrics.classification import Metrics
from homespun.migration import migrate_result
from homespun.report.console import SILENT, Display
from homespun.tasks.protocol import Measured, Task, TaskRows
from homespun.text.duplicates import NearDuplicatePairs
from homespun.training.devices import DistributedContext
from homespun.training.run import Run, holds_run
from homespun.vectors.embedding_init import EmbeddingCoverage, init_embeddings
from homespun.vectors.store import open_vectors

logger = logging.getLogger(__name__)


def finetune(
    recipe: FinetuneRecipe,
    out: str | Path,
    *,
    start_from: str,
    vectors: str | Path | None = None,
    resume: bool = False,
    preflight: bool = True,
    display: Display = SILENT,
) -> Tree:
    """Fine-tune a pretrained model into the run directory ``out``.

    With several seeds, folds or numbers of examples each trial is a run in ``out/trials``, and ``out/model`` is the
    model with the best validation metric among the trials with the most examples. Without test examples the metrics are
    those of the validation examples, which also selected the checkpoint; ``measured_on`` is then ``validation``.

    Args:
        recipe: fine-tuning recipe, see `homespun.commands.recipe.finetune_recipe`.
        out: a new folder; with ``resume`` a run that was stopped.
        start_from: pretrained model: a run, a ``model/`` folder, or a Hugging Face folder or name.
        vectors: word vectors to initialise the embeddings with.
        resume: continue the run in ``out``.
        preflight: look for near-duplicates of training examples (``overlap`` of the result), and log warnings of them
            and of a head that transformers lacks.
        display: where progress is shown; nowhere by default.

    Returns:
        The content of ``result.json``; empty in all processes but the first.

    Example:
        ``finetune(finetune_recipe("classify", ["data.train=train.csv"]), "runs/topics", start_from="runs/base")``

    Raises:
        UserError: the data or the model cannot be used, or the run was interrupted.
    """
    if (count := processes_to_start(recipe.train)) > 1:
        options = {"start_from": start_from, "vectors": vectors, "resume": resume, "preflight": preflight}
        return run_in_processes(count, finetune, recipe, out, display=display, **options)
    context = DistributedContext.join()
    recipe = restore_settings(recipe, out, main=context.is_main) if resume else recipe
    if context.is_main:
        holds_run(Path(out), resume=resume)  # before the inputs are read, which takes minutes for large files
    inputs = read_inputs(recipe, start_from, vectors)
    leakage = find_leakage(inputs.task, inputs.largest) if context.is_main and preflight else {}
    if leakage_warning := describe_leakage(leakage, tested=inputs.test is not None or recipe.folds is not None):
        logger.warning("%s", leakage_warning)
    # before the run directory is created, so that a mistake in the recipe leaves none
    first = None if resume else prepare_trial(recipe, inputs.trials[0], inputs.task, inputs.model.stored, display)
    if first is not None and context.is_main and preflight:
        _, config = first.setup.objective.export_model()
        if head_warning := own_class_warning(config):
            logger.warning("%s", head_warning)
    run = create_run(out, recipe, inputs.identities, resume=resume, main=context.is_main)
    trained = _train_trials(recipe, inputs, run, first, display, resume=resume)
    if not context.is_main:
        return {}
    result = _summarise(recipe, inputs, run, trained, leakage)
    baselines: dict[int, dict[str, Metrics]] = {}
    if recipe.baselines:
        line = display.task("baselines", total=1.0)
        baselines = _measure_baselines(inputs, run.path)
        result["baselines"] = baselines[inputs.largest[0].size]
        line.update(1.0)
    if recipe.train_sizes is not None:
        result["curve"] = _curve(inputs.trials, trained, baselines)
    return write_results(run, result, title="Fine-tuning")


@dataclass(frozen=True)
class FinetuningInputs:
    """Examples, pretrained model and trials."""

    everything: Sequence[object]  # training examples, with the share that is held out for validation
    test: Sequence[object] | None  # test examples; None without data.test
    model: ModelSource
    task: Task[object, TaskRows]  # makes rows of examples and measures predictions
    trials: list[Trial]  # one for each fold, number of examples and seed
    coverage: EmbeddingCoverage | None  # tokens that have a word vector; None without word vectors
    identities: RunInputs  # names and digests of initial weights and examples, by option

    @cached_property
    def largest(self) -> list[Trial]:
        """Trials with the most training examples."""
        return largest_trials(self.trials)

    def folder(self, run: Path, trial: Trial) -> Path:
        """Run directory of a trial: that of the run if there is one trial."""
        return run if len(self.trials) == 1 else run / "trials" / trial.name


def read_inputs(recipe: FinetuneRecipe, start_from: str, vectors: str | Path | None) -> FinetuningInputs:
    """Read the examples, open the model and plan the trials; see `finetune`."""
    everything = recipe.data.read("train")
    assert everything is not None
    stored = open_for_training(start_from)
    opened = None if vectors is None else open_vectors(vectors)
    validation, test = recipe.data.read("validation"), recipe.data.read("test")
    identities = {
        "--from": identify_model(start_from, stored),
        "--vectors": identify_vectors(vectors, opened),
        EXAMPLES: identify_examples(everything, validation or (), test or ()),
    }
    coverage = None
    if opened is not None:
        coverage = init_embeddings(stored.model, stored.tokenizer, opened, source=str(vectors))
    task = recipe.data.task(recipe.objective, stored, everything)
    trials = plan_trials(recipe, task, everything, validation, test)
    return FinetuningInputs(everything, test, ModelSource(start_from, stored), task, trials, coverage, identities)


def _train_trials(
    recipe: FinetuneRecipe,
    inputs: FinetuningInputs,
    run: Run,
    first: PreparedTrial | None,
    display: Display,
    *,
    resume: bool,
) -> list[TrialResult]:
    """Train each trial, or read its result if it is finished; ``first`` is the prepared first trial."""
    results: list[TrialResult] = []
    several, main = len(inputs.trials) > 1, DistributedContext.join().is_main
    for trial in inputs.trials:
        folder, trial_run = inputs.folder(run.path, trial), run
        if several:
            trial_run = Run.create(folder, with_train(recipe, seed=trial.seed), resume=resume, main=main)
        finished = folder / "result.json"
        if several and finished.is_file():
            results.append(TrialResult.model_validate(migrate_result(read_object(finished))))
            continue
        prepared, first = first or prepare_trial(recipe, trial, inputs.task, inputs.model.stored, display), None
        results.append(train_trial(prepared, inputs.task, inputs.model, trial_run, display))
        if several:
            trial_run.write_result(results[-1].model_dump())
    return results


def _summarise(
    recipe: FinetuneRecipe,
    inputs: FinetuningInputs,
    run: Run,
    trained: Sequence[TrialResult],
    leakage: Mapping[int, NearDuplicatePairs],
) -> Tree:
    """Metrics of the trials with the most examples; model, calibration and worst predictions of the best of them."""
    task, test, first = inputs.task, inputs.test, inputs.largest[0]
    chosen = [result for trial, result in zip(inputs.trials, trained, strict=True) if trial.size == first.size]
    best = max(chosen, key=lambda result: result.score)
    if len(trained) > 1:
        copy_model(run.path, run.path / "trials" / best.trial)
    measured = [result.test for result in chosen]
    folders = [inputs.folder(run.path, trial) for trial in inputs.largest]
    parts = {"train": inputs.everything} | ({"test": test} if test else {})
    result = best.summary | {
        "name": run.path.name,
        "start_from": str(inputs.model.name),
        "task": recipe.objective.kind,
        "task_description": recipe.objective.description,
        "count_titles": dict(recipe.objective.count_titles),
        "measures": list(task.reported_metrics),
        **task.result_fields(),
        "rows": {"train": len(first.training), "validation": len(first.validation), "test": len(first.test or ())},
        **{name: max(result.counts[name] for result in trained) for name in trained[0].counts},
        "measured_on": "folds" if recipe.folds else "test" if test is not None else "validation",
        "test": average_metrics(measured),
        "seeds": measured if len(measured) > 1 else [],
        "decision_rule": best.decision_rule,
        "calibration": best.test.get("calibration", {}),
        "top_errors": best.top_errors,
        "most_confident": best.most_confident,
        "lengths": task_lengths(task, inputs.model.stored.tokenizer, parts),
        "seconds_all": sum(result.summary["seconds"] or 0.0 for result in trained),
    }
    if leakage:
        result["overlap"] = summarize_leakage(leakage, task, inputs.largest, folders).model_dump(exclude_unset=True)
    return result if inputs.coverage is None else result | {"vectors": inputs.coverage.summary()}


def _measure_baselines(inputs: FinetuningInputs, run: Path) -> dict[int, dict[str, Metrics]]:
    """Metrics of the baselines by number of examples, averaged over folds; writes predictions into each trial's run."""
    measured: dict[int, list[Mapping[str, Measured]]] = {}
    for group, report in group_baselines(inputs.task, inputs.trials):
        for trial in group:
            for name, baseline in report.items():
                write_run_predictions(inputs.folder(run, trial), name, trial.measured_rows, baseline.predictions)
        measured.setdefault(group[0].size, []).append(report)
    return {size: average_baselines(reports) for size, reports in measured.items()}


def _curve(
    trials: Sequence[Trial], results: Sequence[TrialResult], baselines: Mapping[int, Mapping[str, Metrics]]
) -> list[Tree]:
    """Metrics of models and baselines for each number of training examples."""
    curve = []
    for size in sorted({trial.size for trial in trials}):
        measured = [result.test for trial, result in zip(trials, results, strict=True) if trial.size == size]
        lines = {name: _without_tables(metrics) for name, metrics in baselines.get(size, {}).items()}
        curve.append(
            {
                "examples": size,
                "test": _without_tables(average_metrics(measured)),
                "seeds": [_without_tables(metrics) for metrics in measured] if len(measured) > 1 else [],
                "baselines": lines,
            }
        )
    return curve


def _without_tables(metrics: Metrics) -> Metrics:
    """Numbers and their deviations alone, without tables by class."""
    return {name: value for name, value in metrics.items() if isinstance(value, int | float) or name == "std"}
