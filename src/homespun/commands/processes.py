"""Training in several processes of this machine, by ``train.processes``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from homespun.config import Tree
from homespun.errors import UserError
from homespun.io.json import read_object
from homespun.nn.devices import best_device
from homespun.objectives.config import PretrainingObjective
from homespun.report.console import Display
from homespun.training.config import TrainConfig
from homespun.training.devices import DistributedContext
from homespun.training.processes import is_launched, launch

Job = Callable[..., Tree]


def processes_to_start(config: TrainConfig) -> int:
    """Return the number of processes to start for a training; 1: train in this process.

    Raises:
        UserError: ``train.processes`` is above 1 on a GPU or with a memory limit.
    """
    count = 1 if config.processes == "auto" else config.processes
    if count == 1 or is_launched():
        return 1
    if best_device().type != "cpu":
        raise UserError(f"train.processes={count} is for CPUs; set it to 1, or start GPUs with torchrun")
    if config.budget.memory is not None:
        raise UserError(
            f"train.budget.memory is planned for one process, but train.processes={count}; set train.processes=1, or "
            f"leave out train.budget.memory"
        )
    return count


def check_processes(objective: PretrainingObjective, count: int) -> None:
    """Check that the objective can train in ``count`` processes.

    Raises:
        UserError: ``count`` exceeds ``objective.max_processes``.
    """
    limit = objective.max_processes
    if limit is not None and count > limit:
        raise UserError(
            f"objective.kind={objective.kind} trains in at most {limit} process, not in {count}; set "
            f"train.processes={limit} or objective.kind=clm"
        )


def run_in_processes(
    count: int, job: Job, recipe: object, out: str | Path, *, display: Display, **options: object
) -> Tree:
    """Call ``job(recipe, out, display=..., **options)`` in ``count`` processes; returns the ``result.json`` in ``out``.

    Raises:
        UserError: the job raised it, or a process was killed.
    """
    display.stop()  # the first process has its own display
    launch(count, _run, job, recipe, out, display.json, options)
    return read_object(Path(out) / "result.json")


def _run(job: Job, recipe: object, out: str | Path, json: bool, options: dict[str, object]) -> None:
    with Display(json=json or not DistributedContext.join().is_main) as display:
        job(recipe, out, display=display, **options)
