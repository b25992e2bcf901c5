"""Memory, communication and time of a training step shared by several devices.

The memory of each device follows Rajbhandari et al. (2020, ZeRO), section 5: weights, gradients and optimizer state are
copied to all devices (``ddp``) or divided among them (``fsdp``, stage 3). Buffers follow the documentation of
`torch.nn.parallel.DistributedDataParallel` and `torch.distributed.fsdp.fully_shard`; communication follows section 7 of
the paper, with the ring algorithms of Patarasuk and Yuan (2009).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import nn

from homespun.planning.predict import Memory

Kind = Literal["none", "ddp", "fsdp"]


@dataclass(frozen=True)
class Accelerator:
    """Figures of the data sheets, for a device in a server of eight."""

    memory: float  # bytes
    flops: float  # a second, dense, bfloat16
    moved: float  # bytes a second, of its memory
    link: float  # bytes a second to the devices of the node, in one direction
    network: float  # bytes a second to other nodes, in one direction


ACCELERATORS: Mapping[str, Accelerator] = {
    "a100": Accelerator(80e9, 312e12, 2.0e12, 300e9, 25e9),
    "h100": Accelerator(80e9, 989e12, 3.35e12, 450e9, 50e9),
}

UTILIZATION = 0.4
"""Assumed share of `Accelerator.flops`: 0.38 to 0.43 with 8,192 to 16,384 H100 (Llama Team 2024, table 4)."""


@dataclass(frozen=True)
class WeightBytes:
    """Bytes of the weights of an objective."""

    total: int
    trained: int
    shard: int  # bytes of the largest shard of a device, under fsdp
    rest: int  # outside of layers: gathered from the beginning of a forward pass to the end of the backward pass
    layer: int  # bytes of the largest layer

    @classmethod
    def of(cls, objective: nn.Module, devices: int) -> WeightBytes:
        """Compute the bytes of an objective whose tensors are divided by rows, as `fully_shard` does."""
        from homespun.training.sharding import sharded_layers  # imports torch.distributed.tensor for a second

        parameters = list(objective.parameters())
        layers = [sum(p.nbytes for p in layer.parameters()) for layer in sharded_layers(objective)]
        total = sum(p.nbytes for p in parameters)
        return cls(
            total=total,
            trained=sum(p.nbytes for p in parameters if p.requires_grad),
            shard=sum(-(-len(p) // devices) * (p.nbytes // len(p)) if p.ndim else p.nbytes for p in parameters),
            rest=total - sum(layers),
            layer=max(layers, default=0),
        )


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of one device."""

    weights: int
    gradients: int
    optimizer: int
    buffers: int  # ddp: a copy of the gradients; fsdp: gathered weights and their gradients
    activations: int
    process: int
    peak: int  # includes the fragmentation of one process


def device_memory(kind: Kind, alone: Memory, weights: WeightBytes, *, accumulate: bool) -> DeviceMemory:
    """Estimate the memory of a device. Its ``peak`` is an upper bound.

    Args:
        kind: ``ddp`` keeps a second copy of all gradients in its all-reduce buckets. ``fsdp`` holds weights outside of
            layers and their gradients for the complete step, and of layers the gathered weights of the current and the
            next layer, and one gradient.
        alone: memory of one device that trains the same micro-batch without others.
        weights: weights of the objective, for the number of devices.
        accumulate: the step has several micro-batches, so gradients exist at the memory peak.
    """
    share, buffers = 1.0, 0
    if kind == "ddp":
        buffers = alone.gradients
    elif kind == "fsdp":
        share, buffers = weights.shard / weights.total, 2 * weights.rest + 3 * weights.layer
    at_peak = alone.weights + alone.optimizer + (alone.gradients if accumulate else 0)
    return DeviceMemory(
        weights=round(share * alone.weights),
        gradients=round(share * alone.gradients),
        optimizer=round(share * alone.optimizer),
        buffers=buffers,
        activations=alone.activations,
        process=alone.process,
        peak=alone.peak - round((1 - share) * at_peak) + buffers,
    )


def communicated_bytes(kind: Kind, weights: WeightBytes, *, devices: int, micro_batches: int) -> int:
    """Compute the bytes that each device sends in a step.

    A ring of n devices sends (n - 1) / n of a tensor to gather or reduce-scatter it, and twice that to all-reduce it.
    ``ddp`` all-reduces the gradients once a step. For each micro-batch, ``fsdp`` gathers the weights of layers in the
    forward and in the backward pass and other weights once, and reduce-scatters all gradients.
    """
    sent = {
        "none": 0,
        "ddp": 2 * weights.trained,
        "fsdp": micro_batches * (2 * weights.total - weights.rest + weights.trained),
    }
    return round((devices - 1) / devices * sent[kind])


def update_seconds(memory: DeviceMemory, moved: float) -> float:
    """Estimate the time of the optimizer, which reads and writes weights, gradients and state."""
    return 2 * (memory.weights + memory.gradients + memory.optimizer) / moved
