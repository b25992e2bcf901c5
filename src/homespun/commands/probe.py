"""Measurement of a few training steps in a new process: ``python -m homespun.commands.probe``.

The process reads a `ProbeJob` as JSON from standard input and prints a `ProbeResult`. It does nothing else, so that its
peak memory is of the steps alone. A `UserError` is the last line of standard error, with exit code 2.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from accelerate import Accelerator
from pydantic import BaseModel, JsonValue

from homespun.errors import UserError
from homespun.planning.predict import Workload
from homespun.planning.rates import machine_rates, synchronize
from homespun.training.devices import DistributedContext, PeakMemory, disable_malloc_trim
from homespun.training.step import TrainingStep

Clock = Literal["wall", "process"]
CLOCKS: dict[Clock, Callable[[], float]] = {"wall": time.perf_counter, "process": time.process_time}
_MAX_SECONDS = 20.0  # no step starts later
_TIMEOUT = 600  # seconds


class ProbeJob(BaseModel):
    """Steps to measure.

    Args:
        recipe: settings of the training, as plain values.
        rows: rows per micro-batch.
        start_from: a run or model to continue from.
        changes: changes to its backbone.
        accumulate: make two micro-batches per step instead of one.
        clock: ``wall``, or ``process`` on a busy machine, with one thread.
        predict: also predict the memory of the tensors.
    """

    recipe: dict[str, JsonValue]
    rows: int
    start_from: str | None = None
    changes: dict[str, JsonValue] | None = None
    accumulate: bool = False
    clock: Clock = "wall"
    predict: bool = False


class ProbeResult(BaseModel):
    """Measured peak memory and median times of micro-batches of ``rows`` rows."""

    rows: int
    peak_bytes: int
    seconds: float  # seconds of a micro-batch, forward and backward
    update_seconds: float
    predicted_bytes: int | None = None  # predicted bytes of the tensors


@dataclass(frozen=True)
class LinearFit:
    """Line ``intercept + slope * rows``."""

    intercept: float
    slope: float

    @classmethod
    def through(cls, rows: Sequence[int], values: Sequence[float]) -> LinearFit:
        """Fit a line with coefficients of at least 0 to one value (proportional) or two."""
        if len(values) == 1:
            return cls(0.0, values[0] / rows[0])
        slope = max(0.0, (values[-1] - values[0]) / (rows[-1] - rows[0]))
        intercept = values[-1] - slope * rows[-1]
        return cls(intercept, slope) if intercept >= 0 else cls(0.0, values[-1] / rows[-1])

    def at(self, rows: int) -> float:
        """Evaluate the line for a number of rows."""
        return self.intercept + self.slope * rows


def probe_sizes(rows: int) -> list[int]:
    """Return one or two micro-batch sizes, below ``rows`` so that a probe costs less than a step of the run."""
    return sorted({max(1, rows // 4), max(min(rows, 2), rows // 2)})


def run_probe(job: ProbeJob) -> ProbeResult:
    """Measure a job in a new process.

    Raises:
        UserError: the steps failed or took more than ten minutes.
    """
    command = [sys.executable, "-m", "homespun.commands.probe"]
    try:
        done = subprocess.run(
            command,
            input=job.model_dump_json(),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(f"the probe took more than {_TIMEOUT} s; plan without --probe") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise UserError(f"the probe failed: {lines[-1] if lines else f'exit code {done.returncode}'}")
    return ProbeResult.model_validate_json(done.stdout.strip().splitlines()[-1])


def measure(workload: Workload, rows: int, *, accumulate: bool, steps: int = 5, clock: Clock = "wall") -> ProbeResult:
    """Measure ``steps`` steps in this process, which must be new: its peak memory is measured.

    Raises:
        UserError: the steps do not fit into memory.
    """
    seconds = CLOCKS[clock]
    context = DistributedContext.join()
    if context.device.type == "cpu":
        disable_malloc_trim()
    torch.manual_seed(workload.train.seed)
    training_step = TrainingStep(workload.build(), workload.train, Accelerator(mixed_precision="no"), compiled=False)
    largest, typical = workload.batches(rows, 2)
    begin, forward_backward, updates = seconds(), [], []
    with PeakMemory(context.device) as memory:
        for number in range(steps):
            if number > 2 and seconds() - begin > _MAX_SECONDS:
                break
            # the first two steps are warm-up, and measure the peak memory on the largest micro-batch
            step = [typical] if number > 1 else [largest, largest] if accumulate else [largest]
            targets = {name: sum(part.targets[name] for part in step) for name in step[0].targets}
            start = seconds()
            gradients = training_step.compute_gradients(step, targets, seed=number)
            if gradients is None:
                raise UserError(f"a probe of {rows} rows at a time ran out of memory; give train.micro_batch_size")
            synchronize(context.device)
            middle = seconds()
            training_step.update(gradients, targets, learning_rate=1e-6)
            synchronize(context.device)
            if number > 1:
                forward_backward.append(middle - start)
                updates.append(seconds() - middle)
    return ProbeResult(
        rows=rows,
        peak_bytes=memory.peak_bytes,
        seconds=statistics.median(forward_backward),
        update_seconds=statistics.median(updates),
    )


def main() -> int:
    """Run the job on standard input; returns the exit code."""
    job = ProbeJob.model_validate_json(sys.stdin.read())
    # a run has these modules loaded, and their memory counts
    import homespun.commands.finetune  # noqa: F401
    from homespun.commands.plan import recipe_work
    from homespun.commands.recipe import as_recipe
    from homespun.planning.predict import predict

    try:
        with recipe_work(as_recipe(job.recipe), start_from=job.start_from, changes=job.changes) as work:
            result = measure(work.workload, job.rows, accumulate=job.accumulate, clock=job.clock)
            if job.predict:
                device = DistributedContext.join().device
                rates = machine_rates(device)
                memory = predict(work.workload, job.rows, rates, device=device, accumulate=job.accumulate).memory
                result = result.model_copy(update={"predicted_bytes": memory.peak - memory.process})
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(result.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
