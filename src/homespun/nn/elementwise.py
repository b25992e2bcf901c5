"""Dropout, RMS norm and squared ReLU that are cheap on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.nn.torch_private import FunctionContext

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


class RMSNorm(nn.RMSNorm):
    """`torch.nn.RMSNorm` (Zhang and Sennrich 2019), a fifth of its time in float32 on a CPU."""

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., size) -> the same."""
        if not _is_faster_by_hand(hidden):
            return super().forward(hidden)
        normalised: Tensor = _RMSNorm.apply(hidden, self.eps)  # type: ignore[no-untyped-call]
        return normalised if self.weight is None else normalised * self.weight


class ReLUSquared(nn.Module):
    """``max(0, x)^2`` (So et al. 2021)."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Any shape -> the same."""
        if not _is_faster_by_hand(hidden):
            return F.relu(hidden).square()
        squared: Tensor = _ReLUSquared.apply(hidden)  # type: ignore[no-untyped-call]
        return squared


def _is_faster_by_hand(values: Tensor) -> bool:
    """True on a CPU without a compiler, in types whose sums need no wider type."""
    wide = values.dtype in (torch.float32, torch.float64)
    return wide and values.device.type == "cpu" and not torch.compiler.is_compiling()


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionContext, hidden: Tensor, eps: float | None) -> Tensor:
        eps = torch.finfo(hidden.dtype).eps if eps is None else eps
        # a norm, squared again, would be faster, and moved the logits of a T5 by 2e-5
        scale = hidden.square().mean(-1, keepdim=True).add_(eps).rsqrt_()  # (..., 1)
        normalised: Tensor = hidden * scale
        ctx.save_for_backward(normalised, scale)
        return normalised

    @staticmethod
    def backward(ctx: FunctionContext, *gradients: Tensor) -> tuple[Tensor, None]:
        normalised, scale = ctx.saved_tensors
        product = gradients[0] * normalised
        mean = product.mean(-1, keepdim=True)
        torch.mul(normalised, mean, out=product)
        return torch.sub(gradients[0], product, out=product).mul_(scale), None


class _ReLUSquared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionContext, hidden: Tensor) -> Tensor:
        positive: Tensor = F.relu(hidden)
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    def backward(ctx: FunctionContext, *gradients: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        doubled: Tensor = gradients[0] * positive
        return doubled.mul_(2)
