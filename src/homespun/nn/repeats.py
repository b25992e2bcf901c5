"""Loops whose passes compute alike, and differ in nothing but which rows they take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

Times = Callable[[int], AbstractContextManager[None]]
"""Inside, what is computed counts so many times."""

_rehearsal: Times | None = None


def alike(starts: range) -> Iterable[int]:
    """``starts``; in a rehearsal the first, the second in place of all that are like it, and the last."""
    return starts if _rehearsal is None or len(starts) < 4 else _shortened(starts, _rehearsal)


@contextmanager
def rehearsed(times: Times) -> Iterator[None]:
    """Inside, nobody asks for values, and ``times`` is told how often a pass of `alike` would have come."""
    global _rehearsal
    before, _rehearsal = _rehearsal, times
    try:
        yield
    finally:
        _rehearsal = before


def _shortened(starts: range, times: Times) -> Iterator[int]:
    yield starts[0]
    with times(len(starts) - 2):
        yield starts[1]
    yield starts[-1]
