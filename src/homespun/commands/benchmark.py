"""Latency and memory of inference by length of the text."""

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

_LEAST, _MOST, _SECONDS = 3, 50, 0.5  # passes a length, and for how long they go on


class InferenceCost(TypedDict):
    """Median time per text and peak memory, of the process or of the GPU, at one input length."""

    length: int
    batch_size: int
    seconds_per_text: float
    peak_bytes: int


class Benchmark(TypedDict):
    """Size of a model and its cost by input length."""

    parameters: int
    device: str
    threads: int
    inference: list[InferenceCost]


def benchmark(run: str, *, lengths: Sequence[int] = (128, 512), batch_size: int = 1) -> Benchmark:
    """Time and memory of the model in ``run``, on texts of random tokens, all of one length.

    A fine-tuned model is measured with its head, another without: what a head over the vocabulary costs depends on how
    many of its logits are wanted. An encoder with a decoder reads a text and is given one as long.

    Args:
        run: a run, a ``model/`` folder, or whatever else `open_model` opens.
        lengths: tokens a text; those that the model cannot read are left out.
        batch_size: texts at a time.

    Raises:
        UserError: there is no such model, or it can read none of the lengths.
    """
    if not lengths or min(lengths) < 1 or batch_size < 1:
        raise UserError(f"lengths and the batch size must be 1 or more, not {list(lengths)} and {batch_size}")
    stored = open_model(run)
    limit = stored.config.backbone.max_position_embeddings
    fitting = sorted({length for length in lengths if length <= limit})
    if not fitting:
        raise UserError(f"{run} reads {limit} tokens at most, fewer than {min(lengths)}; give --lengths {limit}")
    device = DistributedContext.join().device
    model = stored.model.to(device).eval()
    rows = [_measured(stored, length, batch_size, device) for length in fitting]
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "device": str(device),
        "threads": torch.get_num_threads(),
        "inference": rows,
    }


def _measured(stored: ModelBundle, length: int, batch_size: int, device: torch.device) -> InferenceCost:
    use = _use(stored, length, batch_size, device)
    with torch.inference_mode(), PeakMemory(device) as memory:
        use()  # the first pass makes what later ones find made
        seconds: list[float] = []
        while len(seconds) < _LEAST or (len(seconds) < _MOST and sum(seconds) < _SECONDS):
            started = time.perf_counter()
            use()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - started)
    return {
        "length": length,
        "batch_size": batch_size,
        "seconds_per_text": statistics.median(seconds) / batch_size,
        "peak_bytes": memory.peak_bytes,
    }


def _use(stored: ModelBundle, length: int, batch_size: int, device: torch.device) -> Callable[[], object]:
    """Function that makes one pass over the same batch of random tokens."""
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(stored.tokenizer.vocab_size, (batch_size, length), generator=draw).to(device)
    used = stored.model if stored.labels is not None else stored.model.backbone
    if stored.config.backbone.has_decoder:
        return lambda: used(tokens, decoder_input_ids=tokens)
    return lambda: used(tokens)
