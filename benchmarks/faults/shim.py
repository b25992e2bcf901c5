"""Shim that counts the file operations of a process and stops the process at one of them."""

from __future__ import annotations

import builtins
import errno
import io
import os
import re
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

FAULTS = ("kill", "exit", "full", "read-only", "sigterm", "sigint", "clock", "files", "memory", "lost")
SIGNALS = {"sigterm": signal.SIGTERM, "sigint": signal.SIGINT}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
FREE = ("remove", "rmdir", "rename", "truncate")
"""Operations that need no space on a disk."""

LIMITS = {"files": range(6, 70, 4), "memory": range(2, 100, 7)}
"""Open files, and MB of memory beyond those of the start, that a process may have. Without any, `threading` hangs."""

KILLED = 137
_TRIES = 99  # copies that another process may disturb
COUNTS = ("points", "states", "identical", "stray", "one_line")


@dataclass
class Shim:
    """File operations below ``folder``; stops the process at operation number ``at``.

    Args:
        folder: absolute path.
        fault: one of `FAULTS`.
        at: number of the operation, or the limit of `LIMITS`; None: do not stop.
        copies: folder for a copy of ``folder`` at each operation, also of child processes.
    """

    folder: str
    fault: str
    at: int | None
    copies: Path | None = None
    operations: list[str] = field(default_factory=list)
    active: bool = True

    def install(self) -> None:
        """Watch this process until it ends."""
        self.process = os.getpid()
        if self.fault in LIMITS and self.at is not None:
            self._limit(self.at)
            return
        sys.addaudithook(self._hook)
        opened = io.open

        def watched_fsync(descriptor: Any) -> None:  # a killed process loses no writes, so that nothing is flushed
            self._point("fsync", _path_of(descriptor))

        def watched_open(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> IO[Any]:
            stream: IO[Any] = opened(file, mode, *arguments, **options)
            if set(mode) & set("wax+") and self._is_inside(_path_of(stream.fileno())):
                return self._watch(stream, mode, *arguments, **options)
            return stream

        os.fsync = watched_fsync  # type: ignore[assignment]
        builtins.open = io.open = watched_open  # type: ignore[assignment]

    def _limit(self, limit: int) -> None:
        kind = resource.RLIMIT_NOFILE if self.fault == "files" else resource.RLIMIT_AS
        if self.fault == "memory":
            pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
            limit = pages * resource.getpagesize() + limit * 1_000_000
        resource.setrlimit(kind, (limit, limit))

    def _watch(self, stream: IO[Any], mode: str, buffering: int = -1, *_: Any, **options: Any) -> IO[Any]:
        """Return the same file, with a raw file whose writes are operations."""
        raw = _RawFile(os.dup(stream.fileno()), mode.replace("b", "").replace("t", ""))
        raw.point = self._point
        stream.close()
        buffering = options.get("buffering", buffering)
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        if "b" in mode:
            return buffered
        text = {name: options[name] for name in ("encoding", "errors", "newline") if name in options}
        return io.TextIOWrapper(buffered, **text)

    def _is_inside(self, path: str) -> bool:
        return path == self.folder or path.startswith(f"{self.folder}/")

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, str | bytes | os.PathLike) and flags & _WRITES:
                self._point("open", os.fsdecode(path))
        elif event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"):
            given = arguments[0]
            self._point(event[3:], _path_of(given) if isinstance(given, int) else os.fsdecode(given))

    def _point(self, operation: str, path: str) -> None:
        path = os.path.abspath(path)
        own = os.getpid() == self.process
        if not self.active or not self._is_inside(path) or not (own or self.copies):
            return
        self.active = False  # operations of the shim itself
        try:
            number = len(self.operations)
            self.operations.append(f"{operation} {re.sub(r'[0-9]+', 'N', os.path.relpath(path, self.folder))}")
            if self.copies is not None:
                self._copy(f"{os.getpid()}-{number}", self.operations[-1])
            if self.at is not None and number >= self.at:
                self._stop(operation, first=number == self.at)
        finally:
            self.active = True

    def _copy(self, name: str, operation: str) -> None:
        assert self.copies is not None
        for last in (*[False] * _TRIES, True):
            try:
                shutil.copytree(self.folder, self.copies / name)
                break
            except (OSError, shutil.Error):  # another process wrote at this moment
                shutil.rmtree(self.copies / name, ignore_errors=True)
                if last:
                    raise
        (self.copies / f"{name}.operation").write_text(operation, encoding="utf-8")

    def _stop(self, operation: str, *, first: bool) -> None:
        if self.fault == "exit":
            os._exit(KILLED)
        if self.fault == "full" and operation not in FREE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.fault == "read-only":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        if self.fault == "clock" and first:
            now = time.time
            time.time = lambda: now() + (86_400 if self.at and self.at % 2 else -86_400)
        if self.fault in SIGNALS and first:
            os.kill(os.getpid(), SIGNALS[self.fault])
        if self.fault == "lost" and first:
            children = psutil.Process().children()
            for child in [one for one in children if "resource_tracker" not in " ".join(one.cmdline())][:1]:
                child.kill()


class _RawFile(io.FileIO):
    point: Callable[..., None]

    def write(self, data: Any, /) -> int:
        path, content = _path_of(self.fileno()), bytes(data)
        self.point("write", path)
        half = super().write(content[: len(content) // 2])
        self.point("half of write", path)
        return half + super().write(content[half:])


def _path_of(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""
