"""RMS norm and squared ReLU in few passes over memory, forward and backward.

On a CPU, autograd runs them as four to nine elementwise operations each, which took a seventh of a training step of
`spun-decoder`. The functions here run two or three and save one tensor of the input's size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
    def forward(ctx: Any, hidden: Tensor, eps: float | None) -> Tensor:
        eps = torch.finfo(hidden.dtype).eps if eps is None else eps
        # a norm, squared again, would be faster, and moved the logits of a T5 by 2e-5
        scale = hidden.square().mean(-1, keepdim=True).add_(eps).rsqrt_()  # (..., 1)
        normalised: Tensor = hidden * scale
        ctx.save_for_backward(normalised, scale)
        return normalised

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        normalised, scale = ctx.saved_tensors
        product = gradients[0] * normalised
        mean = product.mean(-1, keepdim=True)
        torch.mul(normalised, mean, out=product)
        return torch.sub(gradients[0], product, out=product).mul_(scale), None


class _ReLUSquared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor) -> Tensor:
        positive: Tensor = F.relu(hidden)
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        doubled: Tensor = gradients[0] * positive
        return doubled.mul_(2)
