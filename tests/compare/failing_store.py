"""A store in memory that fails when asked to, and what tests of stores share."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from fsspec.implementations.memory import MemoryFileSystem

from homespun.compare.store import Store

UNIT = "trials/a/seed-0/pretrain"


class Failing(MemoryFileSystem):
    """Fails when ``left`` operations have changed it; the one that fails writes half of its content."""

    protocol = "failing"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    left = 10**9
    meanwhile: Callable[[], None] = staticmethod(lambda: None)  # called before each file is read or written

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.replace("failing://", "memory://")))

    def spend(self) -> bool:
        Failing.left -= 1
        return Failing.left < 0

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        if self.spend():
            super().pipe_file(path, value[: len(value) // 2], **options)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().pipe_file(path, value, **options)

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        Failing.meanwhile()
        self.pipe_file(rpath, Path(lpath).read_bytes())

    def get_file(self, rpath: str, lpath: str, **options: Any) -> None:
        Failing.meanwhile()
        super().get_file(rpath, lpath, **options)

    def rm_file(self, path: str) -> None:
        if self.spend():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().rm_file(path)

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        for name in reversed(self.expand_path(path, recursive=recursive)):
            if self.isfile(name):
                self.rm_file(name)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def restored(store: Store, folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    assert store.restore(UNIT, folder)
    return contents(folder)
