"""What the tests of `homespun.training.processes` run in other processes."""

import os
import signal
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from training_parts import Objective, evaluate_heads, make_trainer, sharded_config

from homespun.errors import NotFinite
from homespun.models.bundle import weights_of
from homespun.training.devices import DistributedContext


def write_context(folder: Path) -> None:
    context = DistributedContext.join()
    (folder / str(context.rank)).write_text(f"{context.world_size} {context.device.type} {torch.get_num_threads()}")


def fail(folder: Path, rank: int, kind: str) -> None:
    """In one process; the others wait for it in a collective operation."""
    context = DistributedContext.join()
    (folder / str(context.rank)).write_text(str(os.getpid()))
    context.wait()
    if context.rank == rank and kind == "user":
        raise NotFinite("the loss is not finite")
    if context.rank == rank and kind == "bug":
        raise ZeroDivisionError("a bug")
    if context.rank == rank and kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    context.wait()


def hang(folder: Path) -> None:
    """Until a signal ends the process."""
    context = DistributedContext.join()
    context.wait()
    (folder / str(context.rank)).write_text(str(os.getpid()))
    time.sleep(300)


def launch_hanging(folder: Path) -> None:
    from homespun.training.processes import launch

    launch(2, hang, folder)


def train_sharded(folder: Path, steps: dict[str, int]) -> None:
    """Train or resume the runs of ``folder`` until a number of steps."""
    torch.set_num_threads(1)
    context = DistributedContext.join()
    for name, number in steps.items():
        torch.manual_seed(5)
        objective = Objective()
        trainer = make_trainer(
            folder / name,
            sharded_config(name),
            objective=objective,
            resume=True,
            rank=context.rank,
            world_size=context.world_size,
            validate=lambda objective=objective: evaluate_heads(objective),
        )
        for step in trainer:
            if step.number == number:
                break
        if step.number == sharded_config(name).budget.steps and context.is_main:
            save_file(weights_of(objective), folder / name / "model.safetensors")
