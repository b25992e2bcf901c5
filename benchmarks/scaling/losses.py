"""Losses of several processes against one, memory of sharded training, and resuming in other numbers.

A causal language model of random tokens trains in float32 in 1 process, in 2 with DDP, and in 2 and 4 with FSDP, all
from the same weights. The checkpoint of half of the steps, saved by 4, is resumed by 2, 1 and 4. ``memory``: the bytes
of parameters, gradients and optimizer state that a process holds after a step; the weights that it gathers during the
step come on top.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from homespun.data.loader import Loader
from homespun.data.rows import Row
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.heads import CausalLMHeadConfig
from homespun.objectives.clm import CausalLMObjective, ClmCollator
from homespun.training.config import Budget, TrainConfig
from homespun.training.devices import DistributedContext
from homespun.training.processes import launch
from homespun.training.run import Run
from homespun.training.trainer import Trainer

ROWS, LENGTH, BATCH, VOCABULARY, WIDTH, LAYERS = 64, 16, 8, 512, 64, 3
RUNS = {"ddp-2": ("ddp", 2), "fsdp-2": ("fsdp", 2), "fsdp-4": ("fsdp", 4)}
RESUMED = (2, 1, 4)


class RandomRows:
    """Rows of random tokens."""

    lengths = np.full(ROWS, LENGTH)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Row:
        return Row(np.random.default_rng(index).integers(1, VOCABULARY, LENGTH))


def train(folder: str, parallel: Literal["ddp", "fsdp"], steps: int) -> None:
    """Train or resume a run; each process writes the bytes that it holds into the folder."""
    torch.set_num_threads(1)
    context = DistributedContext.join()
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
    objective = CausalLMObjective(model.build(), model)
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
    for step in trainer:
        if step.number == steps:
            (Path(folder) / f"memory-{context.rank}").write_text(str(held_bytes(trainer)))


def held_bytes(trainer: Trainer) -> int:
    """Bytes of parameters, gradients and optimizer state of this process."""
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


def difference(found: list[float], expected: list[float]) -> float:
    """Largest relative difference."""
    return float(max(abs(a / b - 1) for a, b in zip(found, expected, strict=True)))


def measure(steps: int) -> dict[str, Any]:
    """Differences of losses and bytes of each process."""
    half = steps // 2
    differences, resumed, memory = {}, {}, {}
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
        for name, count in (("one", 1), ("fsdp-4", 4)):
            memory[str(count)] = max(int((folder / name / f"memory-{rank}").read_text()) for rank in range(count))
    return {
        "unit": "relative difference of losses, bytes",
        "steps": steps,
        "losses": differences,  # reach: at most 1e-5
        "resumed": resumed,  # reach: at most 1e-5
        "memory": memory,
        "ratios": {"memory": round(memory["4"] / memory["1"], 3)},  # reach: at most 0.3
    }
