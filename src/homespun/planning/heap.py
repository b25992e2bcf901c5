"""What a process's memory grows to when tensors come and go: a heap that fits each into the best hole, as glibc's does.

Holes cost much there: PyTorch asks for aligned memory, and glibc looks for a hole that is larger than what is asked by
the alignment and a header, so that what one tensor leaves does not take the next of its size unless it grew together
with a neighbour (`_int_memalign` in malloc.c).
"""

from __future__ import annotations

from bisect import bisect_left, insort

_ALIGNMENT = 64  # bytes, of PyTorch's tensors on a CPU
_HEADER = 16  # bytes before each
_SMALLEST = 32  # bytes of a hole


class Heap:
    """Addresses and sizes, no memory. Free neighbours become one hole; the top grows when no hole is large enough.

    Attributes:
        live: bytes taken now.
        peak_live: the most that were taken at a time: what an allocator without holes would need.
        peak: the highest top: what this one needs.
    """

    def __init__(self) -> None:
        self.live = self.peak_live = self.peak = 0
        self._top = 0
        self._taken: dict[int, int] = {}  # address -> size
        self._holes: list[tuple[int, int]] = []  # (size, address), sorted
        self._hole_at: dict[int, int] = {}  # address -> size
        self._hole_before: dict[int, int] = {}  # end of a hole -> its address

    def take(self, size: int, *, alignment: int = _ALIGNMENT) -> int:
        """The address of ``size`` bytes; ``alignment`` 0: wherever they fit."""
        size = max(_SMALLEST, -(-(size + _HEADER // 2) // _HEADER) * _HEADER)
        wanted = size + (alignment + _SMALLEST if alignment else 0)
        place = bisect_left(self._holes, (wanted, -1))
        if place < len(self._holes):
            hole, start = self._holes[place]
            self._fill(start)
        else:
            hole, start = wanted, self._top
            self._top += wanted
        address = start
        if alignment and (start + _HEADER) % alignment:
            address = -(-(start + _HEADER) // alignment) * alignment - _HEADER
            if address - start < _SMALLEST:
                address += alignment
            self._dig(start, address - start)
        left = start + hole - address - size
        if left < _SMALLEST:
            size += left
        else:
            self._free(address + size, left)
        self._taken[address] = size
        self.live += size
        self.peak_live = max(self.peak_live, self.live)
        self.peak = max(self.peak, self._top)
        return address

    def give(self, address: int) -> None:
        """Take back what `take` gave."""
        size = self._taken.pop(address)
        self.live -= size
        self._free(address, size)

    def _free(self, address: int, size: int) -> None:
        before = self._hole_before.get(address)
        if before is not None:
            size += address - before
            self._fill(before)
            address = before
        after = self._hole_at.get(address + size)
        if after is not None:
            self._fill(address + size)
            size += after
        if address + size == self._top:
            self._top = address
        else:
            self._dig(address, size)

    def _dig(self, address: int, size: int) -> None:
        insort(self._holes, (size, address))
        self._hole_at[address] = size
        self._hole_before[address + size] = address

    def _fill(self, address: int) -> None:
        size = self._hole_at.pop(address)
        del self._hole_before[address + size]
        del self._holes[bisect_left(self._holes, (size, address))]
