"""The position-wise feed-forward sublayer, and the activations by their Hugging Face names."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu_new": lambda: nn.GELU(approximate="tanh"),
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


class FeedForward(nn.Module):
    """Linear, activation, linear, the same at every position (Vaswani et al. 2017, section 3.3)."""

    def __init__(self, hidden_size: int, intermediate_size: int, activation: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden_size, intermediate_size)
        self.activation = activation
        self.outer = nn.Linear(intermediate_size, hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., hidden) -> (..., hidden)."""
        result: Tensor = self.outer(self.activation(self.inner(hidden)))
        return result
