"""One stage as a process of its own: start it, ask whether it has ended, and say in one line why it failed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from homespun.errors import UserError

START = (sys.executable, "-m", "homespun.compare.worker")
_TAIL = 1 << 16  # bytes of a log in which the reason is looked for
_BUG_NOTICE = "this is a bug in homespun"


@dataclass(frozen=True)
class Command:
    """What to run, and where.

    Args:
        arguments: after ``homespun``.
        log: the file to which what it says is added.
        environment: variables that it has besides those of this process.
        folder: where relative paths begin.
    """

    arguments: tuple[str, ...]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path = field(default_factory=Path.cwd)


@dataclass(frozen=True)
class Outcome:
    """How a command ended: ``why`` it failed, in one line, or None; what it took."""

    why: str | None
    seconds: float = 0.0
    processor_seconds: float = 0.0


class Running(Protocol):
    """A command that was started."""

    def poll(self) -> Outcome | None:
        """How it ended; None while it runs."""

    def stop(self) -> None:
        """Ask it to end soon, with a checkpoint."""

    def kill(self) -> None:
        """End it now."""


class Executor(Protocol):
    """Where commands run: `LocalExecutor`, or a cluster."""

    @property
    def slots(self) -> int:
        """How many at a time."""

    def start(self, command: Command) -> Running:
        """Start one; the caller sees to it that no more than ``slots`` run."""


class LocalExecutor:
    """Processes of this machine.

    Args:
        slots: how many run at a time; they share its threads, and its GPUs where there are several.
        inherit: file descriptors that they hold open.
        start: the words before a command's; a test has others.
    """

    def __init__(self, slots: int, *, inherit: Sequence[int] = (), start: Sequence[str] = START) -> None:
        self._slots = slots
        self._inherit = tuple(inherit)
        self._start = tuple(start)
        self._free = list(range(slots))

    @property
    def slots(self) -> int:
        return self._slots

    def start(self, command: Command) -> Running:
        slot = self._free.pop(0)

        def ended() -> None:
            self._free.append(slot)

        variables = (
            dict(command.environment) if self._slots == 1 else {**shares(slot, self._slots), **command.environment}
        )
        return Process(command, self._start, variables, inherit=self._inherit, ended=ended)


def shares(slot: int, slots: int) -> dict[str, str]:
    """Variables that give a process its part of the threads, and a GPU of its own where there are several."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    given = os.environ.get("OMP_NUM_THREADS", "")
    threads = str(max(1, (int(given) if given.isdecimal() and int(given) else cores) // slots))
    variables = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), threads)
    gpus = _gpus()
    return variables | ({"CUDA_VISIBLE_DEVICES": gpus[slot % len(gpus)]} if len(gpus) > 1 else {})


def _gpus() -> list[str]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


class Process:
    """A command in a process group of its own, that ends when this process does."""

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
                [*start, *command.arguments],
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
        """How it ended; None while it runs."""
        if self._outcome is not None:
            return self._outcome
        before = _of_children()
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
            processor_seconds=_of_children() - before,  # only what was waited for is counted
        )
        return self._outcome

    def output(self) -> str:
        """The end of what it has printed so far."""
        with self.command.log.open("rb") as log:
            log.seek(max(self._from, self.command.log.stat().st_size - _TAIL))
            return log.read().decode("utf-8", errors="replace")

    def stop(self) -> None:
        """Ask it to end soon, with a checkpoint."""
        if self.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        """End it now, with the processes it started."""
        if self.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self.poll()


def _of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def reason(code: int, output: str) -> str:
    """Why a process that ended with ``code`` failed, in one line, from the end of what it said."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith(_BUG_NOTICE)]
    if code < 0:
        name = signal.Signals(-code).name if -code in {s.value for s in signal.Signals} else str(-code)
        hint = ", as the system does when memory runs out" if name == "SIGKILL" else ""
        return f"killed by {name}{hint}"
    error = next((line.removeprefix("error: ") for line in reversed(lines) if line.startswith("error: ")), None)
    if error is not None:
        return error
    return f"ended with exit code {code}" + (f": {lines[-1]}" if lines else "")


def last_object(log: Path) -> dict[str, Any]:
    """The last JSON object on a line of its own in a log: what a command with ``--json`` printed.

    Raises:
        UserError: there is none.
    """
    for line in reversed(log.read_text(encoding="utf-8", errors="replace").splitlines()):
        if line.startswith("{"):
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                return found
    raise UserError(f"{log} has no result in it; delete it, and run again")
