"""Reversible layers: two streams whose activations the backward pass recomputes (Gomez et al. 2017).

    y1 = x1 + F(x2)        x2 = y2 - G(y1)
    y2 = x2 + G(y1)        x1 = y1 - F(x2)

F is the attention and G the feed-forward, each ``dropout(sublayer(norm(x)))``. Both are steps ``(a, b) -> (b, a +
f(b))``. Only the last two streams and the random state of each step are stored. Each step is a separate autograd
function (Bierling 2024, algorithm 1), so that gradients of its parameters are complete before the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import get_device_states, set_device_states

from homespun.nn.masks import Mask
from homespun.nn.torch_private import FunctionContext, disable_compile

Choose = Callable[[], Tensor]


class ReversibleSublayer(nn.Module):
    """``dropout(sublayer(norm(x)))``, the update of the other stream."""

    def __init__(self, sublayer: nn.Module, norm: nn.Module, dropout: nn.Module) -> None:
        super().__init__()
        self.sublayer, self.norm, self.dropout = sublayer, norm, dropout

    def forward(self, hidden: Tensor, *mask: Mask) -> Tensor:
        """Transform (batch, seq, width), keeping the shape; ``mask`` is an argument of attention sublayers."""
        return self.dropout(self.sublayer(self.norm(hidden), *mask))


class ReversibleLayer(nn.Module):
    """Layer on two streams; `ReversibleStack` recomputes its activations, `forward` does not.

    With cross-attention it has three steps, which swap the order of the streams.
    """

    def __init__(self, attention: nn.Module, feedforward: nn.Module, cross_attention: nn.Module | None = None) -> None:
        super().__init__()
        self.attention, self.feedforward, self.cross_attention = attention, feedforward, cross_attention

    def steps(self, mask: Mask) -> Iterator[tuple[nn.Module, tuple[Mask, ...]]]:
        """Yield the sublayers in order, each with its arguments after the stream."""
        yield self.attention, (mask,)
        if self.cross_attention is not None:
            yield self.cross_attention, (mask,)
        yield self.feedforward, ()

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """Map (batch, seq, 2 width) to (batch, seq, 2 width)."""
        first, second = hidden.chunk(2, -1)
        for module, arguments in self.steps(mask):
            first, second = second, first + module(second, *arguments)
        return torch.cat([first, second], -1)


class ReversibleStack:
    """`homespun.nn.layers.LayerStack` of `ReversibleLayer`.

    All trained tensors must be parameters of the layers, and sublayers must be functions of input, random state and
    `record_choice`. Recomputed activations are exact up to rounding: in float32, gradients differ from autograd in the
    seventh digit. Under `torch.autocast` the streams are float32.

    Args:
        copies: 1: each stream is half of the input (reversible BERT, Bierling 2024); 2: each stream is the full input
            (Reformer).
    """

    calls_layers = False

    def __init__(self, copies: int) -> None:
        self.copies = copies

    def expand(self, hidden: Tensor) -> Tensor:
        """Return (batch, seq, copies * hidden): both streams, concatenated."""
        if torch.is_autocast_enabled(hidden.device.type):
            hidden = hidden.float()
        return torch.cat([hidden] * self.copies, -1)

    def run(self, layers: Iterable[nn.Module], hidden: Tensor, mask: Mask, *, recompute: bool) -> Tensor:
        """Transform (batch, seq, 2 width), keeping the shape; always recomputes if gradients are enabled."""
        if not torch.is_grad_enabled():
            for layer in layers:
                hidden = layer(hidden, mask)
            return hidden
        return _recomputed(layers, hidden, mask)


_choice: ContextVar[Callable[[Choose], Tensor]] = ContextVar("choice", default=lambda choose: choose())


def record_choice(choose: Choose) -> Tensor:
    """Return ``choose()`` in the forward pass, and replay the result when a reversible layer is recomputed.

    For discrete choices such as hash buckets, which rounding of recomputed activations could change.
    """
    return _choice.get()(choose)


@contextmanager
def _set_choice(function: Callable[[Choose], Tensor]) -> Iterator[None]:
    token = _choice.set(function)
    try:
        yield
    finally:
        _choice.reset(token)


class _RandomState:
    """State of the random generators of the CPU and of the device of ``tensor``."""

    def __init__(self, tensor: Tensor) -> None:
        self.device_type = tensor.device.type
        self.cpu = torch.get_rng_state()
        self.devices, self.states = get_device_states(tensor)

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        set_device_states(self.devices, self.states, device_type=self.device_type)


@dataclass
class _Streams:
    """Streams at the current step of the backward pass."""

    first: Tensor | None = None
    second: Tensor | None = None


@disable_compile
def _recomputed(layers: Iterable[nn.Module], hidden: Tensor, mask: Mask) -> Tensor:
    first, second = hidden.chunk(2, -1)
    streams = _Streams()
    for layer in cast(Iterable[ReversibleLayer], layers):
        for module, arguments in layer.steps(mask):
            inputs: list[Tensor] = [parameter for parameter in module.parameters() if parameter.requires_grad]
            if arguments and mask.source is not None and mask.source.hidden.requires_grad:
                inputs.append(mask.source.hidden)  # for gradients of the encoder
            first, second = second, _Step.apply(module, arguments, streams, first, second, *inputs)
    return torch.cat(_End.apply(streams, first, second), -1)


class _Step(torch.autograd.Function):
    """Compute ``a + f(b)`` without stored activations; ``streams`` holds ``b`` and the sum in the backward pass.

    The parameters of ``f`` are inputs, so that autograd accumulates their gradients and calls their hooks.
    """

    @staticmethod
    def forward(
        ctx: FunctionContext,
        module: nn.Module,
        arguments: tuple[Mask, ...],
        streams: _Streams,
        first: Tensor,
        second: Tensor,
        *parameters: nn.Parameter,
    ) -> Tensor:
        device_type = first.device.type
        ctx.module, ctx.arguments, ctx.streams = module, arguments, streams
        ctx.state, ctx.choices = _RandomState(second), []
        # disable autocast's cache of casts: its tensors have no graph here
        ctx.autocast = autocast = partial(
            torch.autocast,
            device_type,
            dtype=torch.get_autocast_dtype(device_type),
            enabled=torch.is_autocast_enabled(device_type),
            cache_enabled=False,
        )
        ctx.save_for_backward(*parameters)  # detects in-place changes before the backward pass

        def record(choose: Choose) -> Tensor:
            ctx.choices.append(choose())
            return ctx.choices[-1]

        with autocast(), _set_choice(record):
            result: Tensor = first + module(second, *arguments)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, gradient: Tensor) -> tuple[Tensor | None, ...]:
        streams, parameters, choices = ctx.streams, ctx.saved_tensors, iter(ctx.choices)
        stream = streams.first.detach().requires_grad_()
        current = _RandomState(stream)
        ctx.state.restore()
        try:
            with torch.enable_grad(), ctx.autocast(), _set_choice(lambda _: next(choices)):
                added = ctx.module(stream, *ctx.arguments)
        finally:
            current.restore()
        streams.first, streams.second = streams.second - added.detach(), streams.first
        gradients = torch.autograd.grad(added, [stream, *parameters], gradient.to(added.dtype), allow_unused=True)
        return None, None, None, gradient, *gradients


class _End(torch.autograd.Function):
    """Identity that stores the last streams and starts the backward pass."""

    @staticmethod
    def forward(ctx: FunctionContext, streams: _Streams, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        ctx.streams = streams
        ctx.save_for_backward(first, second)
        return first.view_as(first), second.view_as(second)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, first: Tensor, second: Tensor) -> tuple[None, Tensor, Tensor]:
        ctx.streams.first, ctx.streams.second = ctx.saved_tensors
        return None, first, second
