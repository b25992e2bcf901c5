"""Atomic writes and digests: a reader finds the old or the new content, also after a power failure."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY = ".tmp-"  # prefix of files that are being written; a killed process may leave one


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path for a file or a folder that replaces ``path`` when the block ends without an error.

    The temporary path has the suffix of ``path`` and is in the same folder, which is created if it is missing. Its
    content is flushed to the disk before it is renamed.

    Example:
        ``with atomic_path(out) as temporary: temporary.write_bytes(content)``
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
    old = path.with_name(f"{TEMPORARY}{os.getpid()}-old-{path.name}")
    remove(temporary)
    try:
        yield temporary
        for written in (*(temporary.rglob("*") if temporary.is_dir() else ()), temporary):
            sync(written)
        if temporary.is_dir() and path.exists():
            os.rename(path, old)  # a folder cannot be replaced by os.replace
        os.replace(temporary, path)
        sync(path.parent)
    except BaseException:
        if old.exists() and not path.exists():
            os.rename(old, path)
        raise
    finally:
        remove(temporary)
        remove(old)


def entries(folder: Path) -> list[Path]:
    """List the entries of a folder, sorted, without temporary ones; empty if there is no such folder."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(entry for entry in found if not entry.name.startswith(TEMPORARY))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a file atomically, in UTF-8."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def remove(path: Path) -> None:
    """Delete a file or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush a file or the entries of a folder to the disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows does not open folders
    descriptor = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_digest(path: Path) -> str:
    """Compute the BLAKE2b digest of a file, 16 bytes in hexadecimal.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
