"""Devices, memory allocation on the CPU, and peak memory."""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import importlib.util
import os
import shutil
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import psutil
import torch
from accelerate import PartialState

from homespun.errors import UserError
from homespun.nn.devices import best_device
from homespun.nn.torch_private import mkldnn_has_bf16
from homespun.training.config import Limits

_LONG_SECONDS, _LONG_STEPS, _LONG_TOKENS = 600, 5000, 40_000_000  # compiling takes a minute or two


@dataclass(frozen=True)
class DistributedContext:
    """Rank, number of processes and device of this process."""

    rank: int
    world_size: int
    device: torch.device

    @classmethod
    def join(cls) -> DistributedContext:
        """Join the processes of `torchrun` or `accelerate launch`, if one of them started this process.

        The device is the best available one, or the CPU with ``ACCELERATE_USE_CPU=true``.

        Raises:
            UserError: `torchrun` is configured to restart processes with a store that keeps stale addresses.
        """
        _check_restarts()
        if torch.distributed.is_available():  # the module keeps the process group that exists at its import
            importlib.import_module("torch.distributed.nn.functional")
        state = PartialState(cpu=best_device().type == "cpu")  # on a CPU, accelerate joins processes only with cpu=True
        if state.num_processes > 1:
            atexit.register(_destroy_process_group, state)
        return cls(state.process_index, state.num_processes, state.device)

    @property
    def is_main(self) -> bool:
        """True in the process that writes files."""
        return self.rank == 0

    def wait(self) -> None:
        """Wait for all processes."""
        PartialState().wait_for_everyone()


def _check_restarts() -> None:
    """Refuse `torchrun` restarts with a store that keeps the addresses of ended processes.

    Measured with torch 2.13: the new processes wait for the old addresses for 30 minutes
    (https://github.com/pytorch/pytorch/issues/135712).
    """
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    if restarts and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise UserError(
            "torchrun --max-restarts would connect to ended processes; start it with --standalone or "
            "--rdzv-backend=c10d, and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its environment"
        )


def _destroy_process_group(state: PartialState) -> None:
    """End the threads of the process group; the process may abort if they outlive the interpreter."""
    state.destroy_process_group()
    gc.collect()  # deleting the group joins its threads; the last reference may be in a cycle


PrecisionName = Literal["float32", "bf16", "fp16"]
DTYPES: dict[PrecisionName, torch.dtype] = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_dtype(precision: PrecisionName | Literal["auto"], device: torch.device) -> torch.dtype:
    """Choose the dtype of matrix products; weights are always float32.

    ``auto`` is bf16 on a GPU that supports it, else float32. On a CPU `homespun.training.precision` measures first.

    Raises:
        UserError: fp16 without a GPU.
    """
    if precision == "fp16" and device.type != "cuda":
        raise UserError(f"train.precision=fp16 needs a GPU, not the device {device.type!r}; use auto or float32")
    if precision == "auto":
        supported = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if supported else torch.float32
    return DTYPES[precision]


def has_lstm(dtype: torch.dtype, device: torch.device) -> bool:
    """True if torch has an LSTM of ``dtype`` on ``device``; in bfloat16 oneDNN needs hardware support."""
    on_onednn = device.type == "cpu" and torch.backends.mkldnn.is_available()
    return dtype != torch.bfloat16 or not on_onednn or mkldnn_has_bf16()


def has_bf16() -> bool | None:
    """True if the CPU has bfloat16 instructions; ``None`` if unknown.

    Measured: with them, steps of small models take 0.4 to 0.7 times as long as in float32; without them, matrix
    products take 58 to 100 times as long.
    """
    flags: dict[str, object] | None = getattr(torch.cpu, "get_capabilities", lambda: None)()
    return any(flags.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16")) if flags else None


def is_worth_compiling(device: torch.device, limits: Limits) -> bool:
    """Choose ``compile`` for ``auto``: True for long runs on a GPU with compilers installed.

    Measured: a step of ``spun-decoder-mini`` on an H200 takes 9.8 ms compiled and 32 ms uncompiled (64 rows of 128
    tokens). On a CPU `torch.compile` does not speed up small models.
    """
    return (
        device.type == "cuda"
        and limits.seconds >= _LONG_SECONDS
        and limits.steps >= _LONG_STEPS
        and limits.tokens >= _LONG_TOKENS
        and importlib.util.find_spec("triton") is not None
        and any(shutil.which(compiler) for compiler in ("cc", "gcc", "clang"))
    )


def loader_workers(workers: int | Literal["auto"], device: torch.device) -> int:
    """Number of processes that prepare batches: none on a CPU; on a GPU one for four threads, at most 4."""
    if workers != "auto":
        return workers
    return min(4, torch.get_num_threads() // 4) if device.type == "cuda" else 0


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MXFAST = -1, -3, 1  # malloc.h
_KEPT_BYTES = 2**31 - 1  # the largest int


def disable_malloc_trim() -> None:
    """Let glibc keep up to 2 GB of freed memory, and merge the smallest free blocks immediately.

    By default glibc allocates tensors above several megabytes as new pages, which the kernel zeroes. Measured on a CPU:
    saves 4 % of a small ELECTRA step (23,000 page faults to none) and a quarter of BigBird attention at 4,096 tokens;
    the peak memory is equal within 2 %. No effect with other C libraries.
    """
    mallopt = _glibc("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MXFAST, 0)


def trim_malloc() -> None:
    """Return free memory to the operating system once."""
    gc.collect()
    trim = _glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _glibc(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None


_INTERVAL = 0.02  # seconds; reading the resident size takes about 20 microseconds


class PeakMemory:
    """Context manager that measures peak memory: of the allocator on a GPU, of the process on a CPU.

    On a CPU, free memory is first returned to the system, and a thread then samples the resident size. The high-water
    mark of the system would include earlier work.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak-memory", daemon=True)
        self._process = psutil.Process()
        self._highest = 0

    @property
    def peak_bytes(self) -> int:
        """Peak so far."""
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
            with suppress(OSError):  # too many open files
                self._highest = max(self._highest, self._process.memory_info().rss)
