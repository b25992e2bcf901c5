"""Prediction of many records in parts, by several processes. A killed prediction continues from its finished parts.

A part is a file with the predictions of consecutive records. Its first line has a digest of the records, the model and
the options, so that parts of other ones are predicted again. Parts depend on the inputs alone, not on the number of
processes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory

import psutil

from homespun import __version__
from homespun.commands.prediction_files import Prediction, Summary, write_lines
from homespun.errors import UserError
from homespun.io.atomic import TEMPORARY, file_digest, write_bytes
from homespun.io.cores import available_cores
from homespun.io.signals import ignored_interrupts
from homespun.text.formats import Record

logger = logging.getLogger(__name__)

_MAX_RECORDS = 4096
_MAX_PROBABILITIES = 2**22  # probabilities of a part, about 150 MB as JSON
_MAX_CHARACTERS = 2**19  # JSON characters of a part: 2,000 short news, or minutes of a BERT-base on one core
_PREDICTIONS = (".csv", ".jsonl", ".part")
_WORKER_BYTES = 2**30  # memory of a process without its model

Predict = Callable[..., Iterator[Prediction]]
"""As `homespun.tasks.protocol.Task.predict`, without the model."""


@dataclass(frozen=True)
class Part:
    """Consecutive records of the inputs."""

    first: int  # number of the first record, from 1
    records: list[Record]
    digest: str  # of the records, the model and the options
    bytes_read: int  # bytes of the inputs up to the end of the part, or a little more


def max_part_records(classes: int) -> int:
    """Maximum number of records of a part whose predictions have a probability for each class."""
    return max(1, min(_MAX_RECORDS, _MAX_PROBABILITIES // max(1, classes)))


def divide(
    records: Iterable[Record], identity: str, bytes_read: Callable[[], int], *, max_records: int
) -> Iterator[Part]:
    """Divide the records of all inputs into parts of at most ``max_records``.

    ``identity`` is the digest of model and options, ``bytes_read`` returns the bytes read of the inputs.
    """
    first, stream = 1, iter(records)
    for record in stream:
        part: list[Record] = []
        characters = 0
        digest = hashlib.blake2b(f"{identity}/{first}".encode(), digest_size=16)
        for one in chain((record,), stream):
            text = json.dumps(one, default=str)
            digest.update(text.encode())
            part.append(one)
            characters += len(text)
            if len(part) == max_records or characters >= _MAX_CHARACTERS:
                break
        yield Part(first, part, digest.hexdigest(), bytes_read())
        first += len(part)


@dataclass(frozen=True)
class PartRenderer:
    """Predicts a part and returns the content of its file."""

    predict: Predict
    source: str  # name of the inputs in errors
    suffix: str  # of the file that is made of the parts

    def __call__(self, part: Part) -> bytes:
        """Return the file of a part."""
        summary = Summary()
        predictions = self.predict(iter(part.records), source=self.source, first=part.first)
        pairs = zip(part.records, predictions, strict=True)
        lines = [summary.add(record, prediction, self.suffix) for record, prediction in pairs]
        return "".join([f"{part.digest} {summary.model_dump_json()}\n", *lines]).encode()


Submit = Callable[[Part], Callable[[], bytes]]
"""Starts the prediction of a part; returns a function that waits for the content of its file."""


def in_this_process(render: PartRenderer) -> Submit:
    """Predict each part when its content is requested."""
    return lambda part: lambda: render(part)


@contextmanager
def in_processes(count: int, open_renderer: Callable[[], PartRenderer]) -> Iterator[Submit]:
    """Predict parts in ``count`` processes of one thread, which end with the block or with this process.

    `concurrent.futures.ProcessPoolExecutor` hangs when a process is killed and the next parts exceed the buffer of a
    pipe (Python issue 94777); here, each process has a pipe and a thread that waits for it. ``open_renderer`` is
    picklable and opens the model in each process.

    Raises:
        UserError: in the block: the prediction raised it, or a process was killed.
    """
    context = multiprocessing.get_context("spawn")  # forking a process that runs threads of torch can hang
    processes: list[SpawnProcess] = []
    free: Queue[Connection] = Queue()

    def call(part: Part) -> bytes:
        connection = free.get()
        try:
            with suppress(BrokenPipeError):  # the process may have sent an error and ended
                connection.send(part)
            content: bytes | Exception = connection.recv()
        except (EOFError, OSError) as error:
            raise UserError(
                f"one of {count} processes was killed, perhaps out of memory; repeat the command with fewer "
                f"--processes, which continues after the finished parts"
            ) from error
        finally:
            free.put(connection)
        if isinstance(content, Exception):
            raise content
        return content

    threads = ThreadPoolExecutor(count)
    try:
        with ignored_interrupts():
            for _ in range(count):
                ours, theirs = context.Pipe()
                processes.append(context.Process(target=_work, args=(theirs, open_renderer), daemon=True))
                processes[-1].start()
                theirs.close()
                free.put(ours)
        yield lambda part: threads.submit(call, part).result
    finally:
        for process in processes:
            process.kill()
        threads.shutdown(cancel_futures=True)
        for process in processes:
            process.join()


def _work(connection: Connection, open_renderer: Callable[[], PartRenderer]) -> None:
    """Predict the parts that `in_processes` sends."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    logging.disable(logging.WARNING)  # the first process has opened the model too, and has warned
    warnings.simplefilter("ignore")
    os.environ["RAYON_NUM_THREADS"] = "1"  # threads of tokenizers
    try:
        render = open_renderer()
        limit_threads()
        while True:
            connection.send(render(connection.recv()))
    except UserError as error:
        connection.send(error)
    except Exception:  # some exceptions cannot be pickled
        connection.send(RuntimeError(f"a process failed:\n{traceback.format_exc()}"))


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def limit_threads(count: int = 1) -> int:
    """Set the number of threads of torch, which may change the last bits of results; returns the earlier number."""
    torch = sys.modules.get("torch")  # linear models do not need it
    if torch is None:
        return count
    earlier: int = torch.get_num_threads()
    torch.set_num_threads(count)
    return earlier


def predict_parts(
    parts: Iterable[Part], folder: Path, submit: Submit, *, ahead: int, report: Callable[[int, int], None]
) -> tuple[list[Path], int]:
    """Write the file of each part that is not in ``folder`` yet.

    Args:
        ahead: parts that are started before the content of one is awaited.
        report: called with the rows and the bytes of finished parts before each prediction, and at the end.

    Returns:
        Files in the order of the parts, and the number of rows in those that were finished before.
    """
    files: list[Path] = []
    rows = bytes_read = resumed = 0
    warned = False
    waiting: deque[tuple[Part, Path, Callable[[], bytes] | None]] = deque()

    def finish() -> None:
        nonlocal rows, bytes_read
        part, file, content = waiting.popleft()
        if content is not None:
            report(rows, bytes_read)
            write_bytes(file, content())
        rows, bytes_read = rows + len(part.records), part.bytes_read

    for part in parts:
        file = folder / f"{len(files):06}.part"
        digest = _digest_of(file)
        if digest == part.digest:
            resumed += len(part.records)
        elif digest is not None and not warned:
            warned = True
            logger.warning("%s has parts of another input, model or option, which are predicted again", folder)
        files.append(file)
        waiting.append((part, file, None if digest == part.digest else submit(part)))
        if len(waiting) > ahead:
            finish()
    while waiting:
        finish()
    report(rows, bytes_read)
    return files, resumed


def _digest_of(file: Path) -> str | None:
    """Digest in the file of a part; None without a file."""
    try:
        with file.open(encoding="utf-8") as stream:
            return stream.readline().partition(" ")[0]
    except FileNotFoundError:
        return None


def join_parts(files: Sequence[Path], out: Path, *, raw: bool) -> Summary:
    """Write the predictions of all parts into ``out``; see `homespun.commands.prediction_files.write_lines`."""
    summary = Summary()
    for file in files:
        with file.open(encoding="utf-8") as stream:
            summary.merge(Summary.model_validate_json(stream.readline().partition(" ")[2]))
    write_lines(out, _lines(files), summary, raw=raw)
    return summary


def _lines(files: Iterable[Path]) -> Iterator[str]:
    for file in files:
        with file.open(encoding="utf-8") as stream:
            stream.readline()
            yield from stream


@contextmanager
def part_folder(out: Path, *, temporary: bool) -> Iterator[Path]:
    """Folder of the parts of ``out``, which is removed at the end, and stays after an error unless it is empty.

    A ``temporary`` folder is another one in each process, and does not stay.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    if temporary:
        with TemporaryDirectory(dir=out.parent, prefix=f"{TEMPORARY}{os.getpid()}-", suffix=out.name) as name:
            yield Path(name)
        return
    folder = out.with_name(f"{out.name}.parts")
    folder.mkdir(exist_ok=True)
    try:
        yield folder
        for file in folder.glob("*.part"):
            file.unlink()
    finally:
        with suppress(OSError):  # other files
            folder.rmdir()


def identify(model: Path, options: Mapping[str, object]) -> str:
    """Digest of the files of a model, of this version and of ``options``."""
    digest = hashlib.blake2b(json.dumps([__version__, options], default=str).encode(), digest_size=16)
    for file in _model_files(model):
        digest.update(f"{file.relative_to(model).as_posix()} {file_digest(file)}".encode())
    return digest.hexdigest()


def choose_processes(model: Path) -> int:
    """Number of processes that the cores and the free memory of this machine allow."""
    size = 2 * sum(file.stat().st_size for file in _model_files(model))
    return max(1, min(available_cores(), psutil.virtual_memory().available // (size + _WORKER_BYTES)))


def _model_files(folder: Path) -> list[Path]:
    """Files of a run's or other model, without predictions."""
    top = folder / "model" if (folder / "model").is_dir() else folder
    return sorted(file for file in top.rglob("*") if file.is_file() and file.suffix not in _PREDICTIONS)
