"""A memory limit kept: the planner's choice, where a recipe has a limit."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from homespun.errors import UserError
from homespun.jobs.workload import Work
from homespun.planning.choose import Choice, choose
from homespun.planning.predict import Prediction, Workload, predict
from homespun.planning.probe import CLOCKS, Point
from homespun.planning.rates import Rates, keep_base, machine_rates
from homespun.planning.trace import Shadow
from homespun.report import formats
from homespun.report.console import Display
from homespun.training.budget import Limits
from homespun.training.config import TrainConfig
from homespun.training.devices import Place
from homespun.training.malloc import training_environment
from homespun.training.precision import choose_precision

_PROBE_SECONDS = 600
_SMALL = {
    "kind": "pretrain",
    "data": {"length": 32},
    "model": {"preset": "bert-tiny", "vocab_size": 1000},
    "objective": {"kind": "mlm"},
    "train": {"batch_size": 2, "budget": {"steps": 3}},
}


@dataclass(frozen=True)
class Machine:
    """Where a recipe would run, and how fast that is."""

    device: torch.device
    rates: Rates

    @classmethod
    def here(cls, *, clock: str = "wall") -> Machine:
        """Measured once, in some ten seconds, and kept in the user's cache folder."""
        device = Place.here().device
        rates = machine_rates(device, clock=CLOCKS[clock])
        if device.type == "cpu" and not rates.base:
            # what a process takes beside its tensors is found with a model of almost none
            small = run_probe({"recipe": _SMALL, "rows": 2, "clock": clock, "shadow": True})
            rates = keep_base(device, float(max(0, small["peak_bytes"] - small["shadow_bytes"])), rates)
        return cls(device, rates)

    @classmethod
    def timed(cls) -> Machine:
        """With the rates alone, measured in about two seconds, for plans without a limit of memory."""
        device = Place.here().device
        return cls(device, machine_rates(device))

    def choose(self, workload: Workload, memory: int | None) -> Choice:
        """See `homespun.planning.choose.choose`."""
        return choose(workload, memory=memory, predict=self.predict())

    def predict(self) -> Callable[[Workload, int, bool], Prediction]:
        """The prediction of each workload and size, made once."""

        @functools.cache
        def known(workload: Workload, rows: int, accumulate: bool) -> Prediction:
            return predict(workload, rows, self.rates, device=self.device, accumulate=accumulate)

        return known


def within_memory(
    config: TrainConfig, work: Callable[[], Work], display: Display
) -> tuple[TrainConfig, dict[str, Any]]:
    """The config with what was chosen for its memory limit, and what was chosen; as it is where there is no limit.

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
    line.update(1.0, note=in_words(choice))
    planned = choice.workload.train
    # the trainer chooses what was measured once more, and records why; what was narrowed to fit is set
    precision = config.precision if planned.precision == workload.train.precision else planned.precision
    return planned.model_copy(update={"micro_batch_size": choice.rows, "precision": precision}), chosen(choice)


def with_precision(work: Work, device: torch.device) -> Work:
    """The work in the precision that its training would choose; ``auto`` stays where that is float32.

    `homespun.planning.choose.choose` may then still narrow it to fit a memory limit.
    """
    train, text = work.workload.train, work.text
    if train.precision != "auto":
        return work
    with Shadow():
        objective = work.workload.build()
    found = choose_precision(
        "auto",
        device,
        objective=objective,
        limits=Limits.of(train.budget, steps_per_epoch=-(-(text.rows or 1) // train.batch_size)),
        batch_size=train.batch_size,
        row_tokens=work.row_tokens,
    )
    if found.name == "float32":
        return work
    narrow = train.model_copy(update={"precision": found.name})
    return dataclasses.replace(work, workload=dataclasses.replace(work.workload, train=narrow))


def chosen(choice: Choice) -> dict[str, Any]:
    """What was chosen, for result files."""
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


def in_words(choice: Choice) -> str:
    """What was chosen, for a person."""
    train = choice.workload.train
    again = ", layers computed again" if train.gradient_checkpointing else ""
    peak = formats.memory(choice.prediction.memory.peak)
    rows = f"micro-batches of {choice.rows} rows, {choice.accumulation} a step"
    return f"{rows}, precision {_precision(train)}{again}: {peak} at the peak"


def run_probe(job: dict[str, Any]) -> dict[str, Any]:
    """`homespun.jobs.probe` in a process of its own; what it found.

    Raises:
        UserError: the recipe cannot be run so.
    """
    command = [sys.executable, "-m", "homespun.jobs.probe"]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(job),
            env=training_environment(os.environ),
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(f"the probe took more than {_PROBE_SECONDS} s; plan without --probe") from error
    lines = done.stderr.strip().splitlines()
    if done.returncode:
        raise UserError(f"the probe failed: {lines[-1] if lines else f'it was stopped ({done.returncode})'}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def probed(
    recipe: BaseModel,
    choice: Choice,
    rows: int,
    *,
    start_from: str | None,
    changes: Mapping[str, Any] | None,
    clock: str,
) -> Point:
    """The probe of a choice with micro-batches of so many rows."""
    tree = recipe.model_dump(mode="json")
    tree["train"] |= {name: chosen(choice)[name] for name in ("gradient_checkpointing", "precision")}
    job = {
        "recipe": tree,
        "start_from": start_from,
        "changes": to_jsonable_python(changes),
        "rows": rows,
        "accumulate": choice.accumulation > 1,
        "clock": clock,
    }
    found = run_probe(job)
    return Point(**{name: found[name] for name in asdict(Point(0, 0, 0.0, 0.0))})
