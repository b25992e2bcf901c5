"""Reversible layers: two streams, of which the backward pass recomputes every activation (Gomez et al. 2017).

    y1 = x1 + F(x2)        x2 = y2 - G(y1)
    y2 = x2 + G(y1)        x1 = y1 - F(x2)

F is the attention and G the feed-forward, each ``dropout(sublayer(norm(x)))``. Written as steps that swap the streams,
``(a, b) -> (b, a + f(b))``, F and G are the same step, and a stack is a list of them. Kept are the last two streams
and, of each step, the random state before it. On the way back each step is an autograd function of its own (Bierling
2024, algorithm 1), so that its parameters get their gradients before the next step; were the stack one function, those
of all layers would have to stay until its end.
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
    """``dropout(sublayer(norm(x)))``: what one stream adds to the other."""

    def __init__(self, sublayer: nn.Module, norm: nn.Module, dropout: nn.Module) -> None:
        super().__init__()
        self.sublayer, self.norm, self.dropout = sublayer, norm, dropout

    def forward(self, hidden: Tensor, *mask: Mask) -> Tensor:
        """(batch, seq, width) -> the same; the mask goes to a sublayer that mixes tokens."""
        result: Tensor = self.dropout(self.sublayer(self.norm(hidden), *mask))
        return result


class ReversibleLayer(nn.Module):
    """One layer on two streams. Called alone it keeps its activations; `ReversibleStack` recomputes those of a stack.

    A decoder's layer looks at the source between the two, by its ``cross_attention``: then it has three steps, and what
    comes out are the streams in the other order.
    """

    def __init__(self, attention: nn.Module, feedforward: nn.Module, cross_attention: nn.Module | None = None) -> None:
        super().__init__()
        self.attention, self.feedforward, self.cross_attention = attention, feedforward, cross_attention

    def steps(self, mask: Mask) -> Iterator[tuple[nn.Module, tuple[Mask, ...]]]:
        """Sublayers in order, each with the arguments that follow its stream."""
        yield self.attention, (mask,)
        if self.cross_attention is not None:
            yield self.cross_attention, (mask,)
        yield self.feedforward, ()

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """(batch, seq, 2 width) -> (batch, seq, 2 width)."""
        first, second = hidden.chunk(2, -1)
        for module, arguments in self.steps(mask):
            first, second = second, first + module(second, *arguments)
        return torch.cat([first, second], -1)


class ReversibleStack:
    """Run a stack of `ReversibleLayer`: a `homespun.nn.layers.LayerStack`.

    Everything that is trained must be a parameter of the layers, and a sublayer must compute the same from the same
    input, random state and choices kept by `record_choice`. The recomputed activations are exact but for rounding: in
    float32 gradients differ from those of plain autograd in their seventh digit. Narrower types would lose more, so
    under `torch.autocast` the streams are float32.

    Args:
        copies: 1: each stream is half of the input (reversible BERT, Bierling 2024); 2: each is all of it (Reformer).
    """

    def __init__(self, copies: int) -> None:
        self.copies = copies

    def expand(self, hidden: Tensor) -> Tensor:
        """(batch, seq, hidden) -> (batch, seq, copies * hidden): the two streams side by side."""
        if torch.is_autocast_enabled(hidden.device.type):
            hidden = hidden.float()
        return torch.cat([hidden] * self.copies, -1)

    def run(self, layers: Iterable[nn.Module], hidden: Tensor, mask: Mask, *, recompute: bool) -> Tensor:
        """(batch, seq, 2 width) before the layers -> after them; recomputes wherever gradients are taken."""
        if not torch.is_grad_enabled():
            for layer in layers:
                hidden = layer(hidden, mask)
            return hidden
        result: Tensor = _recomputed(layers, hidden, mask)
        return result


_choice: ContextVar[Callable[[Choose], Tensor]] = ContextVar("chosen", default=lambda choose: choose())


def record_choice(choose: Choose) -> Tensor:
    """``choose()``; where a reversible layer is computed again, what was chosen the first time.

    For choices that jump, such as the bucket of a token: its vector comes back changed in its last bits, which now and
    then chooses another bucket, and so another sum than the one to subtract.
    """
    return _choice.get()(choose)


@contextmanager
def _choosing(how: Callable[[Choose], Tensor]) -> Iterator[None]:
    token = _choice.set(how)
    try:
        yield
    finally:
        _choice.reset(token)


class _RandomState:
    """Of the generators that a computation on ``tensor`` may draw from: the CPU's, and its device's."""

    def __init__(self, tensor: Tensor) -> None:
        self.kind = tensor.device.type
        self.cpu = torch.get_rng_state()
        self.devices, self.states = get_device_states(tensor)

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        set_device_states(self.devices, self.states, device_type=self.kind)


@dataclass
class _Streams:
    """Both streams at the place that the backward pass has come to; it takes its steps in order, one after another."""

    first: Tensor | None = None
    second: Tensor | None = None


@disable_compile
def _recomputed(layers: Iterable[nn.Module], hidden: Tensor, mask: Mask) -> Tensor:
    first, second = hidden.chunk(2, -1)
    back = _Streams()
    for layer in cast(Iterable[ReversibleLayer], layers):
        for module, arguments in layer.steps(mask):
            learns: list[Tensor] = [parameter for parameter in module.parameters() if parameter.requires_grad]
            if arguments and mask.source is not None and mask.source.hidden.requires_grad:
                learns.append(mask.source.hidden)  # the encoder learns through it
            first, second = second, _Step.apply(module, arguments, back, first, second, *learns)  # type: ignore[no-untyped-call]
    return torch.cat(_End.apply(back, first, second), -1)  # type: ignore[no-untyped-call]


class _Step(torch.autograd.Function):
    """``a + f(b)``, without keeping anything of it: `back` will hold ``b`` and the sum when the backward pass is here.

    The parameters of ``f`` are inputs, so that their gradients are added up and given to hooks (those of processes that
    average them, say) as ever, step by step.
    """

    @staticmethod
    def forward(
        ctx: FunctionContext,
        module: nn.Module,
        arguments: tuple[Mask, ...],
        back: _Streams,
        first: Tensor,
        second: Tensor,
        *parameters: nn.Parameter,
    ) -> Tensor:
        kind = first.device.type
        ctx.module, ctx.arguments, ctx.back = module, arguments, back
        ctx.state, ctx.choices = _RandomState(second), []
        # what is cast here has no graph: taken from the cache, as not every PyTorch avoids, it would not learn
        dtype, enabled = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        ctx.autocast = autocast = partial(torch.autocast, kind, dtype=dtype, enabled=enabled, cache_enabled=False)
        # so that changing them before the backward pass is the error that it always is
        ctx.save_for_backward(*parameters)

        def record(choose: Choose) -> Tensor:
            ctx.choices.append(choose())
            choice: Tensor = ctx.choices[-1]
            return choice

        with autocast(), _choosing(record):
            result: Tensor = first + module(second, *arguments)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, gradient: Tensor) -> tuple[Tensor | None, ...]:
        back, parameters, choices = ctx.back, ctx.saved_tensors, iter(ctx.choices)
        stream = back.first.detach().requires_grad_()
        outside = _RandomState(stream)
        ctx.state.restore()
        try:
            with torch.enable_grad(), ctx.autocast(), _choosing(lambda _: next(choices)):
                added = ctx.module(stream, *ctx.arguments)
        finally:
            outside.restore()
        back.first, back.second = back.second - added.detach(), back.first
        own, *others = torch.autograd.grad(added, [stream, *parameters], gradient.to(added.dtype), allow_unused=True)
        return None, None, None, gradient, own, *others


class _End(torch.autograd.Function):
    """The last streams, as they are: all that is kept, and where the way back begins."""

    @staticmethod
    def forward(ctx: FunctionContext, back: _Streams, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        ctx.back = back
        ctx.save_for_backward(first, second)
        return first.view_as(first), second.view_as(second)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, first: Tensor, second: Tensor) -> tuple[None, Tensor, Tensor]:
        ctx.back.first, ctx.back.second = ctx.saved_tensors
        return None, first, second
