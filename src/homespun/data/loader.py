"""Batches out of rows. Row i of epoch e is a function of (seed, e, i), so that any step can be made at any time."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Literal, Protocol, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from homespun.batch import Batch, RowSeed
from homespun.data.order import feistel_shuffle
from homespun.data.rows import Row, Rows
from homespun.errors import UserError

WINDOW = 64  # batches, at the least, whose rows are sorted together when bucketing

T = TypeVar("T")
Order = Literal["shuffled", "bucketed", "in_order"]


class Collate(Protocol):
    """Makes a batch of rows: corrupts, pads, finds the targets. Pure: its only randomness is the rows' draws.

    Picklable, because worker processes hold one.
    """

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch: ...


class Loader:
    """The steps of training, each a function of its number.

    An epoch is every row once, in a random order of its own, in ``steps_per_epoch`` steps of ``batch_size`` rows. What
    does not fill a step at the end is not lost: the last two steps of an epoch share their rows evenly, so that none
    is smaller than half a batch. With fewer rows than ``batch_size``, a step is all of them.

    A step is cut into ``world_size`` parts of consecutive rows, and each part into micro-batches: whatever the split,
    the rows of a step, their order and their draws are the same.

    Args:
        rows: the rows.
        collate: makes a batch of some of them.
        batch_size: rows in a step, over all processes.
        seed: of the order and of every row's draw.
        micro_batch_size: rows that are in the model at a time; by default all that a process has of a step.
        rank: which of the ``world_size`` processes this is.
        world_size: how many processes share a step.
        order: ``shuffled``; or ``bucketed``, where rows of like length come together, so that little is padding. The
            order is then shuffled, cut into windows of at least 64 steps, and sorted by length within each; the steps
            of a window come in random order. Or ``in_order``: every epoch the rows come as they are.
        workers: processes that prepare batches ahead; 0: none. The batches are the same, to the bit, for any number.

    Raises:
        UserError: a size is below one, there are no rows, or there are more processes than rows in a step.
    """

    def __init__(
        self,
        rows: Rows,
        collate: Collate,
        *,
        batch_size: int,
        seed: int,
        micro_batch_size: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        order: Order = "shuffled",
        workers: int = 0,
    ) -> None:
        for name, size in (("batch_size", batch_size), ("micro_batch_size", micro_batch_size)):
            if size is not None and size < 1:
                raise UserError(f"{name} must be 1 or more, not {size}")
        if not len(rows):
            raise UserError("there are no rows to make batches of; give more text")
        self.rows = rows
        self.collate = collate
        self.batch_size = batch_size
        self.micro_batch_size = micro_batch_size
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.order = order
        self.workers = workers
        self.steps_per_epoch = -(-len(rows) // batch_size)
        smallest = len(rows) - self._begin(self.steps_per_epoch - 1)
        if smallest < world_size:
            raise UserError(
                f"a step of {smallest} rows cannot be shared by {world_size} processes; "
                f"raise batch_size, give more text, or start fewer processes"
            )

    def step(self, number: int) -> list[Batch]:
        """This process's part of step ``number`` (0, 1, 2, ...), in micro-batches."""
        epoch, place = divmod(number, self.steps_per_epoch)
        indices = self._indices(epoch, place)
        first, last = (len(indices) * rank // self.world_size for rank in (self.rank, self.rank + 1))
        size = self.micro_batch_size or len(indices)
        return [self._batch(indices[start : min(start + size, last)], epoch) for start in range(first, last, size)]

    def steps(self, start: int = 0) -> Iterator[list[Batch]]:
        """`step` of ``start``, ``start + 1``, ... without end, prepared ahead by the workers."""
        return self._prefetched(self.step, count(start))

    def once(self) -> Iterator[Batch]:
        """Every row once, in the order of the rows, with the draws of epoch 0: for validation and prediction.

        The batches are of ``micro_batch_size`` rows, or else ``batch_size``, and are the same in every process.
        """
        size = self.micro_batch_size or self.batch_size
        return self._prefetched(self._batch_in_order, range(-(-len(self.rows) // size)))

    def with_micro_batch_size(self, size: int) -> Loader:
        """The same steps, cut into micro-batches of ``size`` rows."""
        return Loader(
            self.rows,
            self.collate,
            batch_size=self.batch_size,
            seed=self.seed,
            micro_batch_size=size,
            rank=self.rank,
            world_size=self.world_size,
            order=self.order,
            workers=self.workers,
        )

    def _begin(self, place: int) -> int:
        """At which row of the epoch's order its step ``place`` begins."""
        if place < self.steps_per_epoch - 1 or place == 0:
            return place * self.batch_size
        if place == self.steps_per_epoch:
            return len(self.rows)
        return (self._begin(place - 1) + len(self.rows) + 1) // 2

    def _indices(self, epoch: int, place: int) -> np.ndarray:
        """(rows of the step,) int64: the rows of step ``place`` of an epoch."""
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

    def _batch_in_order(self, number: int) -> Batch:
        size = self.micro_batch_size or self.batch_size
        return self._batch(range(number * size, min((number + 1) * size, len(self.rows))), 0)

    def _prefetched(self, read: Callable[[int], T], numbers: Iterable[int]) -> Iterator[T]:
        if not self.workers:
            return map(read, numbers)
        loader: DataLoader[T] = DataLoader(
            _Items(read),
            batch_size=None,
            sampler=numbers,
            num_workers=self.workers,
            collate_fn=_identity,
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=_ignore_interrupts,
            # else it draws a seed from the global generator, and dropout would depend on whether there are workers
            generator=torch.Generator(),
        )
        return iter(loader)


class _Items(Dataset[T]):
    """A function of a number, as the map-style data set that `DataLoader` wants."""

    def __init__(self, read: Callable[[int], T]) -> None:
        self._read = read

    def __getitem__(self, number: int) -> T:
        return self._read(number)


def _identity(item: T) -> T:
    return item


def _ignore_interrupts(worker: int) -> None:
    """Ctrl-C reaches every process of a terminal; what it means is for the trainer to say, which needs its batches."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
