"""``model.size=auto`` resolved: a recipe with the model that suits its budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from accelerate.utils import broadcast_object_list

from homespun.commands.memory import Machine, with_precision
from homespun.commands.recipe import PretrainRecipe
from homespun.commands.workload import Work
from homespun.errors import UserError
from homespun.models.auto_size import AutoSizeConfig
from homespun.models.config import BackboneConfig
from homespun.planning.budget import SizeCandidate, SizeChoice, choose_size, forecast_budget
from homespun.planning.predict import NothingFits
from homespun.planning.tracer import StepTracer
from homespun.report.console import Display
from homespun.training.devices import DistributedContext

WorkFactory = Callable[[PretrainRecipe], Work]
"""What a recipe of known size trains."""


def with_size(
    recipe: PretrainRecipe, machine: Callable[[], Machine], work: WorkFactory, display: Display
) -> tuple[PretrainRecipe, SizeChoice | None]:
    """The recipe with a model of known size, and the choice; unchanged where the size is known.

    Among several processes the first one chooses for all.

    Args:
        recipe: with its data and budget.
        machine: where it is trained; asked for where a size is to be timed.
        work: what a recipe of known size trains.
        display: where the choice and its reason are shown.

    Raises:
        UserError: see `size_for`.
    """
    if not isinstance(recipe.model, AutoSizeConfig):
        return recipe, None
    context = DistributedContext.join()
    line = display.task("model", total=1.0)
    found: list[Any] = [size_for(recipe, recipe.model, machine, work) if context.is_main else None]
    if context.world_size > 1:  # measured rates differ from process to process
        broadcast_object_list(found)
    choice: SizeChoice = found[0]
    line.update(1.0, note=choice.reason())
    return recipe.model_copy(update={"model": recipe.model.candidates()[choice.chosen.name]}), choice


def size_for(
    recipe: PretrainRecipe, model: AutoSizeConfig, machine: Callable[[], Machine], work: WorkFactory
) -> SizeChoice:
    """The size of a family that suits the recipe's budget, by `homespun.planning.budget.choose_size`.

    Args:
        recipe: its data, objective and training.
        model: the family.
        machine: where it is trained; asked for where the budget is of time or memory.
        work: what a recipe of known size trains.

    Raises:
        UserError: not even the smallest size can be trained, or the budget is of epochs of a text that is not known.
    """
    return choose_size(_candidates(recipe, model, machine, work))


def size_to_dict(choice: SizeChoice) -> dict[str, Any]:
    """The choice for result files."""
    chosen = choice.chosen
    return {
        "name": chosen.name,
        "parameters": chosen.parameters,
        "tokens_per_parameter": chosen.tokens_per_parameter,
        "expected": asdict(chosen.reach),
        "reason": choice.reason(),
    }


def _candidates(
    recipe: PretrainRecipe, model: AutoSizeConfig, machine: Callable[[], Machine], work: WorkFactory
) -> Iterator[SizeCandidate]:
    budget, processes = recipe.train.budget, DistributedContext.join().world_size
    for number, (name, backbone) in enumerate(model.candidates().items()):
        sized = work(recipe.model_copy(update={"model": backbone}))
        row_tokens, seconds = sized.row_tokens, None
        if budget.time is None and budget.memory is None:  # then all sizes see as many tokens
            with StepTracer():
                parameters = sum(parameter.numel() for parameter in sized.workload.build().parameters())
        else:
            try:
                choice = machine().choose(with_precision(sized, machine().device).workload, budget.memory)
            except NothingFits:
                if number == 0:
                    raise
                return
            prediction = choice.prediction
            parameters, row_tokens = prediction.parameters["total"], prediction.tokens
            seconds = choice.step_seconds / processes
        reach = forecast_budget(
            budget,
            sized.dataset,
            batch_size=recipe.train.batch_size,
            row_tokens=row_tokens,
            step_seconds=seconds,
        )
        if not reach.tokens:
            raise UserError("model.size=auto needs data.corpus for a budget of epochs; give it, or a budget of time")
        yield SizeCandidate(name, _shape(backbone), parameters, reach, sized.dataset)


def _shape(backbone: BackboneConfig) -> str:
    layers = " + ".join(str(stack.num_hidden_layers) for stack in backbone.stacks)
    return f"{layers} layers of {backbone.hidden_size}"
