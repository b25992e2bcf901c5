"""Store of a comparison without a shared folder: run folders in an object store, through fsspec.

A unit is what one command writes: its run folder and its log. Each process that runs a command writes an attempt of its
unit, ``UNIT/NUMBER-TOKEN/``, so that no object has two writers. Objects are named by the digest of their content; a
manifest, which is written after them, lists the files. Readers take the newest manifest whose objects are complete.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pydantic import ValidationError, field_validator

from homespun.compare.executor import Command
from homespun.config import Config
from homespun.errors import UserError, first_line
from homespun.io.atomic import TEMPORARY, file_digest, remove
from homespun.io.signals import ignored_interrupts

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem  # type: ignore[import-untyped]

logger = logging.getLogger(__name__)

_COMPARISON = "comparison"  # unit of the main process
_RECORDS = ("comparison.yaml", "trials/*/*/trial.json", "search/*.*", "search/*/*/trial.json")
_OBJECT = re.compile(r"(?P<unit>.+)/(?P<number>\d{6})-\w+/(?P<name>[^/]+)")
_MANIFEST = re.compile(r".+/\d{6}-\w+/manifest-\d{6}\.json")


class _Damaged(UserError):
    """Version of a unit with a missing or altered object."""


class _File(Config):
    bytes: int
    blake2b: str  # also the name of the object


class _Manifest(Config):
    files: dict[str, _File]  # key: path below the folder of the comparison

    @field_validator("files")
    @classmethod
    def _check(cls, files: dict[str, _File]) -> dict[str, _File]:
        if any(PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts for path in files):
            raise ValueError("a path is outside of the folder")
        return files


@dataclass(frozen=True)
class Store:
    """Folder of an object store, or of another file system of fsspec, that holds the runs of a comparison.

    Args:
        url: such as ``s3://bucket/runs``.
        out: folder of the comparison on the machine of its main process, an absolute path.
    """

    url: str
    out: Path

    @contextmanager
    def access(self, verb: str) -> Iterator[tuple[AbstractFileSystem, str]]:
        """Yield the file system and the path of the folder in it.

        Raises:
            UserError: the URL cannot be used, or an operation in the block failed.
        """
        import fsspec

        try:
            if "://" not in self.url:
                raise ValueError("it is not a URL, such as s3://bucket/runs")
            filesystem, root = fsspec.core.url_to_fs(self.url)
            yield filesystem, root.rstrip("/")
        except UserError:
            raise
        except Exception as error:  # file systems raise different exceptions
            raise UserError(
                f"cannot {verb} --store {self.url}: {first_line(error)}; correct it, or packages, credentials and free "
                f"space on all machines, and repeat the command to resume"
            ) from error

    def sizes(self, unit: str = "") -> dict[str, int | None]:
        """List the objects of a unit, or of all, with their bytes.

        Raises:
            UserError: the store cannot be read.
        """
        with self.access("read") as (filesystem, root):
            filesystem.invalidate_cache()
            found = filesystem.find(f"{root}/{unit}".rstrip("/"), detail=True)
            return {name[len(root) + 1 :]: info.get("size") for name, info in found.items()}

    def restore(self, unit: str, folder: Path, *, checkpoints: bool = True) -> bool:
        """Replace a unit below ``folder`` by its newest complete version; False if it has no version.

        Raises:
            UserError: all versions are damaged, or the store cannot be read.
        """
        sizes, problem = self.sizes(unit), None
        for manifest in sorted(filter(_MANIFEST.fullmatch, sizes), reverse=True):
            try:
                self._restore(unit, manifest, sizes, folder, checkpoints=checkpoints)
                return True
            except _Damaged as error:
                problem = problem or error
                logger.warning("%s; trying the version before", error)
        if problem is not None:
            if self.sizes(unit) != sizes:  # a worker that counts as lost has published meanwhile
                return self.restore(unit, folder, checkpoints=checkpoints)
            raise UserError(f"{problem}; delete {self.url}/{unit} to run it again") from problem
        return False

    def _restore(
        self, unit: str, manifest: str, sizes: dict[str, int | None], folder: Path, *, checkpoints: bool
    ) -> None:
        attempt = manifest.rpartition("/")[0]
        with _temporary_folder(folder) as temporary, self.access("read") as (filesystem, root):
            try:
                files = _Manifest.model_validate_json(filesystem.cat_file(f"{root}/{manifest}")).files
                files = {path: file for path, file in files.items() if checkpoints or "/checkpoints/" not in path}
                for path, file in files.items():
                    if sizes.get(f"{attempt}/{file.blake2b}") != file.bytes:
                        raise _Damaged(f"{self.url}/{attempt}/{file.blake2b} ({path}) is missing or was cut short")
                    (temporary / path).parent.mkdir(parents=True, exist_ok=True)
                objects = [f"{root}/{attempt}/{file.blake2b}" for file in files.values()]
                filesystem.get(objects, [str(temporary / path) for path in files])
            except (FileNotFoundError, ValidationError) as error:
                raise _Damaged(f"{self.url}/{manifest} or an object of it was removed or altered") from error
            for path, file in files.items():
                if file_digest(temporary / path) != file.blake2b:
                    raise _Damaged(f"{self.url}/{attempt}/{file.blake2b} ({path}) was altered")
            remove(folder / unit)
            for path in files:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                os.replace(temporary / path, folder / path)

    def restore_comparison(self) -> None:
        """Restore records and runs of the comparison, without checkpoints; no effect if the store has none.

        Raises:
            UserError: as in `restore`.
        """
        units = {found["unit"] for name in self.sizes() if (found := _OBJECT.fullmatch(name))}
        if _COMPARISON in units:
            for unit in sorted(units, key=lambda unit: unit == _COMPARISON):  # last: it makes the folder a comparison
                self.restore(unit, self.out, checkpoints=False)

    def records(self) -> Publisher:
        """Return the publisher of the records of the main process."""
        return Publisher(self, _COMPARISON, self.out, lambda: (p for glob in _RECORDS for p in self.out.glob(glob)))

    def unit(self, command: Command) -> str:
        """Return the unit of a command, the path of its run folder, which has the name of its log."""
        return (command.log.parent.parent / command.log.stem).relative_to(self.out).as_posix()

    @contextmanager
    def scratch(self, command: Command) -> Iterator[tuple[Command, Publisher]]:
        """Yield a command moved to a temporary folder, and the publisher of its unit, which publishes at the end.

        The folder has the runs that the command reads and, if it resumes, its own run.

        Raises:
            UserError: a run is missing or damaged, or the store cannot be read or written.
        """
        with TemporaryDirectory(prefix="homespun-", ignore_cleanup_errors=True) as name:
            unit, folder, arguments = self.unit(command), Path(name), list(command.arguments)
            for index, argument in enumerate(arguments):
                if not Path(argument).is_relative_to(self.out):
                    continue
                run = Path(os.path.normpath(argument)).relative_to(self.out).as_posix()
                arguments[index] = str(folder / run)
                if run != unit and not self.restore(run, folder, checkpoints=False):
                    raise UserError(f"--store {self.url} has no {run}; leave it out, or give --out a new folder")
            if "--resume" in arguments:
                self.restore(unit, folder)
            log = folder / command.log.relative_to(self.out)
            where = command.folder if command.folder.is_dir() else folder
            publisher = Publisher(self, unit, folder, lambda: (log, *(folder / unit).rglob("*")))
            yield replace(command, arguments=tuple(arguments), log=log, folder=where), publisher
            with ignored_interrupts():
                publisher.publish()


class Publisher:
    """Writer of one attempt of a unit; ``files`` lists its files and folders, which are below ``folder``."""

    def __init__(self, store: Store, unit: str, folder: Path, files: Callable[[], Iterable[Path]]) -> None:
        self._store, self._folder, self._files = store, folder, files
        attempts = {name.rpartition("/")[0]: found for name in store.sizes(unit) if (found := _OBJECT.fullmatch(name))}
        number = 1 + max((int(found["number"]) for found in attempts.values()), default=0)
        self._attempt = f"{unit}/{number:06d}-{secrets.token_hex(4)}"
        self._superseded = sorted(attempts)
        self._objects: set[str] = set()  # of the last version
        self._manifests: list[str] = []  # of the last version, and of versions that were interrupted
        self._numbers = count(1)
        self._inodes: dict[Path, int] = {}  # of the last version
        self._digests: dict[tuple[int, int], str] = {}  # key: inode and modification time

    def publish_changes(self) -> None:
        """Publish if a file was added, replaced or removed; lines that were appended to a file are no reason.

        Raises:
            UserError: as in `publish`.
        """
        if self._inodes != self._list():
            self.publish()

    def publish(self) -> None:
        """Write a version, then remove earlier versions.

        Raises:
            UserError: the store cannot be written.
        """
        with _temporary_folder(self._folder) as temporary:
            copies = self._copy(temporary)
            files = {
                path: _File(bytes=copy.stat().st_size, blake2b=self._digest(copy)) for path, copy in copies.items()
            }
            objects = {file.blake2b: copies[path] for path, file in files.items()}
            new = {name: str(copy) for name, copy in objects.items() if name not in self._objects}
            self._manifests.append(f"manifest-{next(self._numbers):06d}.json")
            with self._store.access("write") as (filesystem, root):
                attempt = f"{root}/{self._attempt}"
                filesystem.makedirs(attempt, exist_ok=True)
                filesystem.put(list(new.values()), [f"{attempt}/{name}" for name in new])
                filesystem.pipe_file(
                    f"{attempt}/{self._manifests[-1]}", _Manifest(files=files).model_dump_json().encode()
                )
                for name in (*self._manifests[:-1], *sorted(self._objects - objects.keys())):
                    with suppress(FileNotFoundError):
                        filesystem.rm_file(f"{attempt}/{name}")
                for superseded in self._superseded:
                    with suppress(FileNotFoundError):
                        filesystem.rm(f"{root}/{superseded}", recursive=True)
        self._objects, self._manifests, self._superseded = set(objects), self._manifests[-1:], []

    def _copy(self, folder: Path) -> dict[str, Path]:
        """Copy all files as they are at one time; weights, which do not change in place, are linked."""
        while True:
            self._inodes, copies = self._list(), {}
            with suppress(FileNotFoundError):
                for number, path in enumerate(self._inodes):
                    copies[path.relative_to(self._folder).as_posix()] = copy = folder / str(number)
                    remove(copy)
                    (os.link if path.suffix == ".safetensors" else shutil.copyfile)(path, copy)
            if self._inodes == self._list():
                return copies

    def _list(self) -> dict[Path, int]:
        """Return the inode of each file that is not temporary."""
        inodes = {}
        for path in self._files():
            with suppress(FileNotFoundError):
                if path.is_file() and f"/{TEMPORARY}" not in f"/{path.relative_to(self._folder).as_posix()}":
                    inodes[path] = path.stat().st_ino
        return inodes

    def _digest(self, file: Path) -> str:
        status = file.stat()
        key = status.st_ino, status.st_mtime_ns
        if key not in self._digests:
            self._digests[key] = file_digest(file)
        return self._digests[key]


@contextmanager
def _temporary_folder(parent: Path) -> Iterator[Path]:
    """Yield a temporary folder in ``parent``."""
    with TemporaryDirectory(dir=parent, prefix=f"{TEMPORARY}{os.getpid()}-") as name:
        yield Path(name)
