"""Precision of training; ``train.precision=auto`` measures matrix products on a CPU."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from homespun.training.checkpoint import State
from homespun.training.config import Limits
from homespun.training.devices import DTYPES, PrecisionName, has_bf16, has_lstm, resolve_dtype

logger = logging.getLogger(__name__)

MIN_SPEEDUP = 1.3
"""Minimum speed of bfloat16 / float32 products at which ``auto`` chooses bf16; other operations are not faster."""

_MIN_SECONDS, _MIN_FLOPS = 20.0, 5e11  # a few seconds of one core in float32
_ROUNDS, _SIZE, _SECONDS = 6, 512, 0.3

PRECISIONS = tuple(DTYPES)
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Precision:
    """Dtype of matrix products, and the reason for it."""

    name: PrecisionName
    reason: str


def choose_precision(
    precision: PrecisionName | Literal["auto"],
    device: torch.device,
    *,
    objective: nn.Module,
    limits: Limits,
    batch_size: int,
    row_tokens: float,
) -> Precision:
    """Choose the precision of a new training. A resumed training keeps its precision.

    On a CPU ``auto`` is bf16 if the processor has bfloat16 instructions and multiplies at least `MIN_SPEEDUP` times as
    fast with them, measured for 0.3 s once per process. Trainings under 20 s of ``train.budget.time`` or under 5e11
    FLOPs (6 x parameters x tokens, Kaplan et al. 2020, section 2.1) use float32 without a measurement.

    Args:
        precision: ``train.precision``.
        device: device of the training.
        objective: module whose parameters are counted; may be on the meta device.
        limits: limits of the budget.
        batch_size: rows of a step.
        row_tokens: mean length of a row.

    Raises:
        UserError: fp16 without a GPU.
    """
    chosen = _NAMES[resolve_dtype(precision, device)]
    if device.type == "cpu" and chosen == "bf16" and has_bf16() is False:
        logger.warning("this processor has no bfloat16 instructions: bf16 may be many times slower than float32")
    if precision != "auto":
        return Precision(chosen, f"train.precision={precision}")
    if device.type != "cpu":
        return Precision(chosen, "the GPU has bfloat16" if chosen == "bf16" else "the device has no bfloat16")
    if not has_bf16():
        return Precision("float32", "the processor has no bfloat16 instructions")
    if not has_lstm(torch.bfloat16, device) and any(isinstance(module, nn.LSTM) for module in objective.modules()):
        return Precision("float32", "torch has no LSTM in bfloat16 on this processor")
    tokens = min(limits.tokens, limits.steps * batch_size * row_tokens)
    flops = 6.0 * sum(parameter.numel() for parameter in objective.parameters()) * tokens
    if limits.seconds < _MIN_SECONDS or flops < _MIN_FLOPS:
        return Precision("float32", "the training is too short to measure bfloat16")
    ratio = _bf16_speedup(torch.get_num_threads())
    measured = f"bfloat16 matrix products run {ratio:.1f} times as fast as float32 here"
    return Precision("bf16" if ratio >= MIN_SPEEDUP else "float32", f"{measured}; bf16 from {MIN_SPEEDUP} times")


def recorded_precision(state: State | None, device: torch.device) -> Precision | None:
    """Return the precision of a resumed run from the ``state`` of its last checkpoint; ``None`` for a new run."""
    if state is None:
        return None
    if "precision" in state:
        return Precision(**state["precision"])
    return Precision(_NAMES[resolve_dtype("auto", device)], "as the run began")  # before auto was measured on CPUs


def multiplies_faster_in_bf16() -> bool:
    """True if the CPU has bfloat16 instructions and multiplies at least `MIN_SPEEDUP` times as fast with them."""
    return bool(has_bf16()) and _bf16_speedup(torch.get_num_threads()) >= MIN_SPEEDUP


@functools.cache
def _bf16_speedup(threads: int) -> float:
    float32, bf16 = product_rates((torch.float32, torch.bfloat16), size=_SIZE, seconds=_SECONDS)
    return bf16 / float32


def product_rates(dtypes: Sequence[torch.dtype], *, size: int, seconds: float) -> list[float]:
    """Measure FLOPs a second of square matrix products on the CPU in each of several types.

    The types alternate and the best round of each counts, so that other processes slow down both equally.

    Args:
        dtypes: types of the matrices.
        size: rows and columns of the matrices.
        seconds: duration of the measurement.
    """
    pairs = [tuple(torch.rand(2, size, size).to(dtype)) for dtype in dtypes]
    products = [left @ right for left, right in pairs]  # the first product also allocates and starts threads
    best = [0.0 for _ in dtypes]
    for _ in range(_ROUNDS):
        for index, (left, right) in enumerate(pairs):
            spent, count = 0.0, 0
            started = time.perf_counter()
            while spent < seconds / (len(dtypes) * _ROUNDS):
                torch.mm(left, right, out=products[index])
                count += 1
                spent = time.perf_counter() - started
            best[index] = max(best[index], 2 * size**3 * count / spent)
    return best
