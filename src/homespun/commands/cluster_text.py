"""Text that workers of a Ray cluster read: files in units, tasks for units, and a sample for a tokenizer."""

from __future__ import annotations

import dataclasses
import heapq
import os
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from typing import Any, TypeVar

from homespun.data.corpus_build import Progress
from homespun.data.reading import Reading
from homespun.io.cluster import check_version, connect, refusal
from homespun.text.input_files import list_files
from homespun.text.sources import Document, EmptyInput, ReadProgress

_UNIT_BYTES = 64 * 2**20  # bytes of the files of a unit
_SAMPLE = 200_000_000  # characters of which a tokenizer is trained: at most 0.8 GB of memory
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class SharedText:
    """Documents of files that all machines see, in units of about 64 MB of consecutive files."""

    reading: Reading  # as for one machine
    units: tuple[tuple[str, ...], ...]  # names of the files of each unit
    sizes: tuple[int, ...]  # bytes of each unit
    version: str  # of homespun, which all machines must have

    @classmethod
    def divide(cls, reading: Reading) -> SharedText:
        """Divide the files of ``reading``; raises `UserError` for inputs that only one machine can read."""
        units: list[list[str]] = []
        sizes: list[int] = []
        for name, size in list_files(reading.inputs):
            if not units or sizes[-1] + size > _UNIT_BYTES:
                units.append([])
                sizes.append(0)
            units[-1].append(name if "://" in name else os.path.abspath(name))  # workers have another working directory
            sizes[-1] += size
        return cls(reading, tuple(map(tuple, units)), tuple(sizes), version("homespun"))

    def documents(self, unit: int) -> Iterator[Document]:
        """Documents of a unit, with duplicates among files; raises `UserError` if this worker has another version."""
        check_version(self.version)
        for name in self.units[unit]:
            try:
                yield from dataclasses.replace(self.reading, inputs=(name,)).documents()
            except EmptyInput:  # one of several files may be empty
                continue


def run_tasks(
    ray: Any, function: Callable[..., _Result], shared: object, arguments: Iterable[tuple[object, ...]]
) -> Iterator[_Result]:
    """Results of the tasks ``function(shared, *arguments)`` as they end, at most two for each processor at a time."""
    task = ray.remote(num_cpus=1)(function)
    reference = ray.put(shared)
    most = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
    waiting, running = iter(arguments), list[Any]()
    while True:
        running += [task.remote(reference, *each) for each in islice(waiting, most - len(running))]
        if not running:
            return
        done, running = ray.wait(running)
        yield from ray.get(done)


def sample_texts(
    reading: Reading,
    *,
    characters: int = _SAMPLE,
    progress: Progress | None = None,
    read_progress: ReadProgress | None = None,
) -> list[str]:
    """Draw documents of about ``characters`` by the workers of the Ray cluster of ``RAY_ADDRESS``, in their order.

    Each unit gives a share in proportion to the bytes of its files. The sample depends on the files alone, and is all
    text if that has no more characters than wanted. ``reading.duplicates`` are found within each file.

    Raises:
        UserError: the cluster cannot be reached; a worker has another version or does not see the files.
    """
    ray, text = connect(), SharedText.divide(reading)
    shares = [-(-characters * size // max(1, sum(text.sizes))) for size in text.sizes]
    drawn: dict[int, list[str]] = {}
    done = documents = 0
    try:
        for unit, texts in run_tasks(ray, draw_texts, text, enumerate(shares)):
            drawn[unit] = texts
            done, documents = done + sum(map(len, texts)), documents + len(texts)
            if read_progress is not None:
                read_progress.done += text.sizes[unit]
            if progress is not None:
                progress(done, documents)
    except ray.exceptions.RayError as error:
        raise refusal(error) from error
    return [document for unit in sorted(drawn) for document in drawn[unit]]


def draw_texts(text: SharedText, unit: int, characters: int) -> tuple[int, list[str]]:
    """Random documents of a unit until they have ``characters``, in their order, and the number of the unit.

    At most ``characters`` and the longest document are held at a time.
    """
    draw, held = random.Random(unit), 0
    heap: list[tuple[float, int, str]] = []  # random key, position, text; smallest key first
    for position, document in enumerate(text.documents(unit)):
        heapq.heappush(heap, (draw.random(), position, document.text))
        held += len(document.text)
        while held - len(heap[0][2]) >= characters:
            held -= len(heapq.heappop(heap)[2])
    return unit, [document for _, document in sorted(entry[1:] for entry in heap)]
