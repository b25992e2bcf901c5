"""Locks of output folders and files, for one process at a time."""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from homespun.errors import UserError
from homespun.io.atomic import TEMPORARY, remove

logger = logging.getLogger(__name__)

LOCK = f"{TEMPORARY}lock"
_RESTART_PATIENCE = 30.0  # seconds
PATIENCE = "HOMESPUN_LOCK_PATIENCE"
"""Environment variable: the least seconds to wait for another process."""
_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
# names of `homespun.io.atomic.atomic_path`, which can be nested
_WRITTEN_BY = re.compile(rf"{re.escape(TEMPORARY)}(?P<pid>\d+)-(?:old-)?(?P<target>.+)")


@contextmanager
def locked(out: Path, *, as_one: bool = False, patience: float = 0.0) -> Iterator[tuple[int, ...]]:
    """Hold the lock of an output; yields the file descriptors that a child process must inherit to hold it too.

    The lock is advisory (``flock``), on a file that names the process and is removed at the end. The system
    releases it when the last process that holds it ends, so a new process can take over the file of a killed one. NFS
    supports such locks across hosts; on a file system without them a warning is logged.

    When the block ends without an error, temporary files of killed processes are removed from the output. No effect
    in distributed processes except the first, and on Windows.

    Args:
        out: folder or file. A folder is created, and removed if it stays empty.
        as_one: ``out`` is replaced as a unit; the lock is then in the parent folder.
        patience: seconds to wait for another process; at least 30 in a process that torchrun has restarted.

    Raises:
        UserError: another process holds the lock, or the folder cannot be written.
    """
    folder, name = (out.parent, f"{LOCK}-{out.name}") if as_one else (out, LOCK)
    if os.environ.get("RANK", "0") != "0" or os.name == "nt":
        yield ()
        return
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":  # children of the killed process end after seconds
        patience = max(patience, _RESTART_PATIENCE)
    patience = max(patience, float(os.environ.get(PATIENCE, "0")))
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(folder / name, out, time.monotonic() + patience)
    except (FileExistsError, NotADirectoryError):  # a file is in the way, which the command refuses
        yield ()
        return
    except OSError as error:
        _remove_empty(created)
        raise UserError(f"cannot write into {folder}: {error.strerror}; give another --out") from error
    try:
        yield () if descriptor is None else (descriptor,)
        if as_one:
            _remove_leftovers(folder, lambda target: target.endswith(out.name))
        for path, folders, _ in os.walk(out):
            folders[:] = [entry for entry in folders if not Path(path, entry, LOCK).exists()]
            _remove_leftovers(Path(path), lambda target: True)
    finally:
        if descriptor is not None:
            os.close(descriptor)
            _release(folder / name)
        _remove_empty(created)


def _acquire(file: Path, out: Path, deadline: float) -> int | None:
    """Lock ``file`` and write the holder into it; None on a file system without locks."""
    import fcntl

    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_file(descriptor, file):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, _describe_holder().encode())
                return descriptor
        except BlockingIOError:
            if time.monotonic() >= deadline:
                holder = os.pread(descriptor, 1000, 0).decode(errors="replace") or "another process"
                os.close(descriptor)
                raise UserError(
                    f"{out} is written by {holder}; wait until it has ended, or give another --out"
                ) from None
            time.sleep(0.1)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                os.close(descriptor)
                raise
            logger.warning("%s has no file locks; start one command at a time with --out %s", file.parent, out)
            os.close(descriptor)
            file.unlink()
            return None
        os.close(descriptor)


def _describe_holder() -> str:
    user, now = psutil.Process().username(), time.strftime("%Y-%m-%d %H:%M:%S")
    return f"process {os.getpid()} of {user} on {socket.gethostname()} since {now}"


def _is_file(descriptor: int, file: Path) -> bool:
    """False if the process that held the lock has removed the file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(file))
    except FileNotFoundError:
        return False


def _release(file: Path) -> None:
    """Remove the file of a released lock, unless a child process holds it."""
    import fcntl

    with suppress(OSError):  # a folder that cannot be written any more; the next process takes the file over
        descriptor = os.open(file, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_file(descriptor, file):
                file.unlink()
        finally:
            os.close(descriptor)


def _remove_empty(folders: list[Path]) -> None:
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _remove_leftovers(folder: Path, is_output: Callable[[str], bool]) -> None:
    """Remove temporary files of processes that have ended."""
    for entry in folder.glob(f"{TEMPORARY}*"):
        written = _WRITTEN_BY.fullmatch(entry.name)
        if written is None or not is_output(written["target"]):
            continue
        pid = int(written["pid"])
        if pid == os.getpid() or not psutil.pid_exists(pid):
            remove(entry)
