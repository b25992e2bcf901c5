"""Measurement: the machine, alternating contestants, and peak memory of a function in a separate process."""

from __future__ import annotations

import gc
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "processor": time.process_time}
PRECISIONS = ("float32", "bf16")


def machine() -> dict[str, Any]:
    """Describe the machine and versions on which figures depend."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def autocast(device: str, precision: str) -> torch.autocast:
    """Return the context of a forward pass in one of `PRECISIONS`."""
    return torch.autocast(device, torch.bfloat16, enabled=precision == "bf16")


def wait(device: str) -> None:
    """Wait for a GPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(function: Callable[[], object]) -> float:
    """Measure the wall-clock time of a call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def measure_interleaved(contestants: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Return the median of each contestant's calls over ``rounds``.

    Contestants alternate, so that other work on the machine affects all of them equally. Each round begins with another
    contestant, since the first one finds the caches of the last one.
    """
    names = list(contestants)
    results: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            results[name].append(contestants[name]())
            print(f"round {number + 1} of {rounds}: {name} {results[name][-1]:.4g}", file=sys.stderr, flush=True)
    return {name: statistics.median(values) for name, values in results.items()}


class Peak(NamedTuple):
    """Bytes of resident memory of a separate process."""

    before: int  # when the function is called: the interpreter, and what its module imports
    peak: int  # the most until it returns
    result: Any


def peak_memory(function: Callable[..., Any], *arguments: Any) -> Peak:
    """Call ``function`` of a module in a new process, and measure its peak memory.

    Raises:
        RuntimeError: the function raised, or its process died.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_measured, args=(theirs, function, arguments))
    process.start()
    theirs.close()
    try:
        before, peak, result = ours.recv()
    except EOFError as error:
        raise RuntimeError(f"{function.__qualname__} failed in its process; see above") from error
    finally:
        process.join()
    return Peak(before, peak, result)


def _measured(pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    before = peak_bytes()
    result = function(*arguments)
    pipe.send((before, peak_bytes(), result))


class ContestantProcess:
    """Contestant in a separate process, isolated from the others: heap, settings and peak memory.

    Args:
        make: function of a module, called in the process with ``arguments``; it returns the function of each turn. The
            constructor waits for it, so that no preparation overlaps with a measured turn.

    Attributes:
        peak: peak bytes of the process up to the end of its last turn.

    Raises:
        RuntimeError: its process died, when it was started or in a turn.
    """

    def __init__(self, make: Callable[..., Callable[[], float]], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_turns, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()
        self.peak = 0
        self._receive()  # that it is ready

    def __call__(self) -> float:
        self._pipe.send(True)
        result, self.peak = self._receive()
        return float(result)

    def _receive(self) -> Any:
        try:
            return self._pipe.recv()
        except EOFError as error:
            raise RuntimeError("a contestant failed in its process; see above") from error

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join()


class ContestantOnGpu:
    """Contestant in this process on a GPU, whose allocator attributes memory; see `ContestantProcess`.

    Attributes:
        peak: peak bytes of the device during construction and the first turn.
    """

    def __init__(self, make: Callable[..., Callable[[], float]], *arguments: Any) -> None:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self._turn: Callable[[], float] | None = make(*arguments)
        self._turn()
        self.peak = torch.cuda.max_memory_allocated() - before

    def __call__(self) -> float:
        assert self._turn is not None
        return self._turn()

    def close(self) -> None:
        """Release its memory."""
        self._turn = None


def contestant(
    device: str, make: Callable[..., Callable[[], float]], *arguments: Any
) -> ContestantProcess | ContestantOnGpu:
    """Start an isolated contestant."""
    return (ContestantOnGpu if device == "cuda" else ContestantProcess)(make, *arguments)


def _turns(pipe: Connection, make: Callable[..., Callable[[], float]], arguments: tuple[Any, ...]) -> None:
    turn = make(*arguments)
    pipe.send("ready")
    try:
        while pipe.recv():
            result = turn()
            pipe.send((result, peak_bytes()))
    except EOFError:  # it was closed
        pass


def peak_bytes() -> int:
    """Return the peak resident memory of this process in bytes."""
    try:
        # not getrusage: its figure begins with that of the process which started this one
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
