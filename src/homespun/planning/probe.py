"""A few real steps of a workload, measured; and what they say of micro-batches of other sizes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from accelerate import Accelerator

from homespun.errors import UserError
from homespun.planning.predict import Workload
from homespun.training.devices import Place
from homespun.training.learner import Learner
from homespun.training.malloc import keep_freed_memory
from homespun.training.memory import PeakMemory

_SECONDS = 20.0  # after which no further step is begun
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "process": time.process_time}


@dataclass(frozen=True)
class Point:
    """What steps of so many rows a micro-batch took."""

    rows: int
    peak_bytes: int
    seconds: float  # of a micro-batch, forward and backward; the median
    update_seconds: float


@dataclass(frozen=True)
class Line:
    """``at_none + each * rows``."""

    at_none: float
    each: float

    @classmethod
    def through(cls, rows: Sequence[int], values: Sequence[float]) -> Line:
        """Through one value (in proportion) or two; it never falls, and is never below zero."""
        if len(values) == 1:
            return cls(0.0, values[0] / rows[0])
        each = max(0.0, (values[-1] - values[0]) / (rows[-1] - rows[0]))
        at_none = values[-1] - each * rows[-1]
        return cls(at_none, each) if at_none >= 0 else cls(0.0, values[-1] / rows[-1])

    def at(self, rows: int) -> float:
        """The value for so many rows."""
        return self.at_none + self.each * rows


def probe_sizes(rows: int) -> list[int]:
    """Two sizes below that of the run, so that the probe costs less than a step of it; one where it is 1."""
    return sorted({max(1, rows // 4), max(min(rows, 2), rows // 2)})


def measure(workload: Workload, rows: int, *, accumulate: bool, steps: int = 5, clock: str = "wall") -> Point:
    """Make ``steps`` steps here. Memory is the process's: call it in a process that did nothing else.

    Raises:
        UserError: even these do not fit into memory.
    """
    seconds = CLOCKS[clock]
    place = Place.here()
    if place.device.type == "cpu":
        keep_freed_memory()
    torch.manual_seed(workload.train.seed)
    learner = Learner(workload.build(), workload.train, Accelerator(mixed_precision="no"), compiled=False)
    heaviest, typical = workload.batches(rows, 2)
    began, parts, updates = seconds(), [], []
    with PeakMemory(place.device) as memory:
        for number in range(steps):
            if number > 2 and seconds() - began > _SECONDS:
                break
            step = [heaviest, heaviest] if number < 2 and accumulate else [heaviest if number < 2 else typical]
            targets = {name: sum(part.targets[name] for part in step) for name in step[0].targets}
            start = seconds()
            gradients = learner.gradients(step, targets, seed=number)
            if gradients is None:
                raise UserError(f"a probe of {rows} rows at a time ran out of memory; give train.micro_batch_size")
            _wait(place.device)
            middle = seconds()
            learner.update(gradients, targets, learning_rate=1e-6)
            _wait(place.device)
            if number >= 2:
                parts.append(middle - start)
                updates.append(seconds() - middle)
    return Point(rows, memory.peak_bytes, statistics.median(parts), statistics.median(updates))


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()
