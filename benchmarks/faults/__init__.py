"""Crash points: commands that are killed before and within each write, and repeated.

A shim counts the file operations of a command in its folder: open for writing, write, flush, rename, remove, and
make a folder. Each run stops at the next operation: killed, with a full disk, or by a signal. A write is also
killed with half of its bytes written; the fault ``lost`` kills a worker. The command is repeated, and its folder
compared with that of an uninterrupted run: the same files, and equal bytes of all files that are reproducible (weights,
corpus, predictions).

Commands run in forks of a process that has imported all modules.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import hashlib
import importlib
import json
import os
import re
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import typer

from benchmarks.faults.commands import COMMANDS, MADE, Command
from benchmarks.faults.shim import COUNTS, FAULTS, FREE, KILLED, LIMITS, SIGNALS, Shim
from benchmarks.faults.world import write_files
from homespun import cli
from homespun.commands import prediction_parts
from homespun.compare import comparison, executor
from homespun.io.lock import LOCK

_PATIENCE = 300  # seconds, after which a command hangs


@dataclass(frozen=True)
class Ended:
    """End of a command in a fork: exit code, standard error, operations of its `Shim`."""

    code: int
    errors: str
    operations: list[str]
    modules: list[str]


class Bench:
    """Runner of commands on small inputs below ``root``, for the commands ``names``."""

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self.root = root
        self.world, self.folder = root / "world", root / "out"
        self.world.mkdir()
        write_files(self.world)
        self.app = typer.main.get_command(cli.app)
        os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads do not survive the forks of a comparison
        texts = [*(COMMANDS[name].arguments for name in names), *(["{world}/corpus"] if "compare" in names else ())]
        needed = []
        for name, arguments in reversed(MADE.items()):
            if any(re.search(rf"{{world}}/{name}( |$)", text) for text in texts):
                needed.append(arguments)
                texts.append(arguments)
        for arguments in reversed(needed):
            ended = self.run(arguments)
            if ended.code:
                raise RuntimeError(f"{arguments}: {ended.errors}")
            self.warm(ended)

    def warm(self, ended: Ended) -> None:
        """Import the modules that the command imported, for later forks."""
        for module in ended.modules:
            if module not in sys.modules:
                with contextlib.suppress(Exception):
                    importlib.import_module(module)
        gc.collect()
        gc.freeze()

    def run(
        self, arguments: str, fault: str = "exit", at: int | None = None, copies: Path | None = None, speed: int = 1
    ) -> Ended:
        """Run a command in a fork, whose clocks run ``speed`` times as fast."""
        output, errors = self.root / "stdout", self.root / "stderr"
        reader, writer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            os.close(reader)
            shim = Shim(str(self.folder), fault, at, copies)
            code = 1
            try:
                for number, path in ((1, output), (2, errors)):
                    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                    os.dup2(descriptor, number)
                    os.close(descriptor)
                os.chdir(self.root)
                _stop_drawing()
                _fork_trials()
                _speed_up_clocks(speed)
                mock.patch.object(prediction_parts, "_MAX_RECORDS", 8).start()
                mock.patch.object(cli, "app", self.app).start()  # made once
                words = arguments.format(world=self.world, out=self.folder).split()
                code = _main(words, shim)
            finally:
                shim.active = False
                sys.stdout.flush()
                sys.stderr.flush()
                found = {"operations": shim.operations, "modules": list(sys.modules)}
                with os.fdopen(writer, "w") as stream:
                    json.dump(found, stream)
                os._exit(code)
        os.close(writer)
        with os.fdopen(reader) as stream:
            if not select.select([stream], [], [], _PATIENCE)[0]:
                os.kill(child, signal.SIGKILL)
            content = stream.read()
        _, status = os.waitpid(child, 0)
        found = json.loads(content or '{"operations": [], "modules": []}')
        return Ended(os.waitstatus_to_exitcode(status), errors.read_text(errors="replace"), **found)

    def clear(self) -> None:
        """Empty the folder of outputs."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()

    def measure(self, name: str, fault: str, *, stride: int, offset: int) -> dict[str, Any]:
        """Stop a command at every ``stride``th operation from ``offset`` on, repeat it, and compare.

        Fault ``kill`` copies the folder at each operation of one run: a killed process leaves this state. Equal states
        are repeated once. All other faults run the command for each operation.

        Returns:
            ``points`` (operations), ``states`` (different ones), ``identical`` (points whose repeated command ends with
            the files of a run that is not stopped), ``stray`` (points with other files), ``one_line`` (that ended with
            one line or silently), ``failures`` (descriptions of the others).
        """
        command, copies = COMMANDS[name], self.root / "copies"
        clean = []
        for speed in (1, 10):  # files with measured times differ, also where they are rounded
            self.clear()
            ended = self.run(command.arguments, speed=speed)
            if ended.code:
                raise RuntimeError(f"{name}: {ended.errors}")
            self.warm(ended)
            clean.append(contents(self.folder))
        result = Result(command, clean[0], {path for path, digest in clean[0].items() if clean[1].get(path) == digest})
        if fault != "kill":
            # a disk is full, or read-only, at the next operation that writes
            writes = [
                at
                for at, operation in enumerate(ended.operations)
                if fault in ("exit", "clock", "lost", *SIGNALS) or operation.split()[0] not in FREE
            ]
            points = [0] if fault == "read-only" else writes[offset::stride]
            for at in LIMITS.get(fault, points):
                self.clear()
                stopped = self.run(command.arguments, fault, at)
                # a run can have fewer operations, or no worker at this one
                if {"exit": stopped.code == KILLED, "lost": stopped.code != 0}.get(fault, True):
                    name = f"{at} {fault}" if fault in LIMITS else ended.operations[at]
                    self._repeat(result, [name], stopped, fault)
            return result.to_dict()
        copies.mkdir()
        self.clear()
        ended = self.run(command.arguments, copies=copies)
        if ended.code:
            raise RuntimeError(f"{name}: {ended.errors}")
        states: dict[frozenset[tuple[str, str]], list[Path]] = {}
        for copy in sorted(path for path in copies.iterdir() if path.is_dir()):
            states.setdefault(_state(copy), []).append(copy)
        for number, equal in enumerate(states.values()):
            if number % stride == offset:
                shutil.rmtree(self.folder)
                shutil.copytree(equal[0], self.folder)
                operations = [path.with_name(f"{path.name}.operation").read_text(encoding="utf-8") for path in equal]
                self._repeat(result, operations, Ended(KILLED, "", [], []), fault)
        shutil.rmtree(copies)
        return result.to_dict()

    def _repeat(self, result: Result, operations: list[str], stopped: Ended, fault: str) -> None:
        again = self.run(f"{result.command.arguments} {result.command.again}")
        one_line = _is_one_line(stopped, fault)
        identical = result.add(operations, stopped, again, contents(self.folder), one_line=one_line)
        print(f"{operations[0]}: {'identical' if identical else 'DIFFERENT'}", file=sys.stderr, flush=True)


@dataclass
class Result:
    """Counts of `Bench.measure`; ``equal`` are the files that two runs write equally."""

    command: Command
    clean: dict[str, str]
    equal: set[str]
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    failures: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self, operations: list[str], stopped: Ended, again: Ended, found: dict[str, str], *, one_line: bool
    ) -> bool:
        """Count operations with one state; True if the repeated command has the same files."""
        finished = self.command.finished
        done = again.code == 0 or (finished is not None and finished in again.errors)
        stray, missing = sorted(found.keys() - self.clean.keys()), sorted(self.clean.keys() - found.keys())
        changed = sorted(path for path in self.equal if found.get(path) not in (None, self.clean[path]))
        identical = done and not (stray or missing or changed)
        for count, holds in {
            "points": True,
            "identical": identical,
            "stray": bool(stray),
            "one_line": one_line,
        }.items():
            self.counts[count] += len(operations) * holds
        self.counts["states"] += 1
        if not identical or not one_line:
            ends = {"stopped": [stopped.code, stopped.errors[-500:]], "again": [again.code, again.errors[-500:]]}
            files = {"stray": stray, "missing": missing, "changed": changed}
            self.failures.append({"operations": operations} | ends | files)
        return identical

    def to_dict(self) -> dict[str, Any]:
        return {**self.counts, "files": len(self.clean), "equal_files": len(self.equal), "failures": self.failures}


def contents(folder: Path) -> dict[str, str]:
    """Digests of all files below a folder, and "" for folders."""
    return {
        str(path.relative_to(folder)): "" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
    }


def _state(folder: Path) -> frozenset[tuple[str, str]]:
    """Return the files of a folder, without process ids in names."""
    found = contents(folder).items()
    return frozenset((re.sub(r"\.tmp-\d+", ".tmp", path), "" if LOCK in path else digest) for path, digest in found)


def _is_one_line(ended: Ended, fault: str) -> bool:
    """True for a killed process, or one that ended with a line "error: ..." or "stopped" and no traceback."""
    lines = [line for line in ended.errors.splitlines() if line.startswith(("error: ", "stopped"))]
    if "Traceback" in ended.errors:
        return False
    return (
        fault in ("kill", "exit")
        or ended.code in (0, -signal.SIGTERM, 143)
        or (ended.code in (2, 130) and len(lines) == 1)
    )


def _main(words: list[str], shim: Shim | None = None) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.argv = ["homespun", *words]
    if shim is not None:
        shim.install()
    try:
        cli.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    return 1


def _stop_drawing() -> None:
    """Replace figures of reports by empty files, since drawing takes most of the time of a short training."""
    from matplotlib.figure import Figure

    mock.patch.object(Figure, "savefig", return_value=None).start()
    mock.patch.object(Figure, "draw_without_rendering", return_value=None).start()


def _speed_up_clocks(speed: int) -> None:
    def faster(clock: Callable[[], float]) -> Callable[[], float]:
        return lambda: speed * clock()

    for name in ("monotonic", "perf_counter", "process_time"):
        mock.patch.object(time, name, faster(getattr(time, name))).start()


@dataclass
class _Forked:
    """Process of a comparison, as a fork instead of a new interpreter."""

    command: executor.Command
    pid: int
    started: float
    outcome: executor.Outcome | None = None

    def poll(self) -> executor.Outcome | None:
        if self.outcome is None:
            ended, status, usage = os.wait4(self.pid, os.WNOHANG)
            if ended:
                why = None if status == 0 else f"status {status}"
                spent = usage.ru_utime + usage.ru_stime
                self.outcome = executor.Outcome(why, time.monotonic() - self.started, spent)
        return self.outcome

    def stop(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            while self.poll() is None:
                time.sleep(0.01)


@dataclass
class _ForkExecutor:
    slots: int
    inherit: Sequence[int] = ()

    def start(self, command: executor.Command) -> _Forked:
        command.log.parent.mkdir(parents=True, exist_ok=True)
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # with its parent, as `homespun.compare.worker` ends
            code = 1
            try:
                log = os.open(command.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(log, 1)
                os.dup2(log, 2)
                code = _main(list(command.arguments))
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        return _Forked(command, pid, time.monotonic())


def _fork_trials() -> None:
    mock.patch.object(comparison, "LocalExecutor", _ForkExecutor).start()


def run(arguments: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks faults", description=__doc__)
    parser.add_argument("--commands", default=",".join(COMMANDS), help="comma-separated")
    parser.add_argument("--fault", choices=FAULTS, default="kill")
    parser.add_argument("--stride", type=int, default=1, help="stop at every so many operations")
    parser.add_argument("--offset", type=int, default=0, help="first operation")
    options = parser.parse_args(arguments)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        names = options.commands.split(",")
        bench = Bench(Path(folder), names)
        for name in names:
            started = time.monotonic()
            found[name] = bench.measure(name, options.fault, stride=options.stride, offset=options.offset)
            found[name]["seconds"] = round(time.monotonic() - started, 1)
            print(name, json.dumps(found[name], indent=1), file=sys.stderr, flush=True)
    total = {key: sum(each[key] for each in found.values()) for key in COUNTS}
    return {"fault": options.fault, "commands": found, "total": total}
