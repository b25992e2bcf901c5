"""Seconds that two processes of a sharded training wait for a checkpoint, and that its thread then takes.

The state is that of AdamW for linear layers. Between two checkpoints nothing is trained.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from homespun.training.checkpoint import write_checkpoint
from homespun.training.devices import DistributedContext
from homespun.training.processes import launch

WIDTH, ROUNDS = 2_000, 3


def measure(millions: int) -> dict[str, Any]:
    """Save about ``millions`` of parameters `ROUNDS` times; the figures are those of the first process."""
    with tempfile.TemporaryDirectory() as folder:
        launch(2, save, Path(folder), max(1, round(millions * 10**6 / WIDTH**2)))
        return {"parameters": millions * 10**6, **json.loads((Path(folder) / "seconds.json").read_text())}


def save(folder: Path, layers: int) -> None:
    torch.set_num_threads(1)
    context = DistributedContext.join()
    from homespun.training.sharding import ShardedObjective  # imports torch.distributed.tensor for a second

    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(layers)])
    sharded = ShardedObjective(model, torch.device("cpu"))
    weights = dict(model.named_parameters())
    moments = {f"{name}/{key}": value.detach().clone() for key, value in weights.items() for name in ("mean", "square")}
    seconds: dict[str, list[float]] = {}
    for number in range(ROUNDS):
        context.wait()
        shards = folder / f"shards-{number}"
        with _timed(seconds, "copy"):
            copies = {"model": sharded.copy(weights), "optimizer": sharded.copy(moments)}
        with _timed(seconds, "thread"):
            sharded.write(copies, shards)
            if context.is_main:
                write_checkpoint(folder / f"step-{number}", {}, {"step": number}, shards=shards)
    if context.is_main:
        (folder / "seconds.json").write_text(json.dumps(seconds))
    context.wait()


@contextmanager
def _timed(seconds: dict[str, list[float]], name: str) -> Iterator[None]:
    """Add the seconds of a block by the clock and of the processor."""
    clocks: dict[str, Callable[[], float]] = {"": time.perf_counter, ", processor": time.process_time}
    start = {kind: clock() for kind, clock in clocks.items()}
    yield
    for kind, clock in clocks.items():
        seconds.setdefault(name + kind, []).append(round(clock() - start[kind], 2))
