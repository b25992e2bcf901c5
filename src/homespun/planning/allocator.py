"""Memory of a CPU process beyond the bytes of its tensors: fragmentation of glibc's heap, and oneDNN's LSTM workspace.

PyTorch requests aligned memory, for which glibc needs a free block that is larger than the request by the alignment and
a header (`_int_memalign` in malloc.c). A freed block therefore fits another tensor of the same size only after merging
with a neighbour. `AllocatorModel` replays the malloc and free calls of a step.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

_ALIGNMENT = 64  # bytes, of PyTorch's tensors on a CPU
_HEADER = 16  # bytes before each block
_MIN_BLOCK = 32  # bytes
_PAGE = 4096  # bytes: each part of the LSTM workspace begins on a page
_CACHE_LINE = 64  # bytes: rows of the LSTM workspace are padded to it
_ALIASED = 256  # elements: oneDNN pads rows of a multiple of it, which would share cache sets


class AllocatorModel:
    """Best-fit heap. Free neighbours merge; the top grows where no free block is large enough.

    Attributes:
        live: allocated bytes.
        peak_live: maximum of ``live``: the peak without fragmentation.
        peak: maximum of the top: the peak with fragmentation.
    """

    def __init__(self) -> None:
        self.live = self.peak_live = self.peak = 0
        self._top = 0
        self._allocated: dict[int, int] = {}  # address -> size
        self._blocks: list[tuple[int, int]] = []  # free: (size, address), sorted
        self._size_at: dict[int, int] = {}  # address of a free block -> size
        self._start_of: dict[int, int] = {}  # end of a free block -> address

    def malloc(self, size: int) -> int:
        """Allocate ``size`` bytes with PyTorch's alignment, and return the address."""
        size = max(_MIN_BLOCK, -(-(size + _HEADER // 2) // _HEADER) * _HEADER)
        padded = size + _ALIGNMENT + _MIN_BLOCK
        index = bisect_left(self._blocks, (padded, -1))
        if index < len(self._blocks):
            block, start = self._blocks[index]
            self._remove(start)
        else:
            block, start = padded, self._top
            self._top += padded
        address = start
        if (start + _HEADER) % _ALIGNMENT:
            address = -(-(start + _HEADER) // _ALIGNMENT) * _ALIGNMENT - _HEADER
            if address - start < _MIN_BLOCK:
                address += _ALIGNMENT
            self._add(start, address - start)
        rest = start + block - address - size
        if rest < _MIN_BLOCK:
            size += rest
        else:
            self._release(address + size, rest)
        self._allocated[address] = size
        self.live += size
        self.peak_live = max(self.peak_live, self.live)
        self.peak = max(self.peak, self._top)
        return address

    def free(self, address: int) -> None:
        """Free an address of `malloc`."""
        size = self._allocated.pop(address)
        self.live -= size
        self._release(address, size)

    def _release(self, address: int, size: int) -> None:
        if (before := self._start_of.get(address)) is not None:
            size += address - before
            self._remove(before)
            address = before
        if (after := self._size_at.get(address + size)) is not None:
            self._remove(address + size)
            size += after
        if address + size == self._top:
            self._top = address
        else:
            self._add(address, size)

    def _add(self, address: int, size: int) -> None:
        insort(self._blocks, (size, address))
        self._size_at[address] = size
        self._start_of[address + size] = address

    def _remove(self, address: int) -> None:
        size = self._size_at.pop(address)
        del self._start_of[address + size]
        del self._blocks[bisect_left(self._blocks, (size, address))]


def lstm_workspace_bytes(shape: Sequence[int], hidden_size: int, itemsize: int) -> int:
    """Compute the bytes that oneDNN's LSTM keeps for the backward pass of one layer and direction.

    Gates, outputs, cell states and their float32 gradients; states twice, with the initial one (`set_workspace_sizes`
    in oneDNN's rnn_utils.cpp).

    Args:
        shape: (seq, rows, input_size).
        hidden_size: width of the state.
        itemsize: bytes of an element.
    """

    def padded(width: int, itemsize: int) -> int:
        line = _CACHE_LINE // itemsize
        padded = -(-width // line) * line
        return (padded + line if padded % _ALIASED == 0 else padded) * itemsize

    seq, rows, input_size = shape
    states, widest = 2 * (seq + 1) * rows, max(input_size, hidden_size)
    parts = [
        seq * rows * padded(4 * hidden_size, itemsize),  # gates
        seq * rows * padded(hidden_size, itemsize),  # outputs
        states * padded(widest, itemsize),
        states * hidden_size * itemsize,  # cell
        *[states * padded(widest, 4)] * 2,  # gradients of the outputs: to the layer above, to the previous token
        states * hidden_size * 4,
    ]
    return sum(-(-part // _PAGE) * _PAGE for part in parts)
