"""Two networks side by side: one reads each text from its beginning, the other from its end, and neither the other.

That is not a network in both directions, whose second layer reads both and so tells every token of all the others: here
the left half of a vector knows nothing of later tokens, through all the layers, and the right half nothing of earlier
ones. So each half can be taught to tell the next token of its own direction (Peters et al. 2018).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from homespun.nn.dropout import Dropout
from homespun.nn.masks import Mask
from homespun.nn.residual import SequentialStack


class DirectionStack:
    """`homespun.nn.residual.LayerStack` of two halves that begin alike."""

    copies = 2

    def expand(self, hidden: Tensor) -> Tensor:
        """(batch, seq, size) -> (batch, seq, 2 * size)."""
        return torch.cat([hidden, hidden], dim=-1)

    def run(self, layers: Iterable[nn.Module], hidden: Tensor, mask: Mask, *, recompute: bool) -> Tensor:
        """(batch, seq, 2 * size) -> the same."""
        return SequentialStack().run(layers, hidden, mask, recompute=recompute)


class IndependentDirections(nn.Module):
    """A layer for each half: ``forwards`` reads the left one as it stands, ``backwards`` the right one turned round.

    A text is turned round among its own places: padding stays where it is, and documents that are packed into a row
    stay apart, so that one mask is right for both directions.

    Args:
        forwards, backwards: ``(hidden, mask) -> hidden``, in which no token knows of a later one.
        residual: what enters is added to what comes out; both must be as wide.
        dropout: after that.
    """

    def __init__(self, forwards: nn.Module, backwards: nn.Module, *, residual: bool, dropout: float) -> None:
        super().__init__()
        self.forwards, self.backwards, self.residual = forwards, backwards, residual
        self.dropout = Dropout(dropout)

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """(batch, seq, 2 * input) -> (batch, seq, 2 * size)."""
        positions = mask.once(("turned", hidden.shape[1]), lambda: _turned(hidden.shape[1], mask, hidden.device))
        onwards, back = hidden.chunk(2, dim=-1)
        read = self.backwards(_take(back, positions), mask)
        vectors = torch.cat([self.forwards(onwards, mask), _take(read, positions)], dim=-1)
        if self.residual:
            vectors = vectors + hidden
        dropped: Tensor = self.dropout(vectors)
        return dropped


def _take(hidden: Tensor, positions: Tensor | None) -> Tensor:
    if positions is None:
        return hidden.flip(1)
    return hidden.flatten(0, 1).index_select(0, positions).view_as(hidden)


def _turned(seq: int, mask: Mask, device: torch.device) -> Tensor | None:
    """(batch * seq,) int64: whose vector comes to each place when every text is turned round within itself.

    ``None`` where each row is one text without padding. Turning twice changes nothing.
    """
    keep, documents = mask.keep, mask.documents
    known = keep if keep is not None else documents
    if known is None:
        return None
    positions = torch.arange(known.numel(), device=device)
    own = positions if keep is None else positions[keep.flatten()]
    text = own // seq
    if documents is not None:
        text = text * (documents.amax() + 2) + documents.flatten()[own] + 1
    order = own[text.argsort(stable=True)]  # one text after the other, each from its beginning
    lengths = torch.unique_consecutive(text.sort().values, return_counts=True)[1]
    ends = lengths.cumsum(0)
    mirror = (2 * ends - lengths - 1).repeat_interleave(lengths) - torch.arange(len(order), device=device)
    return positions.index_copy(0, order, order[mirror])
