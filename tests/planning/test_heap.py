import itertools

import pytest

from homespun.planning.heap import Heap


def test_what_is_taken_and_given_is_counted() -> None:
    heap = Heap()
    first, second = heap.take(1000), heap.take(3000)
    assert heap.live >= 4000
    highest = heap.peak_live
    heap.give(first)
    heap.give(second)
    assert heap.live == 0
    assert heap.peak_live == highest
    assert heap.peak >= highest


def test_tensors_are_aligned_and_do_not_overlap() -> None:
    heap = Heap()
    sizes = [7, 64, 1000, 4099, 13, 100_003]
    addresses = [heap.take(size) for size in sizes]
    for address in addresses[::2]:
        heap.give(address)
    taken = dict(zip(addresses[1::2], sizes[1::2], strict=True))
    for size in (5000, 31, 777):
        taken[heap.take(size)] = size
    assert all((address + 16) % 64 == 0 for address in taken)
    spans = sorted((address + 16, address + 16 + size) for address, size in taken.items())
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_the_hole_of_one_aligned_tensor_does_not_take_the_next_of_its_size() -> None:
    heap = Heap()
    first = heap.take(10_007)
    heap.take(11)  # keeps the hole from growing into the top
    heap.give(first)
    before = heap.peak
    heap.take(10_007)
    assert heap.peak > before


def test_two_holes_side_by_side_are_one() -> None:
    heap = Heap()
    first, second = heap.take(5003), heap.take(5003)
    heap.take(11)
    heap.give(first)
    heap.give(second)
    before = heap.peak
    heap.take(9001)
    assert heap.peak == before


def test_nothing_is_given_twice() -> None:
    heap = Heap()
    address = heap.take(17)
    heap.give(address)
    with pytest.raises(KeyError):
        heap.give(address)
