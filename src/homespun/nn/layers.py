"""Position-wise layers and transformer layers: dropout, RMS norm, activations, feed-forward, residual connections."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from homespun.nn.masks import Mask
from homespun.nn.torch_private import FunctionContext

_LEVELS = 2**16


class Dropout(nn.Module):
    """Dropout (Srivastava et al. 2014) with fewer random numbers on a CPU.

    PyTorch draws one random number a value on one core, a tenth of the time of a small model's step. Here one 64-bit
    number serves four values; ``p`` is rounded to a multiple of 2^-16, and so is the scale, so that the expectation is
    exact. On other devices and under `torch.compile` this is PyTorch's dropout.

    Args:
        p: probability of zero, in [0, 1).
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise ValueError(f"dropout must be in [0, 1), not {p}")
        self.p = p

    def forward(self, values: Tensor) -> Tensor:
        """Apply dropout to a tensor of any shape; the identity in evaluation mode."""
        return drop(values, self.p if self.training else 0.0)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def drop(values: Tensor, p: float) -> Tensor:
    """Apply `Dropout` in training mode."""
    if p == 0.0:
        return values
    if values.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(values, p)
    dropped = min(round(p * _LEVELS), _LEVELS - 1)
    count = values.numel()
    draws = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    mask = draws.view(torch.int16)[:count].view(values.shape) >= dropped - _LEVELS // 2
    # int8: PyTorch takes five times as long with bool
    return values * mask.view(torch.int8) * (_LEVELS / (_LEVELS - dropped))


class RMSNorm(nn.RMSNorm):
    """`torch.nn.RMSNorm` (Zhang and Sennrich 2019), five times as fast on a CPU in float32."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Transform (..., size), keeping the shape."""
        if not _is_faster_by_hand(hidden):
            return super().forward(hidden)
        normalised: Tensor = _RMSNorm.apply(hidden, self.eps)
        return normalised if self.weight is None else normalised * self.weight


class ReLUSquared(nn.Module):
    """Activation ``max(0, x)^2`` (So et al. 2021)."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Apply the activation to a tensor of any shape."""
        if not _is_faster_by_hand(hidden):
            return F.relu(hidden).square()
        return _ReLUSquared.apply(hidden)


def _is_faster_by_hand(values: Tensor) -> bool:
    """True on a CPU without a compiler, in float32 or float64."""
    wide = values.dtype in (torch.float32, torch.float64)
    return wide and values.device.type == "cpu" and not torch.compiler.is_compiling()


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionContext, hidden: Tensor, eps: float | None) -> Tensor:
        eps = torch.finfo(hidden.dtype).eps if eps is None else eps
        # `torch.linalg.vector_norm` would be faster but changed logits of T5 by 2e-5
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
        return (gradients[0] * positive).mul_(2)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu_new": lambda: nn.GELU(approximate="tanh"),
    "relu": nn.ReLU,
    "relu2": ReLUSquared,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


class FeedForward(nn.Module):
    """Position-wise feed-forward network (Vaswani et al. 2017, section 3.3).

    Args:
        hidden_size: width of input and output.
        intermediate_size: width of the hidden layer.
        activation: activation of the hidden layer.
        chunk: positions computed at once, with only their intermediate values in memory; recomputed in the backward
            pass (Kitaev et al. 2020, section 3). 0: all.
        gated: multiply the activation by a second projection (Shazeer 2020; T5 1.1).
        bias: add biases to the projections.
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
        """Map (..., seq, hidden) to (..., seq, hidden)."""
        if not self.chunk or hidden.shape[-2] <= self.chunk:
            return self._apply_to(hidden)
        parts = torch.split(hidden, self.chunk, -2)
        if torch.is_grad_enabled():
            outputs = [_checkpoint(self._apply_to, part) for part in parts]
        else:
            outputs = [self._apply_to(part) for part in parts]
        return torch.cat(outputs, -2)

    def _apply_to(self, hidden: Tensor) -> Tensor:
        wide = (self.inner(hidden),) if self.gate is None else (self.inner(hidden), self.gate(hidden))
        replaced = "forward" in vars(self.outer) or type(self.outer) is not nn.Linear  # packed or quantized
        # the compiler recomputes activations itself
        if replaced or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self.outer(self._activate(*wide))
        return _Narrow.apply(self._activate, self.outer.weight, self.outer.bias, *wide)

    def _activate(self, inner: Tensor, *gate: Tensor) -> Tensor:
        inner = self.activation(inner)
        for factor in gate:
            inner = inner * factor
        return inner


class _Narrow(torch.autograd.Function):
    """Linear layer of an activation that is recomputed in the backward pass, so that it is not stored.

    `torch.utils.checkpoint` does this too, with twice the overhead, for which a GPU would wait (`results/gpu.md`).
    """

    @staticmethod
    def forward(
        ctx: FunctionContext, activate: Callable[..., Tensor], weight: Tensor, bias: Tensor | None, *wide: Tensor
    ) -> Tensor:
        ctx.save_for_backward(weight, *wide)
        device, dtype = wide[0].device.type, wide[0].dtype
        ctx.activate, ctx.bias_dtype = activate, weight.dtype if bias is None else bias.dtype
        narrow = torch.is_autocast_enabled(device)
        ctx.autocast = partial(torch.autocast, device, torch.get_autocast_dtype(device)) if narrow else nullcontext
        # cast here: the cache of autocast would keep a cast of the weights without a graph
        return F.linear(activate(*wide).to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weight, *saved = ctx.saved_tensors
        with torch.enable_grad(), ctx.autocast():
            wide = [part.detach().requires_grad_() for part in saved]
            values = ctx.activate(*wide)
        d_values = gradient @ weight.to(gradient.dtype)
        d_wide = torch.autograd.grad(values, wide, d_values.to(values.dtype))
        rows, d_weight, d_bias = gradient.flatten(0, -2), None, None
        if ctx.needs_input_grad[1]:
            d_weight = (rows.T @ values.detach().to(rows.dtype).flatten(0, -2)).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            d_bias = rows.sum(0).to(ctx.bias_dtype)
        return None, d_weight, d_bias, *d_wide


def _checkpoint(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Recompute a function without randomness in the backward pass."""
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)


class PostNorm(nn.Module):
    """Post-norm residual connection ``norm(x + dropout(sublayer(x)))`` (Vaswani et al. 2017, BERT)."""

    def __init__(self, sublayer: nn.Module, norm: nn.Module, dropout: nn.Module) -> None:
        super().__init__()
        self.sublayer, self.norm, self.dropout = sublayer, norm, dropout

    def forward(self, hidden: Tensor, *mask: Mask) -> Tensor:
        """Transform (batch, seq, hidden), keeping the shape; ``mask`` is an argument of attention sublayers."""
        return self.norm(hidden + self.dropout(self.sublayer(hidden, *mask)))


class PreNorm(nn.Module):
    """Pre-norm residual connection ``x + dropout(sublayer(norm(x)))`` (GPT-2)."""

    def __init__(self, sublayer: nn.Module, norm: nn.Module, dropout: nn.Module) -> None:
        super().__init__()
        self.sublayer, self.norm, self.dropout = sublayer, norm, dropout

    def forward(self, hidden: Tensor, *mask: Mask) -> Tensor:
        """Transform (batch, seq, hidden), keeping the shape; ``mask`` is an argument of attention sublayers."""
        return hidden + self.dropout(self.sublayer(self.norm(hidden), *mask))


class Layer(nn.Module):
    """Transformer layer: attention, cross-attention of a decoder and feed-forward, with their residual connections."""

    def __init__(self, attention: nn.Module, feedforward: nn.Module, cross_attention: nn.Module | None = None) -> None:
        super().__init__()
        self.attention, self.feedforward, self.cross_attention = attention, feedforward, cross_attention

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """Map (batch, seq, hidden) to (batch, seq, hidden)."""
        hidden = self.attention(hidden, mask)
        if self.cross_attention is not None:
            hidden = self.cross_attention(hidden, mask)
        return self.feedforward(hidden)


class LayerStack(Protocol):
    """Interface of functions that run a stack of layers."""

    copies: int
    """Width of the residual stream divided by the width of the input."""
    calls_layers: bool
    """True if `run` calls each layer, so that its hooks run."""

    def expand(self, hidden: Tensor) -> Tensor:
        """Map (batch, seq, hidden) to (batch, seq, copies * hidden)."""

    def run(self, layers: Iterable[nn.Module], hidden: Tensor, mask: Mask, *, recompute: bool) -> Tensor:
        """Apply the layers to (batch, seq, copies * hidden); ``recompute``: gradient checkpointing of each layer."""


class SequentialStack:
    """`LayerStack` that applies layer after layer.

    Args:
        copies: 1, or 2 for `homespun.nn.recurrent.IndependentDirections`, which both read the input.
    """

    calls_layers = True

    def __init__(self, copies: int = 1) -> None:
        self.copies = copies

    def expand(self, hidden: Tensor) -> Tensor:
        """Map (batch, seq, hidden) to (batch, seq, copies * hidden)."""
        return hidden if self.copies == 1 else torch.cat([hidden] * self.copies, -1)

    def run(self, layers: Iterable[nn.Module], hidden: Tensor, mask: Mask, *, recompute: bool) -> Tensor:
        """Transform (batch, seq, copies * hidden), keeping the shape."""
        for layer in layers:
            hidden = checkpoint(layer, hidden, mask, use_reentrant=False) if recompute else layer(hidden, mask)
        return hidden
