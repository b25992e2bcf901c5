"""What the tests of `homespun.training.processes` run in other processes."""

import os
import signal
import time
from pathlib import Path

import torch

from homespun.errors import NotFinite
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
