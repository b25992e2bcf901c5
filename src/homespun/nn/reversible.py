"""Reversible layers: two streams, of which the backward pass recomputes every activation (Gomez et al. 2017).

    y1 = x1 + F(x2)        x2 = y2 - G(y1)
    y2 = x2 + G(y1)        x1 = y1 - F(x2)

F is the attention and G the feed-forward, each ``dropout(sublayer(norm(x)))``. Written as steps that swap the streams,
``(a, b) -> (b, a + f(b))``, F and G are the same step, and a stack is a list of them. One autograd function runs the
whole list: it keeps the last two streams and the random state before each step, and nothing else grows with depth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import get_device_states, set_device_states

from homespun.nn.masks import Mask

Choose = Callable[[], Tensor]


class Branch(nn.Module):
    """``dropout(sublayer(norm(x)))``: what one stream adds to the other."""

    def __init__(self, sublayer: nn.Module, norm: nn.Module, dropout: nn.Module) -> None:
        super().__init__()
        self.sublayer, self.norm, self.dropout = sublayer, norm, dropout

    def forward(self, hidden: Tensor, *mask: Mask) -> Tensor:
        """(batch, seq, width) -> the same; the mask goes to a sublayer that mixes tokens."""
        result: Tensor = self.dropout(self.sublayer(self.norm(hidden), *mask))
        return result


class ReversibleLayer(nn.Module):
    """One layer on two streams that stand side by side. Called alone it is plain; `TwoStreams` runs a stack of them."""

    def __init__(self, attention: nn.Module, feedforward: nn.Module) -> None:
        super().__init__()
        self.attention, self.feedforward = attention, feedforward

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """(batch, seq, 2 width) -> (batch, seq, 2 width)."""
        first, second = hidden.chunk(2, -1)
        first = first + self.attention(second, mask)
        second = second + self.feedforward(first)
        return torch.cat([first, second], -1)


class TwoStreams:
    """How a stack of `ReversibleLayer` is entered and run: a `homespun.nn.residual.Streams`.

    What learns must be a parameter of the layers, and a sublayer must compute the same from the same input, random
    state and `recorded` choices. Number types narrower than float32 lose what the subtraction should restore; under
    `torch.autocast` the streams are therefore float32.

    Args:
        copies: 1: each stream is half of the input (document 000's reversible BERT); 2: each is all of it (Reformer).
    """

    def __init__(self, copies: int) -> None:
        self.copies = copies

    def enter(self, hidden: Tensor) -> Tensor:
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


_chosen: ContextVar[Callable[[Choose], Tensor]] = ContextVar("chosen", default=lambda choose: choose())


def recorded(choose: Choose) -> Tensor:
    """``choose()``; where a reversible layer is computed again, what was chosen the first time.

    For choices that jump, such as the bucket of a token: its vector comes back changed in its last bits, which would
    now and then choose another bucket and so another sum than the one to subtract.
    """
    return _chosen.get()(choose)


@dataclass
class _Step:
    """``f`` of one ``(a, b) -> (b, a + f(b))``, and what computing it again needs."""

    module: nn.Module
    arguments: tuple[Any, ...]
    parameters: list[nn.Parameter]
    choices: list[Tensor] = field(default_factory=list)
    state: _RandomState | None = None

    def first(self, stream: Tensor) -> Tensor:
        self.state = _RandomState(stream)

        def record(choose: Choose) -> Tensor:
            self.choices.append(choose())
            return self.choices[-1]

        with _choosing(record):
            result: Tensor = self.module(stream, *self.arguments)
        return result

    def again(self, stream: Tensor) -> Tensor:
        assert self.state is not None
        self.state.restore()
        choices = iter(self.choices)
        with _choosing(lambda _: next(choices)):
            result: Tensor = self.module(stream, *self.arguments)
        return result


@contextmanager
def _choosing(how: Callable[[Choose], Tensor]) -> Iterator[None]:
    token = _chosen.set(how)
    try:
        yield
    finally:
        _chosen.reset(token)


class _RandomState:
    """Of the generators that a computation on ``tensor`` may draw from: the CPU's, and its device's."""

    def __init__(self, tensor: Tensor) -> None:
        self.kind = tensor.device.type
        self.cpu = torch.get_rng_state()
        self.devices, self.states = get_device_states(tensor)

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        set_device_states(self.devices, self.states, device_type=self.kind)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _recomputed(layers: Iterable[Any], hidden: Tensor, mask: Mask) -> Tensor:
    steps = []
    for layer in layers:
        for module, arguments in ((layer.attention, (mask,)), (layer.feedforward, ())):
            learns = [parameter for parameter in module.parameters() if parameter.requires_grad]
            steps.append(_Step(module, arguments, learns))
    # inputs of the function, each once: autograd adds up what layers share, and hooks (of processes that average
    # their gradients, say) see them as ever
    parameters = list({id(p): p for step in steps for p in step.parameters}.values())
    first, second = _Reversible.apply(steps, *hidden.chunk(2, -1), *parameters)  # type: ignore[no-untyped-call]
    return torch.cat([first, second], -1)


class _Reversible(torch.autograd.Function):
    """The steps, and algorithm 1 of document 000 for each on the way back."""

    @staticmethod
    def forward(
        ctx: Any, steps: list[_Step], first: Tensor, second: Tensor, *parameters: nn.Parameter
    ) -> tuple[Tensor, Tensor]:
        kind = first.device.type
        ctx.steps = steps
        ctx.autocast = {
            "device_type": kind,
            "dtype": torch.get_autocast_dtype(kind),
            "enabled": torch.is_autocast_enabled(kind),
            # what is cast here has no graph: taken from the cache, as not every PyTorch avoids, it would not learn
            "cache_enabled": False,
        }
        with torch.autocast(**ctx.autocast):
            for step in steps:
                first, second = second, first + step.first(second)
        # the parameters are saved so that changing them before the backward pass is the error that it always is
        ctx.save_for_backward(first, second, *parameters)
        return first, second

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, first_gradient: Tensor, second_gradient: Tensor) -> tuple[Tensor | None, ...]:
        first, second, *parameters = ctx.saved_tensors
        gradients: dict[int, Tensor] = {}
        outside = _RandomState(first)
        try:
            for step in reversed(ctx.steps):
                stream = first.detach().requires_grad_()
                with torch.enable_grad(), torch.autocast(**ctx.autocast):
                    added = step.again(stream)
                first, second = second - added.detach(), first
                own, *others = torch.autograd.grad(
                    added, [stream, *step.parameters], second_gradient.to(added.dtype), allow_unused=True
                )
                del added
                first_gradient, second_gradient = second_gradient, first_gradient + own
                for parameter, gradient in zip(step.parameters, others, strict=True):
                    if gradient is not None:
                        before = gradients.get(id(parameter))
                        gradients[id(parameter)] = gradient if before is None else before + gradient
        finally:
            outside.restore()
        return None, first_gradient, second_gradient, *(gradients.get(id(p)) for p in parameters)
