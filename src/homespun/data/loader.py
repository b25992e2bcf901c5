"""Batches of rows. Row i of epoch e is a function of (seed, e, i), so any step can be computed without earlier ones."""

from __future__ import annotations

import atexit
import dataclasses
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import count
from typing import Any, Literal, Protocol, TypeVar
from weakref import WeakSet

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from homespun.batch import Batch, RowSeed
from homespun.data.corpus import random_keys
from homespun.data.rows import Row, Rows
from homespun.errors import UserError
from homespun.text.hashing import splitmix64

WINDOW = 64  # minimum number of batches whose rows are sorted together by `bucketed`
_ROUNDS = 6  # rounds of the Feistel network

T = TypeVar("T")
Order = Literal["shuffled", "bucketed", "in_order"]


class Collate(Protocol):
    """Interface of functions from rows to a batch, which corrupt, pad and find targets.

    Picklable; all randomness comes from the row seeds.
    """

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch: ...


@dataclass(eq=False)
class Loader:
    """Steps of a training, each a function of its number.

    An epoch has every row once, in random order, in ``steps_per_epoch`` steps of ``batch_size`` rows. The last two
    steps share their rows evenly, so that none is smaller than half a batch. With fewer rows than ``batch_size`` a step
    has all rows. A step is split into ``world_size`` parts of consecutive rows, and each part into micro-batches; the
    split does not change rows, order or seeds.

    Raises:
        UserError: a size is below 1, there are no rows, or there are more processes than rows in a step.
    """

    rows: Rows
    collate: Collate
    _: KW_ONLY
    batch_size: int  # rows of a step, over all processes
    seed: int  # random seed of the order and of each row
    micro_batch_size: int | None = None  # rows in the model at a time; None: all rows of this process
    rank: int = 0  # number of this process
    world_size: int = 1  # number of processes
    # ``shuffled``; ``bucketed``: shuffled, divided into windows of at least 64 steps, and sorted by length in each
    # window, whose steps are in random order, to reduce padding; or ``in_order``
    order: Order = "shuffled"
    workers: int = 0  # processes that prepare batches ahead; they do not change the batches

    def __post_init__(self) -> None:
        for name, size in (("batch_size", self.batch_size), ("micro_batch_size", self.micro_batch_size)):
            if size is not None and size < 1:
                raise UserError(f"{name}={size} must be 1 or more; raise it")
        if not len(self.rows):
            raise UserError("there are no rows for batches; give more text")
        self.steps_per_epoch = -(-len(self.rows) // self.batch_size)
        smallest = len(self.rows) - self._begin(self.steps_per_epoch - 1)
        if smallest < self.world_size:
            raise UserError(f"a step of {smallest} rows is too small for {self.world_size} processes; raise batch_size")

    def step(self, number: int) -> list[Batch]:
        """Return the micro-batches of this process in step ``number`` (0, 1, 2, ...)."""
        epoch, place = divmod(number, self.steps_per_epoch)
        indices = self._indices(epoch, place)
        first, last = (len(indices) * rank // self.world_size for rank in (self.rank, self.rank + 1))
        size = self.micro_batch_size or len(indices)
        return [self._batch(indices[start : min(start + size, last)], epoch) for start in range(first, last, size)]

    def steps(self, start: int = 0) -> Iterator[list[Batch]]:
        """Yield the micro-batches of step ``start``, ``start + 1``, ..., prepared ahead by the workers."""
        return self._prefetched(self.step, count(start))

    def once(self) -> Iterator[Batch]:
        """Yield all rows once, in order, with the seeds of epoch 0, for validation and prediction.

        Batches are equal in all processes and have ``micro_batch_size`` rows, or ``batch_size`` without it.
        """
        size = self.micro_batch_size or self.batch_size
        return self._prefetched(partial(self._batch_from, size=size), range(0, len(self.rows), size))

    def with_micro_batch_size(self, size: int) -> Loader:
        """Return a loader of the same steps, split into micro-batches of ``size`` rows."""
        return dataclasses.replace(self, micro_batch_size=size)

    def _begin(self, place: int) -> int:
        """Return the position in the epoch of the first row of step ``place``."""
        if place < self.steps_per_epoch - 1 or place == 0:
            return place * self.batch_size
        if place == self.steps_per_epoch:
            return len(self.rows)
        return (self._begin(place - 1) + len(self.rows) + 1) // 2

    def _indices(self, epoch: int, place: int) -> np.ndarray:
        """Return (rows of the step,) int64 row numbers of step ``place``."""
        if self.order == "bucketed":
            return self._bucketed(epoch, place)
        positions = np.arange(self._begin(place), self._begin(place + 1))
        if self.order == "in_order":
            return positions
        return feistel_shuffle(positions, len(self.rows), key=(self.seed, epoch))

    def _bucketed(self, epoch: int, place: int) -> np.ndarray:
        steps = self.steps_per_epoch
        windows = max(steps // WINDOW, 1)
        window = ((place + 1) * windows - 1) // steps
        first, last = window * steps // windows, (window + 1) * steps // windows
        begin = self._begin(first)
        rows = feistel_shuffle(np.arange(begin, self._begin(last)), len(self.rows), key=(self.seed, epoch))
        rows = rows[np.argsort(self.rows.lengths[rows], kind="stable")]
        turn = feistel_shuffle(np.array([place - first]), last - first, key=(self.seed, epoch, window))
        bucket = first + int(turn[0])
        return rows[self._begin(bucket) - begin : self._begin(bucket + 1) - begin]

    def _batch(self, indices: Iterable[int], epoch: int) -> Batch:
        numbers = [int(index) for index in indices]
        row_seeds = [RowSeed(self.seed, epoch, number) for number in numbers]
        return self.collate([self.rows[number] for number in numbers], row_seeds)

    def _batch_from(self, start: int, *, size: int) -> Batch:
        return self._batch(range(start, min(start + size, len(self.rows))), 0)

    def _prefetched(self, read: Callable[[int], T], numbers: Iterable[int]) -> Iterator[T]:
        if not self.workers:
            return map(read, numbers)
        loader: DataLoader[T | UserError] = DataLoader(
            _Items(read),
            batch_size=None,
            sampler=numbers,
            num_workers=self.workers,
            collate_fn=_identity,
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=_ignore_signals,
            # the default draws a seed from the global generator, so that workers would change dropout
            generator=torch.Generator(),
        )
        items = iter(loader)
        _iterators.add(items)
        return map(_raise_error, items)


_iterators: WeakSet[Any] = WeakSet()


@atexit.register
def _end_workers() -> None:
    """End the workers of iterators that an error keeps: multiprocessing would wait for them after a SIGTERM."""
    for items in _iterators:
        items.__del__()


class _Items(Dataset[T | UserError]):
    """Map-style data set of a function of an index, or its error, to which torch would add a traceback."""

    def __init__(self, read: Callable[[int], T]) -> None:
        self._read = read

    def __getitem__(self, number: int) -> T | UserError:
        try:
            return self._read(number)
        except UserError as error:
            return error


def _raise_error(item: T | UserError) -> T:
    if isinstance(item, UserError):
        raise item
    return item


def _identity(item: T) -> T:
    return item


def _ignore_signals(worker: int) -> None:
    """Ignore signals in a worker, since the trainer handles those sent to all processes."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def feistel_shuffle(positions: np.ndarray, count: int, *, key: tuple[int, ...]) -> np.ndarray:
    """Compute the elements at ``positions`` of a random permutation of ``range(count)``, seeded by ``key``.

    A Feistel network permutes numbers of ``2 * half`` bits; values outside ``range(count)`` pass through it again
    (cycle walking, Black and Rogaway 2002). No permutation is stored.

    Returns:
        (positions,) int64.
    """
    # 4 ** half < 4 * count: on average at most four passes
    half = max((max(count - 1, 1).bit_length() + 1) // 2, 1)
    bits, mask = np.uint64(half), np.uint64((1 << half) - 1)
    round_keys = random_keys(*key, count=_ROUNDS)
    values = positions.astype(np.uint64)
    outside = np.arange(len(values))
    while len(outside):
        left, right = values[outside] >> bits, values[outside] & mask
        for round_key in round_keys:
            left, right = right, left ^ (splitmix64(right ^ round_key) & mask)
        values[outside] = (left << bits) | right
        outside = outside[values[outside] >= count]
    return values.astype(np.int64)
