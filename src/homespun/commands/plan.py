"""Prediction of memory, time and trained tokens of a recipe on this machine."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

from pydantic_core import to_jsonable_python

from homespun.commands.machine import Machine, WorkFactory, choice_to_dict, size_to_dict, with_precision, with_size
from homespun.commands.parallel import Cluster, plan_parallel, training_totals
from homespun.commands.preflight import check_pretraining, training_warnings
from homespun.commands.probe import LinearFit, ProbeJob, ProbeResult, probe_sizes, run_probe
from homespun.commands.recipe import FinetuneRecipe, PretrainRecipe, with_train
from homespun.commands.trials import plan_trials
from homespun.commands.workload import Work, finetuning_work, made_up_corpus, open_data, pretraining_work
from homespun.config import Tree, parse_bytes, parse_count, parse_duration, parse_option
from homespun.errors import UserError, quantity
from homespun.hf.open import open_model
from homespun.planning.budget import BudgetForecast, DatasetSize, epochs_warning, forecast_budget, step_warning
from homespun.planning.predict import Choice, Prediction, Workload, choose
from homespun.planning.tracer import StepTracer
from homespun.recipes import require_start
from homespun.report.console import SILENT, Display
from homespun.training.config import Budget

Recipe = PretrainRecipe | FinetuneRecipe


def plan(
    recipe: Recipe,
    *,
    memory: str | int | None = None,
    time: str | float | None = None,
    tokens: str | int | None = None,
    steps: str | int | None = None,
    probe: bool = False,
    start_from: str | None = None,
    changes: Mapping[str, object] | None = None,
    cluster: Cluster | None = None,
    display: Display = SILENT,
) -> Tree:
    """Predict memory, time and number of tokens of a training, and choose micro-batches.

    ``time``, ``tokens`` and ``steps`` replace the budget of the recipe if one of them is given.

    Args:
        recipe: see `homespun.commands.recipe.load_recipe`. Without a corpus, pretraining is planned on random text.
        memory: limit of the peak memory in bytes, or a string such as ``"12GB"``; default: the recipe's.
        time: budget in seconds, or a string such as ``"10h"``.
        tokens: budget in tokens, or a string such as ``"10M"``.
        steps: budget in optimizer steps, or a string such as ``"250k"``.
        probe: correct the prediction with a few real steps, measured in new processes.
        start_from: checkpoint to start from; required for fine-tuning.
        changes: changes to its backbone, as in `homespun.commands.pretrain.pretrain`.
        cluster: devices to plan for as well; ``memory`` is then the limit of each.
        display: where progress is shown; nowhere by default.

    Returns:
        Plain values, described in ``docs/planning.md``.

    Example:
        ``plan(load_recipe("spun-decoder"), memory="12GB", time="10h")["expected"]["tokens"]``

    Raises:
        UserError: the recipe is invalid, a limit is not a positive number, or nothing fits into the memory limit.
    """
    budget = _budget(recipe.train.budget, memory=memory, time=time, tokens=tokens, steps=steps)
    recipe = with_train(recipe, budget=budget)
    if cluster is not None:
        cluster.check_batch(recipe.train.batch_size)
    machine = Machine.here()
    line = display.task("planning passes", total=None)
    passes = itertools.count(1)
    with ExitStack() as stack:
        size = None

        def work_of(sized: Recipe) -> Work:
            return stack.enter_context(recipe_work(sized, start_from=start_from, changes=changes))

        if isinstance(recipe, PretrainRecipe) and start_from is None:
            recipe, size = with_size(recipe, lambda: machine, work_of, display)
        work = work_of(recipe)

        def on_pass(rows: int) -> None:
            line.update(next(passes), note=f"of {quantity(rows, 'row')}")

        work = dataclasses.replace(work, workload=dataclasses.replace(work.workload, on_pass=on_pass))
        work = with_precision(work, machine.device)
        choice = machine.choose(work.workload, budget.memory if cluster is None else None)
        shared = None
        if cluster is not None:
            shared = plan_parallel(work, cluster, machine.rates, machine.device, budget.memory)
        result = (
            _correct(recipe, work, choice, machine, _probe(recipe, choice, start_from, changes))
            if probe
            else _describe(recipe, work, choice, machine)
        )
        if cluster is not None and shared is not None and result["expected"]["limit"] != "time":
            shared = training_totals(shared, cluster, result["trainings"]["steps"])
        return (
            result
            | _check(recipe, work, result, work_of, machine, from_scratch=start_from is None)
            | {"size": None if size is None else size_to_dict(size), "parallel": shared}
        )


@contextmanager
def recipe_work(recipe: Recipe, *, start_from: str | None, changes: Mapping[str, object] | None) -> Iterator[Work]:
    """Yield the workload of a recipe on its data; without a corpus, that of pretraining on random text.

    Raises:
        UserError: the recipe is invalid.
    """
    if isinstance(recipe, FinetuneRecipe):
        start_from = require_start(start_from, changes)
        everything = recipe.data.read("train")
        assert everything is not None
        stored = open_model(start_from)
        task = recipe.data.task(recipe.objective, stored, everything)
        trials = plan_trials(recipe, task, everything, recipe.data.read("validation"), recipe.data.read("test"))
        largest = max((trial.training for trial in trials), key=len)
        work = finetuning_work(task, recipe.objective, stored, task.rows(largest), recipe.train)
        yield dataclasses.replace(work, shares=[len(trial.training) / len(largest) for trial in trials])
    elif changes and start_from is None:
        raise UserError("changes to a checkpoint need --from, the checkpoint")
    elif recipe.data.corpus:
        yield pretraining_work(recipe, *open_data(recipe, start_from, changes))
    else:
        if start_from is not None:
            raise UserError("--from needs data.corpus=FOLDER, a corpus with the tokenizer of the model")
        with made_up_corpus(recipe) as corpus:
            work = pretraining_work(recipe, corpus, None)
            yield dataclasses.replace(work, made_up=True, dataset=DatasetSize(None, None))


def _budget(
    budget: Budget,
    *,
    memory: str | int | None,
    time: str | float | None,
    tokens: str | int | None,
    steps: str | int | None,
) -> Budget:
    given: dict[str, float | None] = {
        "time": parse_option(parse_duration, time, "--time"),
        "tokens": parse_option(parse_count, tokens, "--tokens"),
        "steps": parse_option(parse_count, steps, "--steps"),
    }
    limit = parse_option(parse_bytes, memory, "--memory") or budget.memory
    if all(value is None for value in given.values()):
        return budget.model_copy(update={"memory": limit})
    for name, value in given.items():
        if value is not None and value <= 0:
            raise UserError(f"--{name} must be positive, not {value}")
    return Budget.model_validate(given | {"memory": limit})


def _describe(recipe: Recipe, work: Work, choice: Choice, machine: Machine) -> Tree:
    prediction, budget = choice.prediction, recipe.train.budget
    tokens = prediction.rows * prediction.tokens
    names = {"forward": prediction.flops_forward, "backward": prediction.flops_backward}
    per_token = {name: value / tokens for name, value in names.items()}
    expected, *trainings = _expected(budget, work, prediction, choice.step_seconds)
    warnings = [epochs_warning(budget, work.dataset.with_row_tokens(prediction.tokens)), step_warning(budget, expected)]
    if recipe.train.processes not in (1, "auto"):
        warnings.append("the plan is for one process, not train.processes; give --gpus")
    return {
        "kind": recipe.kind,
        "device": machine.device.type,
        "parameters": prediction.parameters,
        "chosen": choice_to_dict(choice) | {"batch_size": recipe.train.batch_size},
        "memory": {"limit": budget.memory, "peak": prediction.memory.peak} | asdict(prediction.memory),
        "flops_per_token": per_token | {"total": sum(per_token.values())},
        "tokens_per_row": prediction.tokens,
        "seconds_per_step": choice.step_seconds,
        "expected": asdict(expected),
        "trainings": {"count": len(trainings)}
        | {name: sum(getattr(training, name) for training in trainings) for name in ("steps", "tokens", "seconds")},
        "made_up_text": work.made_up,
        "warnings": [warning for warning in warnings if warning is not None],
        "probe": None,
    }


def _check(
    recipe: Recipe, work: Work, planned: Tree, work_of: WorkFactory, machine: Machine, *, from_scratch: bool
) -> Tree:
    """Warnings of a plan and of `homespun.commands.preflight`, and the loss forecast of a pretraining."""
    reach = BudgetForecast(**planned["expected"])
    with StepTracer():
        objective: Any = work.workload.build()
    if not isinstance(recipe, PretrainRecipe):
        warnings = training_warnings(recipe.train, objective, reach.steps)
        return {"warnings": [*planned["warnings"], *warnings], "forecast": None}
    _, config = objective.export_model()
    checked = check_pretraining(recipe, objective, config, reach, work_of, lambda: machine, from_scratch=from_scratch)
    return {
        "warnings": [*planned["warnings"], *checked.warnings],
        "forecast": None if checked.forecast is None else checked.forecast.to_dict(),
    }


def _expected(budget: Budget, work: Work, prediction: Prediction, step_seconds: float) -> list[BudgetForecast]:
    """Forecast of the planned training, followed by those of all trainings of the recipe."""
    batch = work.workload.train.batch_size
    datasets = [work.dataset.scaled(share) for share in (1.0, *work.shares)]
    return [
        forecast_budget(budget, dataset, batch_size=batch, row_tokens=prediction.tokens, step_seconds=step_seconds)
        for dataset in datasets
    ]


def _probe(
    recipe: Recipe, choice: Choice, start_from: str | None, changes: Mapping[str, object] | None
) -> list[ProbeResult]:
    """Measure one or two sizes of micro-batches, in new processes."""
    tree, chosen = recipe.model_dump(mode="json"), choice_to_dict(choice)
    tree["train"] |= {name: chosen[name] for name in ("gradient_checkpointing", "precision")}
    return [
        run_probe(
            ProbeJob(
                recipe=tree,
                rows=rows,
                start_from=start_from,
                changes=to_jsonable_python(changes),
                accumulate=choice.accumulation > 1,
            )
        )
        for rows in probe_sizes(choice.rows)
    ]


def _correct(recipe: Recipe, work: Work, choice: Choice, machine: Machine, points: Sequence[ProbeResult]) -> Tree:
    """Plan with memory and time corrected by real steps.

    The predicted memory of tensors is scaled by the measured memory of the larger of two probes. A line through both
    probes was measured to be worse: the heap varies by more than two small steps differ. Time is a line through the
    medians of both.
    """
    predicted = machine.predict()
    accumulate = choice.accumulation > 1
    last, expected = points[-1], predicted(choice.workload, points[-1].rows, accumulate)
    seconds = LinearFit.through([point.rows for point in points], [point.seconds for point in points])
    process = expected.memory.process
    ratio = max(0, last.peak_bytes - process) / (expected.memory.peak - process)

    def corrected(workload: Workload, rows: int, accumulate: bool) -> Prediction:
        prediction = predicted(workload, rows, accumulate)
        peak = round(process + ratio * (prediction.memory.peak - process))
        same_checkpointing = workload.train.gradient_checkpointing == choice.workload.train.gradient_checkpointing
        slower = last.seconds / expected.seconds
        return dataclasses.replace(
            prediction,
            memory=dataclasses.replace(prediction.memory, peak=peak),
            seconds=seconds.at(rows) if same_checkpointing else slower * prediction.seconds,
            update_seconds=last.update_seconds,
        )

    limit = recipe.train.budget.memory
    prediction = corrected(choice.workload, choice.rows, accumulate)
    corrected_choice = Choice(choice.workload, choice.rows, prediction)
    if limit is not None and prediction.memory.peak > limit:
        corrected_choice = choose(work.workload, memory=limit, predict=corrected)
    before = _describe(recipe, work, choice, machine)
    return _describe(recipe, work, corrected_choice, machine) | {
        "probe": {
            "points": [point.model_dump(exclude={"predicted_bytes"}) for point in points],
            "peak_before": before["memory"]["peak"],
            "seconds_per_step_before": before["seconds_per_step"],
        }
    }
