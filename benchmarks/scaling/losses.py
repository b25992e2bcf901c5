"""Losses of several processes against one, memory of sharded training, and resuming with other numbers of processes.

A causal language model of random tokens trains in float32 in 1 process, in 2 with DDP, and in 2 and 4 with FSDP, from
the same weights. The checkpoint at half of the steps, saved by 4 processes, is resumed by 2, 1 and 4. ``memory``: bytes
of parameters, gradients and optimizer state of a process after a step, without weights that are gathered during the
step.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from homespun.batch import Batch
from homespun.data.loader import Loader
from homespun.data.rows import Row
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.heads import CausalLMHeadConfig
from homespun.objectives.clm import CausalLMObjective, ClmCollator
from homespun.planning.parallel import Kind, WeightBytes, communicated_bytes, device_memory
from homespun.planning.predict import Workload, predict
from homespun.planning.rates import Rates
from homespun.training.config import Budget, TrainConfig
from homespun.training.devices import DistributedContext
from homespun.training.processes import launch
from homespun.training.run import Run
from homespun.training.trainer import Trainer

ROWS, LENGTH, BATCH, VOCABULARY, WIDTH, LAYERS = 64, 16, 8, 512, 64, 3
RUNS = {"ddp-2": ("ddp", 2), "fsdp-2": ("fsdp", 2), "fsdp-4": ("fsdp", 4)}
KINDS: dict[str, tuple[Kind, int]] = {
    "one": ("none", 1),
    "ddp-2": ("ddp", 2),
    "fsdp-2": ("fsdp", 2),
    "fsdp-4": ("fsdp", 4),
}
RESUMED = (2, 1, 4)


class RandomRows:
    """Rows of random tokens."""

    lengths = np.full(ROWS, LENGTH)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Row:
        return Row(np.random.default_rng(index).integers(1, VOCABULARY, LENGTH))


def build() -> CausalLMObjective:
    """Build an objective with the same weights in every process."""
    torch.manual_seed(0)
    backbone = EncoderConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        causal=True,
    )
    model = ModelConfig(backbone=backbone, head=CausalLMHeadConfig())
    return CausalLMObjective(model.build(), model)


def train(folder: str, parallel: Literal["ddp", "fsdp"], steps: int) -> None:
    """Train or resume a run; each process writes the bytes that it holds into the folder."""
    torch.set_num_threads(1)
    context = DistributedContext.join()
    objective = build()
    config = TrainConfig(
        batch_size=BATCH,
        micro_batch_size=1,
        budget=Budget(steps=steps),
        parallel=parallel,
        precision="float32",
        checkpoint_every=1e-9,
        keep_checkpoints=steps,
    )
    loader = Loader(
        RandomRows(),
        ClmCollator(0),
        batch_size=BATCH,
        micro_batch_size=1,
        seed=0,
        rank=context.rank,
        world_size=context.world_size,
    )
    trainer = Trainer(objective, loader, config, Run.create(folder, config, resume=True, main=context.is_main))
    with sent_bytes() as sent:
        for step in trainer:
            if step.number == steps:
                found = {"held": held_bytes(trainer), "sent": sum(sent)}
                (Path(folder) / f"process-{context.rank}").write_text(json.dumps(found))
            sent.clear()


@contextmanager
def sent_bytes() -> Iterator[list[float]]:
    """Record the bytes that this process sends for sharded tensors, one number for each collective operation."""
    sent: list[float] = []
    gather, scatter = torch.distributed.all_gather_single, torch.distributed.reduce_scatter_single

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*tensors: torch.Tensor, **options: Any) -> Any:
            by_name = [options.get(name) for name in ("output_tensor", "output", "input_tensor", "input")]
            sizes = [tensor.nbytes for tensor in (*tensors, *by_name) if isinstance(tensor, torch.Tensor)]
            sent.append(max(sizes) - min(sizes))
            return call(*tensors, **options)

        return wrapper

    torch.distributed.all_gather_single = counted(gather)
    torch.distributed.reduce_scatter_single = counted(scatter)
    try:
        yield sent
    finally:
        torch.distributed.all_gather_single, torch.distributed.reduce_scatter_single = gather, scatter


def held_bytes(trainer: Trainer) -> int:
    """Return the bytes of parameters, gradients and optimizer state of this process."""
    optimizer = trainer._training_step._optimizer
    tensors: list[torch.Tensor] = []
    for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
        tensors += [parameter, parameter.grad, *optimizer.state[parameter].values()]
    return sum(tensor.to_local().nbytes if isinstance(tensor, DTensor) else tensor.nbytes for tensor in tensors)


def start(count: int, *arguments: object) -> None:
    launch(count, train, *arguments) if count > 1 else train(*arguments)  # type: ignore[arg-type]


def losses(folder: Path) -> list[float]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line["loss/total"] for line in lines if line["event"] == "step"]


def processes(folder: Path) -> list[dict[str, int]]:
    """Return the bytes that each process held after the last step, and sent for sharded tensors in it."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("process-*"))]


def planned(kind: Kind, count: int) -> dict[str, int]:
    """Return the planned bytes of each process: held after a step, and sent in one."""

    def batches(size: int) -> tuple[Batch, Batch]:
        loader = Loader(RandomRows(), ClmCollator(0), batch_size=BATCH, micro_batch_size=size, seed=0)
        first, second, *_ = loader.step(0)
        return first, second

    config = TrainConfig(batch_size=BATCH, budget=Budget(steps=2), precision="float32")
    rates = Rates(**dict.fromkeys(Rates.__dataclass_fields__, 1.0))  # seconds do not matter
    alone = predict(Workload(build, batches, config), 1, rates, device=torch.device("cpu"), accumulate=True).memory
    weights = WeightBytes.of(build(), count)
    memory = device_memory(kind, alone, weights, accumulate=True)
    sent = communicated_bytes(kind, weights, devices=count, micro_batches=BATCH // count)
    return {"held": memory.weights + memory.gradients + memory.optimizer, "sent": sent}


def difference(found: list[float], expected: list[float]) -> float:
    """Return the largest relative difference."""
    return float(max(abs(a / b - 1) for a, b in zip(found, expected, strict=True)))


def measure(steps: int) -> dict[str, Any]:
    """Return differences of losses, and bytes of each process."""
    half = steps // 2
    differences, resumed, devices = {}, {}, {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        start(1, str(folder / "one"), "ddp", steps)
        expected = losses(folder / "one")
        for name, (parallel, count) in RUNS.items():
            start(count, str(folder / name), parallel, steps)
            differences[name] = difference(losses(folder / name), expected)
            print(name, differences[name], file=sys.stderr, flush=True)
        for count in RESUMED:
            copy = folder / f"resumed-{count}"
            shutil.copytree(folder / "fsdp-4", copy)
            for checkpoint in (copy / "checkpoints").iterdir():
                if int(checkpoint.name.removeprefix("step-")) > half:
                    shutil.rmtree(checkpoint)
            start(count, str(copy), "fsdp", steps)
            resumed[str(count)] = difference(losses(copy), expected)
            print("resumed by", count, resumed[str(count)], file=sys.stderr, flush=True)
        for name, (kind, count) in KINDS.items():
            measured = processes(folder / name)
            most = {key: max(process[key] for process in measured) for key in ("held", "sent")}
            devices[name] = {"measured": most, "planned": planned(kind, count)}
    held = {name: found["measured"]["held"] for name, found in devices.items()}
    return {
        "unit": "relative difference of losses, bytes",
        "steps": steps,
        "losses": differences,  # target: at most 1e-5
        "resumed": resumed,  # target: at most 1e-5
        "bytes": devices,  # `sent` is measured for fsdp alone
        "ratios": {"memory": round(held["fsdp-4"] / held["one"], 3)},  # target: at most 0.3
    }
