"""The position-wise feed-forward sublayer, and the activations by their Hugging Face names."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from homespun.nn.elementwise import ReLUSquared

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
