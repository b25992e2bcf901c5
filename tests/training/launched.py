"""What the tests of `homespun.training.processes` run in other processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch

from homespun.errors import NotFinite
from homespun.training.devices import Place


def note_place(folder: Path) -> None:
    place = Place.here()
    (folder / str(place.rank)).write_text(f"{place.world_size} {place.device.type} {torch.get_num_threads()}")


def fail(folder: Path, rank: int, kind: str) -> None:
    """In one process; the others wait for it in a collective operation."""
    place = Place.here()
    (folder / str(place.rank)).write_text(str(os.getpid()))
    place.wait()
    if place.rank == rank and kind == "user":
        raise NotFinite("the loss is not finite")
    if place.rank == rank and kind == "bug":
        raise ZeroDivisionError("a bug")
    if place.rank == rank and kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    place.wait()


def hang(folder: Path) -> None:
    """Until a signal ends the process."""
    place = Place.here()
    place.wait()
    (folder / str(place.rank)).write_text(str(os.getpid()))
    time.sleep(300)


def launch_hanging(folder: Path) -> None:
    from homespun.training.processes import launch

    launch(2, hang, folder)
