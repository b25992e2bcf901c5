"""Processes of a comparison: start of commands, polling, and the reason of a failure from the log."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from homespun.errors import UserError
from homespun.io.cores import available_cores

_WORKER = ("-m", "homespun.compare.worker")
START = (sys.executable, *_WORKER)
_TAIL = 1 << 16  # bytes at the end of a log that are searched for the reason
_BUG_NOTICE = "this is a bug in homespun"


@dataclass(frozen=True)
class Command:
    """A homespun command."""

    arguments: tuple[str, ...]  # arguments after `homespun`
    log: Path  # file to which the output is appended
    environment: Mapping[str, str] = field(default_factory=dict)  # variables in addition to those of this process
    folder: Path = field(default_factory=Path.cwd)  # working directory
    processes: int = 1  # processes of `torchrun` that train, one for each GPU


@dataclass(frozen=True)
class Outcome:
    """End of a command: the reason ``why`` it failed in one line, or None; wall-clock and processor time."""

    why: str | None
    seconds: float = 0.0
    processor_seconds: float = 0.0


class Running(Protocol):
    """Interface of started commands."""

    def poll(self) -> Outcome | None:
        """Return the outcome, or None while the command runs."""

    def stop(self) -> None:
        """Request a checkpoint and the end of the command."""

    def kill(self) -> None:
        """Kill the command."""


class Executor(Protocol):
    """Interface of executors: `LocalExecutor`, or a cluster."""

    @property
    def slots(self) -> int:
        """Maximum number of parallel commands."""

    def start(self, command: Command) -> Running:
        """Start a command; the caller starts no more than ``slots``."""


class LocalExecutor:
    """Executor that starts processes on this machine.

    Args:
        slots: number of parallel commands, which share the threads and the GPUs.
        gpus: GPUs of a command.
        inherit: file descriptors that they inherit.
        start: command line before the arguments.

    Raises:
        UserError: the machine has too few GPUs.
    """

    def __init__(self, slots: int, *, gpus: int = 1, inherit: Sequence[int] = (), start: Sequence[str] = START) -> None:
        if gpus > 1 and (found := len(_gpus())) < slots * gpus:
            raise UserError(
                f"gpus_per_trial={gpus} with {slots} trials at a time needs {slots * gpus} GPUs, and this machine has "
                f"{found}; lower gpus_per_trial or --max-parallel"
            )
        self.slots, self._gpus = slots, gpus
        self._inherit = tuple(inherit)
        self._start = tuple(start)
        self._free = list(range(slots))

    def start(self, command: Command) -> Running:
        """Start a command in a free slot."""
        slot = self._free.pop(0)
        shared = {} if self.slots == 1 else shares(slot, self.slots, self._gpus)
        release = partial(self._free.append, slot)
        return Process(command, self._start, {**shared, **command.environment}, inherit=self._inherit, ended=release)


def shares(slot: int, slots: int, gpus: int = 1) -> dict[str, str]:
    """Return variables that give the command of a slot its share of the threads, and ``gpus`` of several GPUs."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    threads = str(max(1, (int(given) if given.isdecimal() and int(given) else available_cores()) // slots))
    variables = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), threads)
    names = _gpus()
    first = slot * gpus % max(1, len(names))
    return variables | ({"CUDA_VISIBLE_DEVICES": ",".join(names[first : first + gpus])} if len(names) > 1 else {})


def _gpus() -> list[str]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


class Process:
    """Command in a new process group, which ends when this process ends."""

    def __init__(
        self,
        command: Command,
        start: Sequence[str],
        variables: Mapping[str, str],
        *,
        inherit: Sequence[int] = (),
        ended: Callable[[], None] | None = None,
    ) -> None:
        self.command = command
        self._ended = ended
        self._outcome: Outcome | None = None
        command.log.parent.mkdir(parents=True, exist_ok=True)
        with command.log.open("ab") as log:
            self._from = log.tell()
            self._process = subprocess.Popen(
                [*(start if command.processes == 1 else _torchrun(command.processes)), *command.arguments],
                stdin=subprocess.PIPE,  # never written to: see `homespun.compare.worker`
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **variables, "PYTHONUNBUFFERED": "1"},
                cwd=command.folder,
                start_new_session=True,  # a Ctrl-C is for the runner, which passes it on
                pass_fds=inherit,
            )
        self._started = time.monotonic()

    def poll(self) -> Outcome | None:
        """Return the outcome, or None while the process runs."""
        if self._outcome is not None:
            return self._outcome
        before = _child_seconds()
        code = self._process.poll()
        if code is None:
            return None
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._ended is not None:
            self._ended()
        self._outcome = Outcome(
            why=None if code == 0 else reason(code, self.output()),
            seconds=time.monotonic() - self._started,
            processor_seconds=_child_seconds() - before,  # processor time of the finished child processes
        )
        return self._outcome

    def output(self) -> str:
        """Return the end of the output so far."""
        with self.command.log.open("rb") as log:
            log.seek(max(self._from, self.command.log.stat().st_size - _TAIL))
            return log.read().decode("utf-8", errors="replace")

    def stop(self) -> None:
        """Request a checkpoint and the end of the process."""
        if self.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        """Kill the process with its child processes."""
        if self.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self.poll()


def _torchrun(processes: int) -> tuple[str, ...]:
    """Return the command line that starts a command in several processes, each with a GPU."""
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes))
    return (sys.executable, *launch, *_WORKER)


def _child_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def reason(code: int, output: str) -> str:
    """Find the reason in the end of the output why a process with an exit ``code`` failed, in one line."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith(_BUG_NOTICE)]
    killed = re.search(r"Signal (\d+) \(SIG\w+\) received by PID", output)  # of a process, in the words of torchrun
    code = -int(killed[1]) if killed else code
    if code < 0:
        name = signal.Signals(-code).name if -code in {s.value for s in signal.Signals} else str(-code)
        hint = ", as the system does when memory runs out" if name == "SIGKILL" else ""
        return f"killed by {name}{hint}"
    error = next((line.removeprefix("error: ") for line in reversed(lines) if line.startswith("error: ")), None)
    if error is not None:
        return error
    return f"ended with exit code {code}" + (f": {lines[-1]}" if lines else "")


def last_object(log: Path) -> dict[str, Any]:
    """Return the last JSON object in a log, which a command with ``--json`` printed on one line.

    Raises:
        UserError: the log has none.
    """
    for line in reversed(log.read_text(encoding="utf-8", errors="replace").split("\n")):
        if line.startswith("{"):
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                return found
    raise UserError(f"{log} has no result; delete it, and run again")
