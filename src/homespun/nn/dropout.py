"""Dropout whose random numbers are cheap on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_LEVELS = 2**16


class Dropout(nn.Module):
    """Zero a share ``p`` of the values in training and scale the rest by ``1 / (1 - p)`` (Srivastava et al. 2014).

    PyTorch on a CPU draws one random number a value, on one core, which was a tenth of a small model's step. Here one
    64-bit draw serves four values with 16 bits each; ``p`` is rounded to a multiple of 2^-16, and the scale is that of
    the rounded ``p``, so that the expectation is exact. On other devices, and where `torch.compile` fuses it with what
    stands around it, this is PyTorch's own dropout.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise ValueError(f"dropout must be in [0, 1), not {p}")
        self.p = p

    def forward(self, values: Tensor) -> Tensor:
        """The same shape; unchanged outside training and where ``p`` is 0."""
        return drop(values, self.p if self.training else 0.0)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def drop(values: Tensor, p: float) -> Tensor:
    """`Dropout` in training."""
    if p == 0.0:
        return values
    if values.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(values, p)
    dropped = min(round(p * _LEVELS), _LEVELS - 1)
    count = values.numel()
    draws = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    kept = draws.view(torch.int16)[:count].view(values.shape) >= dropped - _LEVELS // 2
    # as bytes: PyTorch takes five times as long to choose by truth values, or to multiply by them
    return values * kept.view(torch.int8) * (_LEVELS / (_LEVELS - dropped))
