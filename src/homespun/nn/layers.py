"""Position-wise layers and transformer layers: dropout, RMS norm, activations, feed-forward, residual connections."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from homespun.nn.masks import Mask
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


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu_new": lambda: nn.GELU(approximate="tanh"),
    "relu": nn.ReLU,
    "relu2": ReLUSquared,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


class FeedForward(nn.Module):
    """Linear, activation, linear, the same at every position (Vaswani et al. 2017, section 3.3).

    Args:
        hidden_size: width in and out.
        intermediate_size: width between.
        activation: between the two.
        chunk: positions of every row worked through at once; 0: all. The values are the same; of the wide
            intermediate vectors only those of one chunk exist, also in the backward pass, which computes the first
            half of each chunk again (Kitaev et al. 2020, section 3).
        gated: a second inner projection, by which the activation of the first is multiplied (Shazeer 2020; T5 1.1).
        bias: whether the projections have biases.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        activation: nn.Module,
        *,
        chunk: int = 0,
        gated: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.chunk = chunk
        self.inner = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.gate = nn.Linear(hidden_size, intermediate_size, bias=bias) if gated else None
        self.activation = activation
        self.outer = nn.Linear(intermediate_size, hidden_size, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., seq, hidden) -> (..., seq, hidden)."""
        if not self.chunk or hidden.shape[-2] <= self.chunk:
            return self._apply_to(hidden)
        parts = torch.split(hidden, self.chunk, -2)
        if torch.is_grad_enabled():
            # nothing in here is random
            return torch.cat(
                [checkpoint(self._apply_to, part, use_reentrant=False, preserve_rng_state=False) for part in parts], -2
            )
        return torch.cat([self._apply_to(part) for part in parts], -2)

    def _apply_to(self, hidden: Tensor) -> Tensor:
        wide = (self.inner(hidden),) if self.gate is None else (self.inner(hidden), self.gate(hidden))
        if not torch.is_grad_enabled():
            return self._narrow(*wide)
        # kept for the backward pass are the vectors before the activation, not those after it too; computing these
        # again stops before the product
        result: Tensor = checkpoint(self._narrow, *wide, use_reentrant=False, preserve_rng_state=False)
        return result

    def _narrow(self, inner: Tensor, *gate: Tensor) -> Tensor:
        inner = self.activation(inner)
        for factor in gate:
            inner = inner * factor
        result: Tensor = self.outer(inner)
        return result


class PostNorm(nn.Module):
    """``norm(x + dropout(sublayer(x)))``: Vaswani et al. 2017, BERT."""

    def __init__(self, sublayer: nn.Module, norm: nn.Module, dropout: nn.Module) -> None:
        super().__init__()
        self.sublayer, self.norm, self.dropout = sublayer, norm, dropout

    def forward(self, hidden: Tensor, *mask: Mask) -> Tensor:
        """(batch, seq, hidden) -> the same; the mask goes to a sublayer that mixes tokens."""
        result: Tensor = self.norm(hidden + self.dropout(self.sublayer(hidden, *mask)))
        return result


class PreNorm(nn.Module):
    """``x + dropout(sublayer(norm(x)))``: GPT-2; the stack ends in one more norm."""

    def __init__(self, sublayer: nn.Module, norm: nn.Module, dropout: nn.Module) -> None:
        super().__init__()
        self.sublayer, self.norm, self.dropout = sublayer, norm, dropout

    def forward(self, hidden: Tensor, *mask: Mask) -> Tensor:
        """(batch, seq, hidden) -> the same; the mask goes to a sublayer that mixes tokens."""
        result: Tensor = hidden + self.dropout(self.sublayer(self.norm(hidden), *mask))
        return result


class Layer(nn.Module):
    """One transformer layer: mixing between tokens, then the feed-forward at each, both wired to the stream.

    A decoder's layer looks at the source between the two, by its ``cross_attention``.
    """

    def __init__(self, attention: nn.Module, feedforward: nn.Module, cross_attention: nn.Module | None = None) -> None:
        super().__init__()
        self.attention, self.feedforward, self.cross_attention = attention, feedforward, cross_attention

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """(batch, seq, hidden) -> (batch, seq, hidden)."""
        hidden = self.attention(hidden, mask)
        if self.cross_attention is not None:
            hidden = self.cross_attention(hidden, mask)
        result: Tensor = self.feedforward(hidden)
        return result


class LayerStack(Protocol):
    """Interface that runs a stack of layers, whatever its residual connections."""

    copies: int
    """How wide the stream is, in widths of what enters."""

    def expand(self, hidden: Tensor) -> Tensor:
        """(batch, seq, hidden) -> (batch, seq, copies * hidden)."""

    def run(self, layers: Iterable[nn.Module], hidden: Tensor, mask: Mask, *, recompute: bool) -> Tensor:
        """The stream before the layers -> after them.

        ``recompute``: keep the stream between layers for the backward pass and compute what is inside them again.
        """


class SequentialStack:
    """Layers one after the other: `LayerStack` of post-norm and pre-norm layers."""

    copies = 1

    def expand(self, hidden: Tensor) -> Tensor:
        """(batch, seq, hidden), as it is."""
        return hidden

    def run(self, layers: Iterable[nn.Module], hidden: Tensor, mask: Mask, *, recompute: bool) -> Tensor:
        """(batch, seq, hidden) -> the same."""
        for layer in layers:
            hidden = checkpoint(layer, hidden, mask, use_reentrant=False) if recompute else layer(hidden, mask)
        return hidden
