"""Plan of a training on several devices, and the choice of ``train.parallel=auto``."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal, get_args

import psutil
import torch
from accelerate.utils import broadcast_object_list

from homespun.commands.workload import Work
from homespun.config import Tree
from homespun.errors import UserError
from homespun.planning.parallel import (
    ACCELERATORS,
    UTILIZATION,
    Kind,
    WeightBytes,
    communicated_bytes,
    device_memory,
    update_seconds,
)
from homespun.planning.predict import Choice, NothingFits, Predict, Prediction, Workload, choose, predict
from homespun.planning.rates import Rates
from homespun.planning.tracer import StepTracer
from homespun.training.config import TrainConfig
from homespun.training.devices import DistributedContext

HERE = "here"
GLOO_BANDWIDTH = 0.6e9
"""Bytes a second that a process sends, gloo over the loopback interface of a CPU (results/scaling.md)."""


@dataclass(frozen=True)
class Cluster:
    """Devices of a training.

    Args:
        nodes: number of machines.
        gpus: devices, or CPU processes, of each machine.
        device: ``here``, devices as this machine has; or a name in `ACCELERATORS`, such as ``h100``.
        bandwidth: bytes a second that a device sends; default: of the data sheet, or `GLOO_BANDWIDTH`.
        price: price of an hour of a device, in any currency.

    Raises:
        UserError: a number is below 1, the price is not a positive number, the device is unknown, or GPUs of this
            machine have no ``bandwidth``.
    """

    nodes: int
    gpus: int
    device: str = HERE
    bandwidth: float | None = None
    price: float | None = None

    def __post_init__(self) -> None:
        for name in ("nodes", "gpus"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name}={getattr(self, name)} must be 1 or more; raise it")
        if self.price is not None and not 0 < self.price < math.inf:
            raise UserError(f"--price={self.price:g} must be a positive number: the price of an hour of a device")
        if self.device not in (HERE, *ACCELERATORS):
            raise UserError(f"--device={self.device} is unknown; use {', '.join((HERE, *ACCELERATORS))}")
        if self.device == HERE and self.bandwidth is None and torch.cuda.is_available():
            raise UserError("--bandwidth is missing; give the bytes a second between the GPUs, or --device h100")

    def check_batch(self, batch_size: int) -> None:
        """Raise `UserError` if a step has fewer rows than there are devices."""
        if batch_size < self.devices:
            raise UserError(
                f"train.batch_size={batch_size} is less than one row for each of {self.devices} devices; raise it"
            )

    @property
    def devices(self) -> int:
        """Number of devices of all nodes."""
        return self.nodes * self.gpus

    @property
    def sent_per_second(self) -> float:
        """Bytes a second that a device sends; the slowest link of a ring over nodes is the network."""
        if self.bandwidth is not None or self.device == HERE:
            return self.bandwidth or GLOO_BANDWIDTH
        accelerator = ACCELERATORS[self.device]
        return accelerator.link if self.nodes == 1 else accelerator.network

    def limit(self, here: torch.device) -> float:
        """Bytes of memory of a device."""
        if self.device != HERE:
            return ACCELERATORS[self.device].memory
        return available_bytes(here, self.gpus)


def available_bytes(device: torch.device, processes: int) -> float:
    """Memory of a GPU, or an equal share of this machine's memory for each of ``processes``."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return psutil.virtual_memory().total / processes


def plan_parallel(work: Work, cluster: Cluster, rates: Rates, here: torch.device, memory: int | None) -> Tree:
    """Plan a step under each kind of `homespun.planning.parallel.Kind`.

    ``rates`` and ``here`` are of this machine; ``memory`` is the limit of each device in bytes, None: all that it has.
    """
    limit, workload = memory or cluster.limit(here), work.workload
    if cluster.device != HERE and workload.train.precision == "auto":
        workload = workload.with_train(precision="bf16")
    weights = _weights(workload, cluster.devices)
    alone = _alone(cluster, rates, here)
    kinds = {kind: _plan_kind(kind, workload, cluster, weights, alone, round(limit)) for kind in get_args(Kind)}
    chosen = "none" if cluster.devices == 1 else "ddp" if kinds["ddp"]["fits"] else "fsdp"
    described = {"nodes": cluster.nodes, "gpus": cluster.gpus, "device": cluster.device, "limit": round(limit)}
    return described | {"bandwidth": cluster.sent_per_second, "chosen": chosen, "kinds": kinds}


def training_totals(planned: Tree, cluster: Cluster, steps: int) -> Tree:
    """Return a result of `plan_parallel` with the time and the cost of ``steps`` under each kind."""
    kinds = {}
    for kind, step in planned["kinds"].items():
        seconds = steps * step["seconds_per_step"]
        hours = seconds / 3600 * (1 if kind == "none" else cluster.devices)
        cost = None if cluster.price is None else hours * cluster.price
        kinds[kind] = step | {"training_seconds": seconds, "device_hours": hours, "cost": cost}
    return planned | {"kinds": kinds}


def choose_parallel(config: TrainConfig, work: Callable[[], Work]) -> Literal["ddp", "fsdp"]:
    """Return ``ddp`` if it fits into the memory of the devices or the settings cannot be sharded, otherwise ``fsdp``.

    The first process chooses for all, because machines may differ.
    """
    context = DistributedContext.join()
    if context.world_size == 1 or config.unshardable is not None:
        return "ddp"
    kinds: list[Literal["ddp", "fsdp"]] = ["ddp"]
    if context.is_main:
        kinds = [_fitting(work().workload, context)]
    broadcast_object_list(kinds)
    return kinds[0]


def _fitting(workload: Workload, context: DistributedContext) -> Literal["ddp", "fsdp"]:
    share = -(-workload.train.batch_size // context.world_size)  # rows of the process with the most
    rows = min(workload.train.micro_batch_size or share, share)
    ones = Rates(**{field.name: 1.0 for field in dataclasses.fields(Rates)})  # seconds do not matter
    alone = predict(workload, rows, ones, device=context.device, accumulate=rows < share).memory
    weights = _weights(workload, context.world_size)
    peak = device_memory("ddp", alone, weights, accumulate=rows < share).peak
    local = int(os.environ.get("LOCAL_WORLD_SIZE", context.world_size))
    return "ddp" if peak <= available_bytes(context.device, local) else "fsdp"


def _weights(workload: Workload, devices: int) -> WeightBytes:
    with StepTracer():
        return WeightBytes.of(workload.build(), devices)


def _alone(cluster: Cluster, rates: Rates, here: torch.device) -> Predict:
    """Return a cached prediction of a device that trains without others."""
    accelerator = ACCELERATORS.get(cluster.device)

    @functools.cache
    def alone(workload: Workload, rows: int, accumulate: bool) -> Prediction:
        if accelerator is None:
            return predict(workload, rows, rates, device=here, accumulate=accumulate)
        found = predict(workload, rows, rates, device=torch.device("cuda"), accumulate=accumulate)
        seconds = (found.flops_forward + found.flops_backward) / (UTILIZATION * accelerator.flops)
        return dataclasses.replace(found, seconds=seconds)

    return alone


def _plan_kind(
    kind: Kind, workload: Workload, cluster: Cluster, weights: WeightBytes, alone: Predict, limit: int
) -> Tree:
    devices, batch = 1 if kind == "none" else cluster.devices, workload.train.batch_size
    share = -(-batch // devices)  # rows of the device with the most

    def single(workload: Workload, rows: int) -> Prediction:
        # predict the complete batch once, for all kinds
        return alone(workload.with_train(batch_size=batch), rows, rows < share)

    def shared(workload: Workload, rows: int, accumulate: bool) -> Prediction:
        prediction = single(workload, rows)
        peak = device_memory(kind, prediction.memory, weights, accumulate=accumulate).peak
        return dataclasses.replace(prediction, memory=dataclasses.replace(prediction.memory, peak=peak))

    own = workload.with_train(batch_size=share)
    try:
        choice = choose(own, memory=limit, predict=shared)
    except NothingFits:  # the plan with the least memory
        least = own.with_train(micro_batch_size=1, gradient_checkpointing=True)
        choice = Choice(least, 1, shared(least, 1, share > 1))
    prediction = choice.prediction
    accumulate = choice.rows < share
    held = device_memory(kind, single(choice.workload, choice.rows).memory, weights, accumulate=accumulate)
    sent = communicated_bytes(kind, weights, devices=devices, micro_batches=choice.accumulation)
    accelerator = ACCELERATORS.get(cluster.device)
    seconds = {
        "compute": share / choice.rows * prediction.seconds,
        "update": prediction.update_seconds * held.weights / prediction.memory.weights
        if accelerator is None
        else update_seconds(held, accelerator.moved),
        "communication": sent / cluster.sent_per_second,
    }
    step = sum(seconds.values())
    return asdict(held) | {
        "fits": held.peak <= limit,
        "micro_batch_size": choice.rows,
        "accumulation": choice.accumulation,
        "gradient_checkpointing": choice.workload.train.gradient_checkpointing,
        "communicated_bytes": sent,
        "seconds": seconds,
        "seconds_per_step": step,
        "tokens_per_second": batch * prediction.tokens / step,
    }
