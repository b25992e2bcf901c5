"""Devices, their memory, and the peak memory of a training."""

from __future__ import annotations

import atexit
import gc
import importlib
import importlib.util
import os
import shutil
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

import psutil
import torch
from accelerate import PartialState

from homespun.errors import UserError
from homespun.nn.torch_private import mkldnn_has_bf16
from homespun.training.config import Limits
from homespun.training.malloc import trim_malloc

_LONG_SECONDS, _LONG_STEPS = 900, 2000  # compiling takes a minute or two


@dataclass(frozen=True)
class DistributedContext:
    """Rank, number of processes and device of this process."""

    rank: int
    world_size: int
    device: torch.device

    @classmethod
    def join(cls) -> DistributedContext:
        """Join the processes that `torchrun` or `accelerate launch` started; else there is one.

        The device is the best available; ``ACCELERATE_USE_CPU=true`` makes it the CPU.
        """
        if torch.distributed.is_available():  # functions there hold on to the group they find when imported
            importlib.import_module("torch.distributed.nn.functional")
        state = PartialState(cpu=trains_on_cpu())  # on a CPU, accelerate joins processes only with cpu=True
        if state.num_processes > 1:
            atexit.register(_leave, state)
        return cls(state.process_index, state.num_processes, state.device)

    @property
    def is_main(self) -> bool:
        """True in the one process that writes."""
        return self.rank == 0

    def wait(self) -> None:
        """Wait for all processes."""
        PartialState().wait_for_everyone()


def trains_on_cpu() -> bool:
    """True without an accelerator, or with ``ACCELERATE_USE_CPU``."""
    asked = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
    return asked or not torch.accelerator.is_available()


def _leave(state: PartialState) -> None:
    """End the threads of the process group, which may abort the process if they outlive the interpreter."""
    state.destroy_process_group()
    gc.collect()  # the last reference to the group joins its threads, and may be in an unreachable cycle


def resolve_dtype(precision: Literal["auto", "float32", "bf16", "fp16"], device: torch.device) -> torch.dtype:
    """Dtype of the matrix products of a step; weights are always float32.

    ``auto`` is bf16 on a GPU that has it, and float32 elsewhere; `homespun.training.precision` measures a CPU first.

    Raises:
        UserError: fp16 without a GPU.
    """
    if precision == "fp16" and device.type != "cuda":
        raise UserError(f"train.precision=fp16 needs a GPU, and the device is {device.type}; use auto or float32")
    if precision == "auto":
        has_it = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if has_it else torch.float32
    return {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def has_lstm(dtype: torch.dtype, device: torch.device) -> bool:
    """True if torch has an LSTM of ``dtype`` on ``device``: in bfloat16 oneDNN's needs hardware support."""
    on_onednn = device.type == "cpu" and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return dtype != torch.bfloat16 or not on_onednn or mkldnn_has_bf16()


def has_bf16() -> bool | None:
    """True if the CPU has bfloat16 instructions; ``None``: not known.

    With them, steps of small models took 0.4 to 0.7 of the time of float32; without, products took 58 to 100 times as
    long.
    """
    can: dict[str, object] | None = getattr(torch.cpu, "get_capabilities", lambda: None)()
    return any(can.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16")) if can else None


def is_worth_compiling(device: torch.device, limits: Limits) -> bool:
    """True for ``compile: auto`` on a GPU, in a long run, with compilers installed.

    On a CPU `torch.compile` was measured to gain nothing on small models.
    """
    return (
        device.type == "cuda"
        and limits.seconds >= _LONG_SECONDS
        and limits.steps >= _LONG_STEPS
        and importlib.util.find_spec("triton") is not None
        and any(shutil.which(compiler) for compiler in ("cc", "gcc", "clang"))
    )


_INTERVAL = 0.02  # seconds; reading the resident size takes about 20 microseconds


class PeakMemory:
    """Measure the peak memory inside ``with``.

    On a GPU the allocator's peak. On a CPU a thread samples the resident size of the process after earlier free memory
    was returned; the system's high-water mark would include earlier work.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak-memory", daemon=True)
        self._process = psutil.Process()
        self._highest = 0

    @property
    def peak_bytes(self) -> int:
        """The peak so far."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return self._highest

    def __enter__(self) -> PeakMemory:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            trim_malloc()
            self._highest = self._process.memory_info().rss
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(_INTERVAL):
            self._highest = max(self._highest, self._process.memory_info().rss)
