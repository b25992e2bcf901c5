"""Process that measures a few training steps: ``python -m homespun.commands.probe_process``.

It reads a `ProbeJob` as JSON from standard input and prints a `ProbeResult`. It does nothing else, so that its peak
memory is of the steps alone. A `UserError` is the last line of standard error, with exit code 2.
"""

from __future__ import annotations

import statistics
import sys

import torch
from accelerate import Accelerator

import homespun.commands.finetune  # noqa: F401  a run has it loaded, and its memory counts
from homespun.commands.plan import recipe_work
from homespun.commands.probe import ProbeJob, ProbeResult
from homespun.commands.recipe import as_recipe
from homespun.errors import UserError
from homespun.planning.predict import Workload, predict
from homespun.planning.rates import clock_of, machine_rates, synchronize
from homespun.training.devices import DistributedContext, PeakMemory, disable_malloc_trim
from homespun.training.step import TrainingStep

_STEPS, _MAX_SECONDS = 5, 20.0  # no step starts after the seconds


def measure(workload: Workload, rows: int, *, accumulate: bool) -> ProbeResult:
    """Measure a few steps in this process, which must be new: its peak memory is measured.

    Raises:
        UserError: the steps do not fit into memory.
    """
    context = DistributedContext.join()
    seconds = clock_of(context.device)
    if context.device.type == "cpu":
        disable_malloc_trim()
    torch.manual_seed(workload.train.seed)
    training_step = TrainingStep(workload.build(), workload.train, Accelerator(mixed_precision="no"), compiled=False)
    largest, typical = workload.batches(rows)
    begin, forward_backward, updates = seconds(), [], []
    with PeakMemory(context.device) as memory:
        for number in range(_STEPS):
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
    try:
        with recipe_work(as_recipe(job.recipe), start_from=job.start_from, changes=job.changes) as work:
            result = measure(work.workload, job.rows, accumulate=job.accumulate)
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
