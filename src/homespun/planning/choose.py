"""What fits into a memory limit and is fastest there: micro-batch, accumulation, checkpointing, precision."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from homespun.errors import UserError
from homespun.planning.predict import Prediction, Workload

Predict = Callable[[Workload, int, bool], Prediction]  # (workload, rows, accumulate)


class NothingFits(UserError):
    """A memory limit that is too small for a recipe, however its step is made."""


@dataclass(frozen=True)
class Choice:
    """How a step of ``batch_size`` rows is made."""

    workload: Workload  # its `train` holds what is chosen
    rows: int  # of a micro-batch
    prediction: Prediction

    @property
    def accumulation(self) -> int:
        """Micro-batches of a step."""
        return -(-self.workload.train.batch_size // self.rows)

    @property
    def step_seconds(self) -> float:
        """Of a step, by the machine's rates."""
        share = self.workload.train.batch_size / self.rows
        return share * self.prediction.seconds + self.prediction.update_seconds


def choose(workload: Workload, *, memory: int | None, predict: Predict) -> Choice:
    """The fastest way to make the recipe's step within ``memory`` bytes.

    A ``micro_batch_size`` that the recipe has is kept. Layers are computed again in the backward pass, where the recipe
    does not, if that is faster than the small micro-batches that fit otherwise, or nothing fits; and the narrower type
    of numbers is taken if nothing fits without it, and the recipe leaves it open.

    Raises:
        NothingFits: it says the smallest memory that would do.
    """
    plain = _largest(workload, memory, predict)
    if memory is None or (plain is not None and plain.accumulation == 1):
        assert plain is not None
        return plain
    others = [] if workload.train.gradient_checkpointing else [_with(workload, gradient_checkpointing=True)]
    found = [choice for other in others if (choice := _largest(other, memory, predict)) is not None]
    found = [*([] if plain is None else [plain]), *found]
    if not found and workload.train.precision == "auto":
        narrow = [_with(other, precision="bf16") for other in [workload, *others]]
        found = [choice for other in narrow if (choice := _largest(other, memory, predict)) is not None]
        others = [*others, *narrow]
    if found:
        return min(found, key=lambda choice: choice.step_seconds)
    least = min(
        predict(other, rows, rows < workload.train.batch_size).memory.peak
        for other in [workload, *others]
        for rows in [other.train.micro_batch_size or 1]
    )
    lighter = f", or set {workload.lighter}" if workload.lighter else ""
    rows = workload.train.micro_batch_size or 1
    fewer = "train.micro_batch_size or " if rows > 1 else ""
    raise NothingFits(
        f"nothing fits into {_gigabytes(memory)}: with micro-batches of {rows} this recipe takes at least "
        f"{_gigabytes(least)}; give that much, lower {fewer}data.length, or take a smaller model{lighter}"
    )


def _largest(workload: Workload, memory: int | None, predict: Predict) -> Choice | None:
    """The largest micro-batch that fits, among those that cut the step into equal parts as nearly as can be."""
    batch = workload.train.batch_size
    given = workload.train.micro_batch_size
    whole = min(given or batch, batch)
    first = predict(workload, whole, whole < batch)
    if memory is None or first.memory.peak <= memory:
        return Choice(workload, whole, first)
    if given is not None or whole == 1:
        return None
    single = predict(workload, 1, True)
    if single.memory.peak > memory:
        return None
    # nearly a line in the rows; where it is not, the next smaller size is tried
    slope = (first.memory.peak - single.memory.peak) / (whole - 1)
    rows = 1 + int((memory - single.memory.peak) / max(slope, 1.0))
    for size in sorted({-(-batch // parts) for parts in range(2, batch + 1)}, reverse=True):
        if size <= rows:
            prediction = single if size == 1 else predict(workload, size, True)
            if prediction.memory.peak <= memory:
                return Choice(workload, size, prediction)
    return Choice(workload, 1, single)


def _with(workload: Workload, **changes: object) -> Workload:
    return dataclasses.replace(workload, train=workload.train.model_copy(update=changes))


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e7 else f"{size:,} bytes"
