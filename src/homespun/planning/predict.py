"""Memory, FLOPs and seconds of a training step, and the fastest way to make it within a memory limit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from homespun.batch import Batch
from homespun.errors import UserError
from homespun.planning.rates import Rates, flops
from homespun.planning.tracer import StepTracer
from homespun.training.config import TrainConfig
from homespun.training.devices import resolve_dtype
from homespun.training.step import set_gradient_checkpointing


@dataclass(frozen=True)
class Workload:
    """Everything needed to run or trace a step."""

    build: Callable[[], nn.Module]  # the objective, with random weights
    batches: Callable[[int, int], list[Batch]]  # (rows, count) -> micro-batches of `rows` rows, the largest first
    train: TrainConfig
    lighter: str = ""  # a setting that would take less memory, for errors
    on_pass: Callable[[int], None] = lambda rows: None  # called after each traced forward or backward pass

    def with_train(self, **changes: object) -> Workload:
        """The workload with other training settings."""
        return dataclasses.replace(self, train=self.train.model_copy(update=changes))


@dataclass(frozen=True)
class Memory:
    """Bytes. ``peak`` is what a run reports: of the process on a CPU, of the tensors on a GPU."""

    weights: int
    gradients: int
    optimizer: int
    activations: int  # kept for the backward pass of one micro-batch
    by_part: dict[str, int]  # of the activations
    process: int  # interpreter and libraries
    peak: int


@dataclass(frozen=True)
class Prediction:
    """One step in micro-batches of ``rows`` rows."""

    rows: int
    parameters: dict[str, int]  # total, trained, embeddings
    memory: Memory
    tokens: float  # of a row, without padding
    flops_forward: float  # of a micro-batch
    flops_backward: float
    seconds: float  # of a micro-batch, forward and backward
    update_seconds: float  # once a step


Predict = Callable[[Workload, int, bool], Prediction]  # (workload, rows, accumulate)


def predict(workload: Workload, rows: int, rates: Rates, *, device: torch.device, accumulate: bool) -> Prediction:
    """Trace three steps; with ``accumulate`` the second has two micro-batches.

    Raises:
        UserError: the recipe cannot be built, or its device lacks the precision.
    """
    config = workload.train
    largest, typical = workload.batches(rows, 2)
    dtype = resolve_dtype(config.precision, device)
    with StepTracer() as tracer:
        objective = workload.build()
        set_gradient_checkpointing(objective, config.gradient_checkpointing)
        objective.train()
        tracer.watch(objective)
        optimizer = config.optimizer.build(objective)
        parameters = _count(objective)
        weights = tracer.allocator.live
        trained = [p for p in objective.parameters() if p.requires_grad]

        def micro_batch(part: Batch) -> dict[str, int]:
            before = tracer.held()
            with tracer.span("forward"), torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
                total = objective(part).total(part.targets)
            workload.on_pass(rows)
            kept = tracer.held() - before
            with tracer.span("backward"):
                torch.autograd.backward(total)
            workload.on_pass(rows)
            return dict(kept)

        def update() -> None:
            with tracer.span("update"):
                torch.nn.utils.clip_grad_norm_(trained, config.max_grad_norm or float("inf"))
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        # the peak is in the second step, which has the optimizer's state, and gradients of an earlier micro-batch
        micro_batch(largest)
        update()
        state = tracer.allocator.live - weights
        by_part = micro_batch(largest)
        gradients = sum(p.grad.nbytes for p in trained if p.grad is not None)
        if accumulate:
            micro_batch(largest)
        update()
        tracer.spans.clear()  # time and FLOPs are those of the third step, a typical one
        micro_batch(typical)
        update()
    process, peak = 0, tracer.allocator.peak_live
    if device.type == "cpu":
        process, peak = round(rates.base), round(rates.base) + tracer.allocator.peak
    return Prediction(
        rows=rows,
        parameters=parameters,
        memory=Memory(weights, gradients, state, sum(by_part.values()), by_part, process, peak),
        tokens=typical.real_tokens / typical.num_rows,
        flops_forward=tracer.sum("forward", flops),
        flops_backward=tracer.sum("backward", flops),
        seconds=tracer.sum("forward", rates.seconds) + tracer.sum("backward", rates.seconds),
        update_seconds=tracer.sum("update", rates.seconds),
    )


def _count(objective: nn.Module) -> dict[str, int]:
    embeddings = {p for m in objective.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    return {
        "total": sum(p.numel() for p in objective.parameters()),
        "trained": sum(p.numel() for p in objective.parameters() if p.requires_grad),
        "embeddings": sum(p.numel() for p in embeddings),
    }


class NothingFits(UserError):
    """A memory limit below the smallest need of a recipe."""


@dataclass(frozen=True)
class Choice:
    """Settings for a step of ``batch_size`` rows."""

    workload: Workload  # its `train` has the chosen settings
    rows: int  # of a micro-batch
    prediction: Prediction

    @property
    def accumulation(self) -> int:
        """Micro-batches of a step."""
        return -(-self.workload.train.batch_size // self.rows)

    @property
    def step_seconds(self) -> float:
        """Predicted time of a step."""
        micro_batches = self.workload.train.batch_size / self.rows
        return micro_batches * self.prediction.seconds + self.prediction.update_seconds


def choose(workload: Workload, *, memory: int | None, predict: Predict) -> Choice:
    """The fastest step of the recipe within ``memory`` bytes.

    A ``micro_batch_size`` in the recipe is kept. Gradient checkpointing is turned on if it is faster than the small
    micro-batches that fit without, or nothing fits. Then bf16 is tried, if the recipe has ``precision: auto``.

    Raises:
        NothingFits: with the smallest memory that would do.
    """
    plain = _largest(workload, memory, predict)
    if plain is not None and (memory is None or plain.accumulation == 1):
        return plain
    assert memory is not None
    others = [] if workload.train.gradient_checkpointing else [workload.with_train(gradient_checkpointing=True)]
    found = [plain, *(_largest(other, memory, predict) for other in others)]
    if not any(found) and workload.train.precision == "auto":
        narrow = [other.with_train(precision="bf16") for other in [workload, *others]]
        found = [_largest(other, memory, predict) for other in narrow]
        others += narrow
    if fitting := [choice for choice in found if choice is not None]:
        return min(fitting, key=lambda choice: choice.step_seconds)
    rows = workload.train.micro_batch_size or 1
    accumulate = rows < workload.train.batch_size
    least = min(predict(other, rows, accumulate).memory.peak for other in [workload, *others])
    lighter = f", or set {workload.lighter}" if workload.lighter else ""
    fewer = "train.micro_batch_size or " if rows > 1 else ""
    raise NothingFits(
        f"nothing fits into {_gigabytes(memory)}: with micro-batches of {rows} this recipe takes at least "
        f"{_gigabytes(least)}; give that much, lower {fewer}data.max_length, or take a smaller model{lighter}"
    )


def _largest(workload: Workload, memory: int | None, predict: Predict) -> Choice | None:
    """The largest micro-batch that fits, among those that cut the step into parts as equal as can be."""
    batch = workload.train.batch_size
    given = workload.train.micro_batch_size
    most = min(given or batch, batch)
    first = predict(workload, most, most < batch)
    if memory is None or first.memory.peak <= memory:
        return Choice(workload, most, first)
    if given is not None or most == 1:
        return None
    single = predict(workload, 1, True)
    if single.memory.peak > memory:
        return None
    # nearly linear in the rows; where it is not, the next smaller size is tried
    slope = (first.memory.peak - single.memory.peak) / (most - 1)
    rows = 1 + int((memory - single.memory.peak) / max(slope, 1.0))
    for size in sorted({-(-batch // parts) for parts in range(2, batch)}, reverse=True):
        if size <= rows:
            prediction = predict(workload, size, True)
            if prediction.memory.peak <= memory:
                return Choice(workload, size, prediction)
    return Choice(workload, 1, single)


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e7 else f"{size:,} bytes"
