"""Latency and memory of inference by input length."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import TypedDict

import torch

from homespun.errors import UserError
from homespun.hf.open import open_model
from homespun.models.bundle import ModelBundle
from homespun.training.devices import DistributedContext, PeakMemory

_MIN_PASSES, _MAX_PASSES, _SECONDS = 3, 50, 0.5  # forward passes per length; no pass starts after the seconds


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

    Fine-tuned models are measured with their head. Other models are measured without a head, because the cost of
    vocabulary logits depends on the number of positions. The decoder of an encoder-decoder reads as many tokens as the
    encoder.

    Args:
        run: a run, a ``model/`` folder, or another source for `homespun.hf.open.open_model`.
        lengths: input lengths in tokens; those above the model's maximum are skipped.
        batch_size: texts per batch.

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
    model = stored.model.to(device).eval()
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "device": str(device),
        "threads": torch.get_num_threads(),
        "inference": [_measure(stored, length, batch_size, device) for length in allowed],
    }


def _measure(stored: ModelBundle, length: int, batch_size: int, device: torch.device) -> InferenceCost:
    forward = _forward_pass(stored, length, batch_size, device)
    with torch.inference_mode(), PeakMemory(device) as memory:
        forward()  # warm-up: the first pass allocates memory and fills caches
        seconds: list[float] = []
        while len(seconds) < _MIN_PASSES or (len(seconds) < _MAX_PASSES and sum(seconds) < _SECONDS):
            started = time.perf_counter()
            forward()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - started)
    return {
        "length": length,
        "batch_size": batch_size,
        "seconds_per_text": statistics.median(seconds) / batch_size,
        "peak_bytes": memory.peak_bytes,
    }


def _forward_pass(stored: ModelBundle, length: int, batch_size: int, device: torch.device) -> Callable[[], object]:
    """Return a function that runs the model on one batch of random tokens."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(stored.tokenizer.vocab_size, (batch_size, length), generator=generator).to(device)
    model = stored.model if stored.labels is not None else stored.model.backbone
    if stored.config.backbone.has_decoder:
        return lambda: model(tokens, decoder_input_ids=tokens)
    return lambda: model(tokens)
