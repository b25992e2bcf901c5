"""Checks of budget, model size, optimizer and export before training."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from homespun.commands.adaptation import Start
from homespun.commands.machine import Machine, WorkFactory, size_for, with_precision
from homespun.commands.recipe import PretrainRecipe, with_train
from homespun.commands.workload import Work, mixes_documents, pretraining_work
from homespun.data.corpus import Corpus
from homespun.errors import StepTooLong, quantity
from homespun.hf.export import registered_pipeline
from homespun.hf.match import WITHOUT_HEAD, match_architecture
from homespun.models.config import AutoSizeConfig, BackboneConfig, ModelConfig, is_of_family
from homespun.models.presets import AUTO_SIZE_FAMILIES
from homespun.planning.budget import (
    CURVES,
    BudgetForecast,
    LossForecast,
    epochs_warning,
    forecast_budget,
    forecast_loss,
    in_millions,
)
from homespun.training.config import TrainConfig

_UNPLANNED_SECONDS = 60.0  # shorter time budgets are not planned, because a plan takes seconds
_MIN_TOKENS_PER_PARAMETER = 1.0
_MAX_STEP_RATIO = 2.0  # predicted step / time budget; above it the budget is refused, in spite of prediction errors


def training_warnings(train: TrainConfig, module: nn.Module, steps: int) -> list[str]:
    """Return warnings about the schedule and the optimizer, one line each.

    Tensors without values suffice in ``module``. ``steps`` is the expected number of optimizer steps; 0 if unknown.
    """
    warmup: float = getattr(train.schedule, "warmup", 0.0)
    if not steps or not 0 < warmup * steps < 1:
        return train.optimizer.warnings(module, steps)
    early = (
        f"train.schedule.warmup={warmup:g} is less than one step of a budget of {quantity(steps, 'step')}, so the "
        f"first step has the full learning rate; give at least {math.ceil(1 / warmup):,} steps (homespun fit: raise "
        f"--time)"
    )
    return [early, *train.optimizer.warnings(module, steps)]


@dataclass(frozen=True)
class Preflight:
    """Forecast and warnings of a pretraining before its first step."""

    # None when continuing from a checkpoint, for a model with a decoder, or if the number of tokens is unknown
    forecast: LossForecast | None
    warnings: tuple[str, ...]  # one line each


def check_pretraining(
    recipe: PretrainRecipe,
    objective: nn.Module,
    config: ModelConfig,
    reach: BudgetForecast,
    work: WorkFactory,
    machine: Callable[[], Machine],
    *,
    from_scratch: bool,
) -> Preflight:
    """Check the model, its training and its export for the expected steps and tokens.

    Args:
        recipe: recipe with a known model size, unless it continues from a checkpoint.
        objective: objective of the recipe; tensors without values suffice.
        config: config of the exported model.
        reach: expected totals of the budget; 0 tokens if unknown.
        work, machine: find a size that suits the budget.
        from_scratch: the model has no weights from a checkpoint.
    """
    warnings: list[str | None] = [*training_warnings(recipe.train, objective, reach.steps), export_warning(config)]
    if mixes_documents(recipe):
        kind = recipe.backbone.attention.kind
        warnings.append(f"{kind} attention does not mask packed documents: tokens of a row attend to other documents")
    forecast = None
    if from_scratch and reach.tokens:
        parameters = sum(p.numel() for p in objective.parameters() if p.requires_grad)
        warnings.append(_size_warning(recipe, config.backbone, parameters, reach, work, machine))
        if not recipe.objective.target_length(recipe.data.max_length):
            forecast = forecast_loss(
                config.backbone,
                objective=recipe.objective.kind,
                optimizer=recipe.train.optimizer.kind,
                parameters=parameters,
                reach=reach,
            )
            warnings.append(forecast.warning())
    return Preflight(forecast, tuple(warning for warning in warnings if warning is not None))


def preflight_pretraining(
    recipe: PretrainRecipe,
    objective: nn.Module,
    config: ModelConfig,
    corpus: Corpus,
    start: Start | None,
    machine: Callable[[], Machine],
) -> Preflight:
    """Forecast the steps, tokens and loss of a run, and check its settings, see `check_pretraining`.

    ``machine`` is called only if a step must be timed.

    Raises:
        StepTooLong: see `check_first_step`.
    """
    work = pretraining_work(recipe, corpus, start)
    epochs = epochs_warning(recipe.train.budget, work.dataset)
    recipe = _without_time_limit(recipe)
    checked = check_pretraining(
        recipe,
        objective,
        config,
        _forecast_reach(recipe.train, work, machine),
        lambda sized: pretraining_work(sized, corpus, None),
        machine,
        from_scratch=start is None,
    )
    return Preflight(checked.forecast, checked.warnings if epochs is None else (epochs, *checked.warnings))


def _without_time_limit(recipe: PretrainRecipe) -> PretrainRecipe:
    """Remove the time limit if there is one of tokens or steps, because planning the time takes seconds."""
    budget = recipe.train.budget
    if budget.tokens is None and budget.steps is None:
        return recipe
    return with_train(recipe, budget=budget.model_copy(update={"time": None}))


def _forecast_reach(train: TrainConfig, work: Work, machine: Callable[[], Machine]) -> BudgetForecast:
    budget, seconds = train.budget, None
    if budget.time is not None and budget.time > _UNPLANNED_SECONDS:
        workload = with_precision(work, machine().device).workload
        seconds = machine().choose(workload, None).step_seconds
        check_first_step(seconds, budget.time)
    return forecast_budget(
        budget, work.dataset, batch_size=train.batch_size, row_tokens=work.row_tokens, step_seconds=seconds
    )


def _size_warning(
    recipe: PretrainRecipe,
    backbone: BackboneConfig,
    parameters: int,
    reach: BudgetForecast,
    work: WorkFactory,
    machine: Callable[[], Machine],
) -> str | None:
    ratio = reach.tokens / parameters
    if ratio >= _MIN_TOKENS_PER_PARAMETER:
        return None
    family = next((name for name in AUTO_SIZE_FAMILIES if is_of_family(backbone, name)), None)
    if family is None:  # the size for the compute of this budget, C = 6 N D
        optimal = CURVES[0].law.parameters_for_compute(parameters * reach.tokens)
        suits = f"about {in_millions(optimal)} parameters suit it"
    else:
        chosen = size_for(recipe, AutoSizeConfig(preset=family), machine, work).chosen
        if chosen.parameters >= parameters:
            return None
        suits = f"model.size=auto would choose {chosen.name}, {chosen.shape}"
    return (
        f"a model of {in_millions(parameters)} parameters sees {in_millions(reach.tokens)} tokens in this budget, "
        f"{ratio:.1g} per parameter: {suits}; use a smaller model or a larger budget"
    )


def export_warning(config: ModelConfig) -> str | None:
    """Return a warning if no class of transformers has the exported model; None if one has it."""
    match, notes = match_architecture(config)
    if match is not None and (config.head is None or match.architecture.kind is not None):
        return None
    needs_homespun = match is None or registered_pipeline(config) is not None
    result = "hf/ will need homespun" if needs_homespun else "hf/ will be written without the head"
    return f"{result}: {notes[0].removesuffix(WITHOUT_HEAD)}"


def check_first_step(seconds: float, budget: float) -> None:
    """Refuse a time budget that is too small for one step.

    Raises:
        StepTooLong: a step takes at least twice the budget; both are in seconds.
    """
    if seconds >= _MAX_STEP_RATIO * budget:
        raise StepTooLong(
            f"train.budget.time={budget:g} s is too small for one step, which takes about {seconds:.2g} s; give more, "
            f"lower train.batch_size, or take a smaller model"
        )
