"""Residual connections: layer norm after the sum (post) or before the sublayer (pre)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from homespun.nn.masks import Mask


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
