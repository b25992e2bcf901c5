"""Choices of the planner for this machine: size of the model, micro-batches within a memory limit, precision."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass

import torch
from accelerate.utils import broadcast_object_list
from pydantic import BaseModel, JsonValue
from pydantic_core import to_jsonable_python

from homespun.commands.probe import CLOCKS, Clock, ProbeJob, ProbeResult, run_probe
from homespun.commands.recipe import PretrainRecipe
from homespun.commands.workload import Work
from homespun.errors import UserError
from homespun.models.config import AutoSizeConfig, BackboneConfig
from homespun.planning.budget import SizeCandidate, SizeChoice, choose_size, forecast_budget
from homespun.planning.predict import Choice, NothingFits, Prediction, Workload, choose, predict
from homespun.planning.rates import Rates, machine_rates, save_rates
from homespun.planning.tracer import StepTracer
from homespun.report import formats
from homespun.report.console import Display
from homespun.training.config import Limits, TrainConfig
from homespun.training.devices import DistributedContext
from homespun.training.precision import choose_precision

_SMALL: dict[str, JsonValue] = {
    "kind": "pretrain",
    "data": {"max_length": 32},
    "model": {"preset": "bert-tiny", "vocab_size": 1000},
    "objective": {"kind": "mlm"},
    "train": {"batch_size": 2, "budget": {"steps": 3}},
}


@dataclass(frozen=True)
class Machine:
    """Device of a training, and its measured rates."""

    device: torch.device
    rates: Rates

    @classmethod
    def here(cls, *, clock: Clock = "wall") -> Machine:
        """With the process's memory, measured once in some ten seconds and kept in the user's cache folder."""
        machine = cls.timed(clock=clock)
        if machine.device.type == "cpu" and not machine.rates.base:
            # memory of a process besides its tensors: of a model that has almost none
            small = run_probe(ProbeJob(recipe=_SMALL, rows=2, clock=clock, predict=True))
            base = float(max(0, small.peak_bytes - (small.predicted_bytes or 0)))
            machine = cls(machine.device, save_rates(machine.device, dataclasses.replace(machine.rates, base=base)))
        return machine

    @classmethod
    def timed(cls, *, clock: Clock = "wall") -> Machine:
        """With the rates alone, measured in about two seconds, for plans without a memory limit."""
        device = DistributedContext.join().device
        return cls(device, machine_rates(device, clock=CLOCKS[clock]))

    def choose(self, workload: Workload, memory: int | None) -> Choice:
        """See `homespun.planning.predict.choose`."""
        return choose(workload, memory=memory, predict=self.predict())

    def predict(self) -> Callable[[Workload, int, bool], Prediction]:
        """The prediction of each workload and size, made once."""

        @functools.cache
        def cached(workload: Workload, rows: int, accumulate: bool) -> Prediction:
            return predict(workload, rows, self.rates, device=self.device, accumulate=accumulate)

        return cached


def fit_memory(
    config: TrainConfig, work: Callable[[], Work], display: Display
) -> tuple[TrainConfig, dict[str, int | str]]:
    """Config with the choices for its memory limit, and the choices; unchanged without a limit.

    Raises:
        UserError: nothing fits, or not what is given.
    """
    memory = config.budget.memory
    if memory is None:
        return config, {}
    line = display.task(f"planning for {formats.memory(memory)}", total=1.0)
    machine = Machine.here()
    workload = with_precision(work(), machine.device).workload
    choice = machine.choose(workload, memory)
    line.update(1.0, note=describe_choice(choice))
    planned = choice.workload.train
    # the trainer chooses what was measured once more, and records why; what was narrowed to fit is set
    precision = config.precision if planned.precision == workload.train.precision else planned.precision
    return planned.model_copy(update={"micro_batch_size": choice.rows, "precision": precision}), choice_to_dict(choice)


def with_precision(work: Work, device: torch.device) -> Work:
    """The work in the precision that its training would choose; ``auto`` stays where that is float32.

    `homespun.planning.predict.choose` may then still narrow it to fit a memory limit.
    """
    train, dataset = work.workload.train, work.dataset
    if train.precision != "auto":
        return work
    with StepTracer():
        objective = work.workload.build()
    found = choose_precision(
        "auto",
        device,
        objective=objective,
        limits=Limits.of(train.budget, steps_per_epoch=-(-(dataset.rows or 1) // train.batch_size)),
        batch_size=train.batch_size,
        row_tokens=work.row_tokens,
    )
    if found.name == "float32":
        return work
    return dataclasses.replace(work, workload=work.workload.with_train(precision=found.name))


def choice_to_dict(choice: Choice) -> dict[str, int | str]:
    """Choice as plain values, for result files."""
    train = choice.workload.train
    return {
        "micro_batch_size": choice.rows,
        "accumulation": choice.accumulation,
        "gradient_checkpointing": train.gradient_checkpointing,
        "precision": _precision(train),
    }


def _precision(train: TrainConfig) -> str:
    """The name; what `with_precision` left open is float32."""
    return "float32" if train.precision == "auto" else train.precision


def describe_choice(choice: Choice) -> str:
    """Choice in one line, for the display."""
    train = choice.workload.train
    again = ", layers computed again" if train.gradient_checkpointing else ""
    peak = formats.memory(choice.prediction.memory.peak)
    rows = f"micro-batches of {choice.rows} rows, {choice.accumulation} a step"
    return f"{rows}, precision {_precision(train)}{again}: {peak} at the peak"


def probe_choice(
    recipe: BaseModel,
    choice: Choice,
    rows: int,
    *,
    start_from: str | None,
    changes: Mapping[str, object] | None,
    clock: Clock,
) -> ProbeResult:
    """Measure steps of a choice with micro-batches of ``rows`` rows."""
    tree = recipe.model_dump(mode="json")
    tree["train"] |= {name: choice_to_dict(choice)[name] for name in ("gradient_checkpointing", "precision")}
    return run_probe(
        ProbeJob(
            recipe=tree,
            rows=rows,
            start_from=start_from,
            changes=to_jsonable_python(changes),
            accumulate=choice.accumulation > 1,
            clock=clock,
        )
    )


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
    found: list[SizeChoice | None] = [size_for(recipe, recipe.model, machine, work) if context.is_main else None]
    if context.world_size > 1:  # measured rates differ from process to process
        broadcast_object_list(found)
    choice = found[0]
    assert choice is not None
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


def size_to_dict(choice: SizeChoice) -> dict[str, object]:
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
