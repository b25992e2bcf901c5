"""How things are measured: the machine, contestants by turns, and the peak memory of a function on its own."""

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


def machine() -> dict[str, Any]:
    """What the figures depend on."""
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


def seconds(function: Callable[[], object]) -> float:
    """How long one call takes, on the wall clock."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def measure_interleaved(contestants: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median of what each contestant's call returns, over ``rounds``.

    They take turns, so that whatever else the machine does falls on all of them; each round begins with another one,
    because who comes first in a round finds the caches of who came last.
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
    """Bytes of resident memory of a process of its own."""

    before: int  # when the function is called: the interpreter, and what its module imports
    peak: int  # the most until it returns
    result: Any


def peak_memory(function: Callable[..., Any], *arguments: Any) -> Peak:
    """Call ``function`` of a module in a fresh process and see how much memory that takes at the most.

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
    """A contestant in a process of its own, where nothing of another reaches it: its heap, its settings, its peak.

    Args:
        make: of a module; called there with ``arguments``, it gives what each turn calls. It is waited for, so that
            nobody gets ready while another's turn is measured.

    Attributes:
        peak: bytes at the most, of that process, until its last turn was over.

    Raises:
        RuntimeError: its process died, when it was made or in a turn.
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
    """As `ContestantProcess`, in this process: the allocator of a GPU tells whose memory is whose.

    Attributes:
        peak: bytes of the device at the most, when it was made and in a first turn.
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
    """A contestant that nothing of another reaches."""
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
    """The most resident memory that this process has held so far, in bytes."""
    try:
        # not getrusage: its figure begins with that of the process which started this one
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
