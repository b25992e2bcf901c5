"""What one step of training takes: memory, FLOPs and seconds, from a `Shadow` of the step itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from homespun.batch import Batch
from homespun.models.backbone import Encoder
from homespun.nn.repeats import rehearsed
from homespun.planning.rates import Rates, flops
from homespun.planning.trace import Shadow
from homespun.training.config import TrainConfig
from homespun.training.devices import number_type


@dataclass(frozen=True)
class Workload:
    """What is to be trained, on what: enough to run a step of it, or its shadow.

    Args:
        build: the objective, with weights drawn anew.
        batches: ``(rows, count)`` -> so many micro-batches of so many rows.
        train: how it is trained.
        lighter: a setting that would take less memory, in words; empty: none is known.
        told: how many rows its shadow has just gone through, forward or backward: for who waits.
    """

    build: Callable[[], nn.Module]
    batches: Callable[[int, int], list[Batch]]
    train: TrainConfig
    lighter: str = ""
    told: Callable[[int], None] = lambda rows: None


@dataclass(frozen=True)
class Memory:
    """Bytes. ``peak`` is what a run reports: the process on a CPU, the tensors on a GPU."""

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
    tokens: float  # of a row, padding excluded
    flops_forward: float  # of a micro-batch
    flops_backward: float
    seconds: float  # of a micro-batch, forward and backward
    update_seconds: float  # once a step


def predict(workload: Workload, rows: int, rates: Rates, *, device: torch.device, accumulate: bool) -> Prediction:
    """Run the shadow of two steps, of which the second has the optimizer's state and, with ``accumulate``, two parts.

    Raises:
        UserError: the recipe cannot be built, or its device lacks the precision.
    """
    config = workload.train
    heaviest, typical = workload.batches(rows, 2)
    dtype = number_type(config.precision, device)
    with Shadow() as shadow, rehearsed(shadow.times):
        objective = workload.build()
        for module in objective.modules():
            if isinstance(module, Encoder):
                module.gradient_checkpointing = config.gradient_checkpointing
        objective.train()
        shadow.watch(objective)
        optimizer = config.optimizer.build(objective)
        parameters = _count(objective)
        weights = shadow.heap.live
        learning = [p for p in objective.parameters() if p.requires_grad]

        def micro_batch(part: Batch) -> dict[str, int]:
            before = shadow.held()
            with shadow.span("forward"), torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
                total = objective(part).total(part.targets)
            workload.told(rows)
            kept = {name: size - before.get(name, 0) for name, size in shadow.held().items()}
            with shadow.span("backward"):
                torch.autograd.backward(total)
            workload.told(rows)
            return {name: size for name, size in kept.items() if size > 0}

        def update() -> None:
            with shadow.span("update"):
                torch.nn.utils.clip_grad_norm_(learning, config.max_grad_norm or float("inf"))
                optimizer.step()

        # the second step has the optimizer's state, and the gradients of a part before where there are several
        micro_batch(heaviest)
        update()
        optimizer.zero_grad(set_to_none=True)
        state = shadow.heap.live - weights
        by_part = micro_batch(heaviest)
        gradients = sum(p.grad.numel() * p.grad.element_size() for p in learning if p.grad is not None)
        if accumulate:
            micro_batch(heaviest)
        update()
        optimizer.zero_grad(set_to_none=True)
        # and the third is as steps are as a rule
        shadow.spans.clear()
        micro_batch(typical)
        update()
    forward, backward, updating = (shadow.spans[name].operations for name in ("forward", "backward", "update"))
    on_cpu = device.type == "cpu"
    return Prediction(
        rows=rows,
        parameters=parameters,
        memory=Memory(
            weights=weights,
            gradients=gradients,
            optimizer=state,
            activations=sum(by_part.values()),
            by_part=by_part,
            process=round(rates.base) if on_cpu else 0,
            peak=(shadow.heap.peak if on_cpu else shadow.heap.peak_live) + (round(rates.base) if on_cpu else 0),
        ),
        tokens=typical.real_tokens / typical.num_rows,
        flops_forward=sum(flops(op) * count for op, count in forward.items()),
        flops_backward=sum(flops(op) * count for op, count in backward.items()),
        seconds=sum(rates.seconds(op) * count for span in (forward, backward) for op, count in span.items()),
        update_seconds=sum(rates.seconds(op) * count for op, count in updating.items()),
    )


def _count(objective: nn.Module) -> dict[str, int]:
    embeddings = {p for m in objective.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    return {
        "total": sum(p.numel() for p in objective.parameters()),
        "trained": sum(p.numel() for p in objective.parameters() if p.requires_grad),
        "embeddings": sum(p.numel() for p in embeddings),
    }
