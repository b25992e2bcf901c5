"""Memory, FLOPs and seconds of a training step, and the fastest settings within a memory limit."""

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
    """Model, batches and settings of a step that is executed or traced."""

    build: Callable[[], nn.Module]  # the objective, with random weights
    batches: Callable[[int], tuple[Batch, Batch]]  # rows -> the largest micro-batch of so many rows, and a typical one
    train: TrainConfig
    lighter: str = ""  # a setting that takes less memory, for errors
    on_pass: Callable[[int], None] = lambda rows: None  # called after each traced forward or backward pass

    def with_train(self, **changes: object) -> Workload:
        """Return the workload with other training settings."""
        return dataclasses.replace(self, train=self.train.model_copy(update=changes))


@dataclass(frozen=True)
class Memory:
    """Bytes; ``peak`` is of the process on a CPU, of the tensors on a GPU."""

    weights: int
    gradients: int
    optimizer: int
    activations: int  # kept for the backward pass of one micro-batch
    by_part: dict[str, int]  # bytes of the activations by part of the model
    process: int  # interpreter and libraries
    peak: int


@dataclass(frozen=True)
class Prediction:
    """Prediction of a step in micro-batches of ``rows`` rows."""

    rows: int
    parameters: dict[str, int]  # total, trained, embeddings
    memory: Memory
    tokens: float  # tokens of a row, without padding
    flops_forward: float  # of a micro-batch
    flops_backward: float
    seconds: float  # seconds of a micro-batch, forward and backward
    update_seconds: float  # once a step


Predict = Callable[[Workload, int, bool], Prediction]  # (workload, rows, accumulate)


def predict(workload: Workload, rows: int, rates: Rates, *, device: torch.device, accumulate: bool) -> Prediction:
    """Trace three steps; with ``accumulate`` the second step has two micro-batches.

    Raises:
        UserError: the recipe cannot be built, or the device lacks the precision.
    """
    config = workload.train
    largest, typical = workload.batches(rows)
    dtype = resolve_dtype(config.precision, device)
    with StepTracer() as tracer:
        objective = workload.build()
        set_gradient_checkpointing(objective, config.gradient_checkpointing)
        objective.train()
        tracer.watch(objective)
        optimizer = config.optimizer.build(objective)
        weights = tracer.allocator.live
        trained = [p for p in objective.parameters() if p.requires_grad]

        def micro_batch(batch: Batch) -> dict[str, int]:
            before = tracer.held()
            with tracer.span("forward"), torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
                total = objective(batch).total(batch.targets)
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

        # the peak is in the second step, which has the optimizer state, and gradients of an earlier micro-batch
        micro_batch(largest)
        update()
        state = tracer.allocator.live - weights
        by_part = micro_batch(largest)
        gradients = sum(p.grad.nbytes for p in trained if p.grad is not None)
        if accumulate:
            micro_batch(largest)
        update()
        tracer.spans.clear()  # time and FLOPs are those of the third step, with a typical batch
        micro_batch(typical)
        update()
        embeddings = {p for m in objective.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
        parameters = {"total": [*objective.parameters()], "trained": trained, "embeddings": [*embeddings]}
    process, peak = 0, tracer.allocator.peak_live
    if device.type == "cpu":
        process, peak = round(rates.base), round(rates.base) + tracer.allocator.peak
    return Prediction(
        rows=rows,
        parameters={name: sum(p.numel() for p in group) for name, group in parameters.items()},
        memory=Memory(weights, gradients, state, sum(by_part.values()), by_part, process, peak),
        tokens=typical.real_tokens / typical.num_rows,
        flops_forward=tracer.sum("forward", flops),
        flops_backward=tracer.sum("backward", flops),
        seconds=tracer.sum("forward", rates.seconds) + tracer.sum("backward", rates.seconds),
        update_seconds=tracer.sum("update", rates.seconds),
    )


class NothingFits(UserError):
    """Error of a recipe that needs more memory than the limit with any settings."""


@dataclass(frozen=True)
class Choice:
    """Settings for a step of ``batch_size`` rows."""

    workload: Workload  # `workload.train` has the chosen settings
    rows: int  # of a micro-batch
    prediction: Prediction

    @property
    def accumulation(self) -> int:
        """Number of micro-batches of a step."""
        return -(-self.workload.train.batch_size // self.rows)

    @property
    def step_seconds(self) -> float:
        """Predicted seconds of a step."""
        micro_batches = self.workload.train.batch_size / self.rows
        return micro_batches * self.prediction.seconds + self.prediction.update_seconds


def choose(workload: Workload, *, memory: int | None, predict: Predict) -> Choice:
    """Choose the fastest settings of a step within ``memory`` bytes.

    A ``micro_batch_size`` in the recipe is kept. Gradient checkpointing is enabled if nothing fits without it, or if
    it is faster than the small micro-batches that fit. If nothing fits and the recipe has ``precision: auto``, bf16 is
    tried last.

    Raises:
        NothingFits: with the minimum memory.
    """
    plain = _largest_fitting(workload, memory, predict)
    if plain is not None and (memory is None or plain.accumulation == 1):
        return plain
    assert memory is not None
    others = [] if workload.train.gradient_checkpointing else [workload.with_train(gradient_checkpointing=True)]
    choices = [plain, *(_largest_fitting(other, memory, predict) for other in others)]
    if not any(choices) and workload.train.precision == "auto":
        in_bf16 = [other.with_train(precision="bf16") for other in [workload, *others]]
        choices = [_largest_fitting(other, memory, predict) for other in in_bf16]
        others += in_bf16
    if fitting := [choice for choice in choices if choice is not None]:
        return min(fitting, key=lambda choice: choice.step_seconds)
    rows = workload.train.micro_batch_size or 1
    accumulate = rows < workload.train.batch_size
    minimum = min(predict(other, rows, accumulate).memory.peak for other in [workload, *others])
    lighter = f", or set {workload.lighter}" if workload.lighter else ""
    fewer = "train.micro_batch_size or " if rows > 1 else ""
    raise NothingFits(
        f"nothing fits into {_gigabytes(memory)}: with micro-batches of {rows} this recipe takes at least "
        f"{_gigabytes(minimum)}; allow that much, lower {fewer}data.max_length, or take a smaller model{lighter}"
    )


def _largest_fitting(workload: Workload, memory: int | None, predict: Predict) -> Choice | None:
    """Choose the largest micro-batch that fits, among those that split the step most evenly."""
    batch, fixed = workload.train.batch_size, workload.train.micro_batch_size
    largest = min(fixed or batch, batch)
    upper = predict(workload, largest, largest < batch)
    if memory is None or upper.memory.peak <= memory:
        return Choice(workload, largest, upper)
    if fixed is not None or largest == 1:
        return None
    lower = predict(workload, 1, True)
    if lower.memory.peak > memory:
        return None
    # memory is nearly linear in the rows; otherwise the next smaller size is tried
    slope = (upper.memory.peak - lower.memory.peak) / (largest - 1)
    rows = 1 + int((memory - lower.memory.peak) / max(slope, 1.0))
    for size in sorted({-(-batch // parts) for parts in range(2, batch)}, reverse=True):
        if size <= rows:
            prediction = predict(workload, size, True)
            if prediction.memory.peak <= memory:
                return Choice(workload, size, prediction)
    return Choice(workload, 1, lower)


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e7 else f"{size:,} bytes"
