"""Choice of model size, micro-batches and precision for this machine."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch
from accelerate.utils import broadcast_object_list
from pydantic import JsonValue

from homespun.commands.parallel import choose_parallel
from homespun.commands.probe import ProbeJob, run_probe
from homespun.commands.recipe import PretrainRecipe
from homespun.commands.workload import Work
from homespun.errors import UserError, quantity
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
    def here(cls) -> Machine:
        """Measure rates and process memory in about ten seconds, or read them from the user's cache folder."""
        machine = cls.timed()
        if machine.device.type == "cpu" and not machine.rates.base:
            # peak memory of a tiny model less its tensors
            small = run_probe(ProbeJob(recipe=_SMALL, rows=2, predict=True))
            base = float(max(0, small.peak_bytes - (small.predicted_bytes or 0)))
            machine = cls(machine.device, save_rates(machine.device, dataclasses.replace(machine.rates, base=base)))
        return machine

    @classmethod
    def timed(cls) -> Machine:
        """Measure the rates alone, in about two seconds, for plans without a memory limit."""
        device = DistributedContext.join().device
        return cls(device, machine_rates(device))

    def choose(self, workload: Workload, memory: int | None) -> Choice:
        """Choose micro-batches within ``memory`` bytes, see `homespun.planning.predict.choose`."""
        return choose(workload, memory=memory, predict=self.predict())

    def predict(self) -> Callable[[Workload, int, bool], Prediction]:
        """Return a function that predicts a step, with a cache; see `homespun.planning.predict.predict`."""

        @functools.cache
        def cached(workload: Workload, rows: int, accumulate: bool) -> Prediction:
            return predict(workload, rows, self.rates, device=self.device, accumulate=accumulate)

        return cached


def fit_memory(
    config: TrainConfig, work: Callable[[], Work], display: Display
) -> tuple[TrainConfig, dict[str, int | str]]:
    """Choose micro-batches, gradient checkpointing and precision for the memory limit of ``config``.

    ``parallel=auto`` becomes ``ddp`` or ``fsdp``, see `homespun.commands.parallel.choose_parallel`. Without a memory
    limit the other settings stay unchanged.

    Returns:
        The new config, and the choice for result files; empty without a memory limit.

    Raises:
        UserError: nothing fits into the limit, or a setting of ``config`` excludes what fits.
    """
    if config.parallel == "auto":
        config = config.model_copy(update={"parallel": choose_parallel(config, work)})
        display.line(f"train.parallel=auto: {config.parallel}")
    memory = config.budget.memory
    if memory is None:
        return config, {}
    line = display.task(f"planning for {formats.memory(memory)}", total=1.0)
    machine = Machine.here()
    workload = with_precision(work(), machine.device).workload
    choice = machine.choose(workload, memory)
    line.update(1.0, note=describe_choice(choice))
    planned = choice.workload.train
    # the trainer chooses an automatic precision again and records the reason; one that was changed to fit is set
    precision = config.precision if planned.precision == workload.train.precision else planned.precision
    return planned.model_copy(update={"micro_batch_size": choice.rows, "precision": precision}), choice_to_dict(choice)


def with_precision(work: Work, device: torch.device) -> Work:
    """Set precision ``auto`` to the precision that the training would choose; ``auto`` stays if that is float32.

    `homespun.planning.predict.choose` may then lower it to fit a memory limit.
    """
    train, dataset = work.workload.train, work.dataset
    if train.precision != "auto":
        return work
    with StepTracer():
        objective = work.workload.build()
    precision = choose_precision(
        "auto",
        device,
        objective=objective,
        limits=Limits.of(train.budget, steps_per_epoch=-(-(dataset.rows or 1) // train.batch_size)),
        batch_size=train.batch_size,
        row_tokens=work.row_tokens,
    )
    if precision.name == "float32":
        return work
    return dataclasses.replace(work, workload=work.workload.with_train(precision=precision.name))


def choice_to_dict(choice: Choice) -> dict[str, int | str]:
    """Return a choice as plain values, for result files."""
    train = choice.workload.train
    return {
        "micro_batch_size": choice.rows,
        "accumulation": choice.accumulation,
        "gradient_checkpointing": train.gradient_checkpointing,
        "precision": _precision(train),
    }


def _precision(train: TrainConfig) -> str:
    """Name of the precision; ``auto`` is float32 after `with_precision`."""
    return "float32" if train.precision == "auto" else train.precision


def describe_choice(choice: Choice) -> str:
    """Describe a choice in one line."""
    train = choice.workload.train
    checkpointing = ", gradient checkpointing" if train.gradient_checkpointing else ""
    peak = formats.memory(choice.prediction.memory.peak)
    rows = f"micro-batches of {quantity(choice.rows, 'row')}, {choice.accumulation} a step"
    return f"{rows}, precision {_precision(train)}{checkpointing}: {peak} at the peak"


WorkFactory = Callable[[PretrainRecipe], Work]
"""Returns the workload of a recipe with a known model size."""


def with_size(
    recipe: PretrainRecipe, machine: Callable[[], Machine], work: WorkFactory, display: Display
) -> tuple[PretrainRecipe, SizeChoice | None]:
    """Choose the size of a model with ``size=auto``, see `size_for`; the first process chooses for all.

    Returns:
        The recipe with a model of known size, and the choice. If the size is known, the recipe itself and None.

    Raises:
        UserError: see `size_for`.
    """
    if not isinstance(recipe.model, AutoSizeConfig):
        return recipe, None
    context = DistributedContext.join()
    line = display.task("model", total=1.0)
    choices: list[SizeChoice | None] = [size_for(recipe, recipe.model, machine, work) if context.is_main else None]
    if context.world_size > 1:  # measured rates differ between processes
        broadcast_object_list(choices)
    choice = choices[0]
    assert choice is not None
    line.update(1.0, note=choice.reason())
    return recipe.model_copy(update={"model": recipe.model.candidates()[choice.chosen.name]}), choice


def size_for(
    recipe: PretrainRecipe, model: AutoSizeConfig, machine: Callable[[], Machine], work: WorkFactory
) -> SizeChoice:
    """Choose the size of a model family for the recipe's budget, see `homespun.planning.budget.choose_size`.

    ``machine`` is called only for a budget of time or memory.

    Raises:
        UserError: the smallest size does not fit into memory, or a budget of epochs has no corpus.
    """
    return choose_size(_candidates(recipe, model, machine, work), timed=recipe.train.budget.time is not None)


def size_to_dict(choice: SizeChoice) -> dict[str, object]:
    """Return a choice of size as plain values, for result files."""
    chosen = choice.chosen
    return {
        "name": chosen.name,
        "parameters": chosen.parameters,
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
        if budget.time is None and budget.memory is None:  # the number of tokens does not depend on the size
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
            budget, sized.dataset, batch_size=recipe.train.batch_size, row_tokens=row_tokens, step_seconds=seconds
        )
        if not reach.tokens:
            raise UserError("model.size=auto needs data.corpus for a budget of epochs; give it, or a budget of time")
        yield SizeCandidate(name, _shape(backbone), parameters, reach)


def _shape(backbone: BackboneConfig) -> str:
    layers = " + ".join(str(stack.num_hidden_layers) for stack in backbone.stacks)
    return f"{layers} layers of {backbone.hidden_size}"
