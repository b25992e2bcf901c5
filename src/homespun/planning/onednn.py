"""What oneDNN's LSTM, which PyTorch takes on a CPU, keeps for its backward pass: PyTorch's fake tensors do not know."""

from __future__ import annotations

_PAGE = 4096  # bytes, on which each part begins
_LINE = 64  # bytes, of which the rows of its matrices are made
_ALIASED = 256  # numbers: rows of a multiple of these would meet in the cache


def workspace_bytes(seq: int, rows: int, *, entering: int, size: int, item: int) -> int:
    """Of one layer in one direction over (seq, rows, entering), of numbers of ``item`` bytes.

    Its gates, its outputs and its memory, and their gradients, which are float32; each state from before the first
    token on, and twice (`set_workspace_sizes` in oneDNN's rnn_utils.cpp).
    """
    states, widest = 2 * (seq + 1) * rows, max(entering, size)
    parts = [
        seq * rows * _padded(4 * size, item) * item,  # gates
        seq * rows * _padded(size, item) * item,  # outputs
        states * _padded(widest, item) * item,
        states * size * item,  # memory
        *[states * _padded(widest, 4) * 4] * 2,  # gradients of the outputs, to the layer above and to the token before
        states * size * 4,
    ]
    return sum(-(-part // _PAGE) * _PAGE for part in parts)


def _padded(width: int, item: int) -> int:
    line = _LINE // item
    padded = -(-width // line) * line
    return padded + line if padded % _ALIASED == 0 else padded
