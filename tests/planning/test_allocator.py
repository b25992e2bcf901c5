import itertools

import pytest

from homespun.planning.allocator import AllocatorModel


def test_live_and_peak_bytes() -> None:
    heap = AllocatorModel()
    first, second = heap.malloc(1000), heap.malloc(3000)
    assert heap.live >= 4000
    highest = heap.peak_live
    heap.free(first)
    heap.free(second)
    assert heap.live == 0
    assert heap.peak_live == highest
    assert heap.peak >= highest


def test_blocks_are_aligned_and_do_not_overlap() -> None:
    heap = AllocatorModel()
    sizes = [7, 64, 1000, 4099, 13, 100_003]
    addresses = [heap.malloc(size) for size in sizes]
    for address in addresses[::2]:
        heap.free(address)
    allocated = dict(zip(addresses[1::2], sizes[1::2], strict=True))
    for size in (5000, 31, 777):
        allocated[heap.malloc(size)] = size
    assert all((address + 16) % 64 == 0 for address in allocated)
    spans = sorted((address + 16, address + 16 + size) for address, size in allocated.items())
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_an_aligned_request_does_not_fit_a_free_block_of_its_size() -> None:
    heap = AllocatorModel()
    first = heap.malloc(10_007)
    heap.malloc(11)  # keeps the free block from merging with the top
    heap.free(first)
    before = heap.peak
    heap.malloc(10_007)
    assert heap.peak > before


def test_free_neighbours_merge() -> None:
    heap = AllocatorModel()
    first, second = heap.malloc(5003), heap.malloc(5003)
    heap.malloc(11)
    heap.free(first)
    heap.free(second)
    before = heap.peak
    heap.malloc(9001)
    assert heap.peak == before


def test_double_free_fails() -> None:
    heap = AllocatorModel()
    address = heap.malloc(17)
    heap.free(address)
    with pytest.raises(KeyError):
        heap.free(address)
