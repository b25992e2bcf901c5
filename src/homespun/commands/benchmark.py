"""Latency and memory of inference by input length."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypedDict

import torch
from torch import nn

from homespun.errors import UserError
from homespun.hf.open import open_model
from homespun.models.bundle import ModelBundle
from homespun.planning.rates import synchronize
from homespun.training.devices import DistributedContext, PeakMemory


class Passes(NamedTuple):
    """Numbers of forward passes; none starts after the seconds, except the least number."""

    least: int
    most: int
    seconds: float


_PASSES = Passes(least=3, most=50, seconds=0.5)


class InferenceCost(TypedDict):
    """Median time per text and peak memory, of the process or of the GPU, at one input length."""

    length: int
    batch_size: int
    seconds_per_text: float
    peak_bytes: int


class Benchmark(TypedDict):
    """Number of parameters of a model, and its cost by input length."""

    parameters: int
    device: str
    threads: int
    inference: list[InferenceCost]


def benchmark(run: str, *, lengths: Sequence[int] = (128, 512), batch_size: int = 1) -> Benchmark:
    """Measure latency and memory of inference on random tokens.

    Models with classes or tags are measured with their head. Others are measured without a head, because the cost of
    vocabulary logits depends on the number of positions. The decoder of an encoder-decoder reads as many tokens as the
    encoder.

    Args:
        run: a run, a ``model/`` folder, or another source for `homespun.hf.open.open_model`.
        lengths: input lengths in tokens; those above the model's maximum are skipped.
        batch_size: texts per batch.

    Returns:
        ``parameters``, ``device``, ``threads`` and ``inference``, a list with the cost of each length.

    Raises:
        UserError: there is no such model, or all ``lengths`` exceed its maximum.
    """
    if not lengths or min(lengths) < 1 or batch_size < 1:
        raise UserError(f"--lengths {list(lengths)} and --batch-size {batch_size} must be at least 1")
    stored = open_model(run)
    limit = stored.config.backbone.max_position_embeddings
    allowed = sorted({length for length in lengths if length <= limit})
    if not allowed:
        raise UserError(
            f"--lengths {min(lengths)} exceeds max_position_embeddings={limit} of {run}; give {limit} or less"
        )
    device = DistributedContext.join().device
    return {
        "parameters": sum(parameter.numel() for parameter in stored.model.parameters()),
        "device": str(device),
        "threads": torch.get_num_threads(),
        "inference": [_measure(stored, length, batch_size, device) for length in allowed],
    }


def _measure(stored: ModelBundle, length: int, batch_size: int, device: torch.device) -> InferenceCost:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(stored.tokenizer.vocab_size, (batch_size, length), generator=generator).to(device)
    forward = partial(inference_module(stored, device), tokens)
    if stored.config.backbone.has_decoder:
        forward = partial(forward, decoder_input_ids=tokens)
    with PeakMemory(device) as memory:
        (seconds,) = median_seconds([forward], device, _PASSES)
    return {
        "length": length,
        "batch_size": batch_size,
        "seconds_per_text": seconds / batch_size,
        "peak_bytes": memory.peak_bytes,
    }


def inference_module(stored: ModelBundle, device: torch.device) -> nn.Module:
    """Return the model on ``device`` in evaluation mode, without its head unless it has classes or tags."""
    model = stored.model.to(device).eval()
    return model if stored.labels is not None else model.backbone


@torch.inference_mode()
def median_seconds(
    calls: Sequence[Callable[[], object]],
    device: torch.device,
    passes: Passes,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Measure the median seconds of each call, in turns so that other load slows all."""
    for call in calls:
        call()  # warm-up: the first pass allocates memory and fills caches
    seconds: list[list[float]] = [[] for _ in calls]
    while len(seconds[0]) < passes.least or (len(seconds[0]) < passes.most and sum(map(sum, seconds)) < passes.seconds):
        for call, measured in zip(calls, seconds, strict=True):
            started = clock()
            call()
            synchronize(device)
            measured.append(clock() - started)
    return [statistics.median(measured) for measured in seconds]
