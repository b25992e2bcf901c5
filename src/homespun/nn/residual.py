"""How a sublayer joins the stream: normalised after the sum (post) or before the sublayer (pre)."""

from __future__ import annotations

from torch import Tensor, nn

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
    """One transformer layer: mixing between tokens, then the feed-forward at each, both wired to the stream."""

    def __init__(self, attention: nn.Module, feedforward: nn.Module) -> None:
        super().__init__()
        self.attention, self.feedforward = attention, feedforward

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """(batch, seq, hidden) -> (batch, seq, hidden)."""
        result: Tensor = self.feedforward(self.attention(hidden, mask))
        return result
