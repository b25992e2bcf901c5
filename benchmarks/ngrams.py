"""Interpolated Kneser-Ney n-gram model over symbols, exact: the baseline of a byte model.

Kneser and Ney 1995, interpolated and with one discount per order as in Chen and Goodman 1999. N-grams are sorted
integers; all probabilities of a text are looked up at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Symbols = NDArray[np.int64]


@dataclass(frozen=True)
class _Order:
    """N-grams of one order with their counts, and the sums over each of their contexts."""

    grams: Symbols  # sorted
    counts: Symbols
    contexts: Symbols  # sorted
    totals: Symbols  # of the counts of the grams in a context
    kinds: Symbols  # how many grams a context has
    discount: float


class KneserNey:
    """Model of symbols ``1 ... symbols``, and of 0, which stands before and after every text.

    Args:
        texts: (length,) int64 each.
        symbols: number of symbols besides 0.
        order: order of the model; each symbol is predicted from ``order - 1`` previous symbols.
    """

    def __init__(self, texts: Iterable[Symbols], *, symbols: int, order: int = 5) -> None:
        self.base, self.order = symbols + 1, order
        if self.base**order >= 2**63:
            raise ValueError(f"grams of {order} of {symbols} symbols are no 64-bit numbers")
        grams = np.concatenate([self._grams(text) for text in texts])
        grams.sort()
        kept, counts = np.unique(grams, return_counts=True)
        del grams
        orders = [self._order(kept, counts)]
        for length in range(order - 1, 0, -1):
            # the count of a shorter gram is the number of different symbols before it
            kept, counts = np.unique(kept % self.base**length, return_counts=True)
            orders.append(self._order(kept, counts))
        self._orders = orders[::-1]

    def log_probabilities(self, text: Symbols) -> NDArray[np.float64]:
        """Compute (length + 1,) natural logarithms, of each symbol after the previous ones, and of the end."""
        grams = self._grams(text)
        probability = np.full(len(grams), 1.0 / self.base)
        for length, order in enumerate(self._orders, 1):
            gram = grams % self.base**length
            context = gram // self.base
            count = _looked_up(order.grams, order.counts, gram)
            total = _looked_up(order.contexts, order.totals, context)
            kinds = _looked_up(order.contexts, order.kinds, context)
            seen = np.maximum(total, 1)
            mixed = np.maximum(count - order.discount, 0.0) / seen + order.discount * kinds / seen * probability
            probability = np.where(total > 0, mixed, probability)
        return np.log(probability)

    def _grams(self, text: Symbols) -> Symbols:
        """Return the (length + 1,) n-grams that end in each symbol, and in the 0 after the text."""
        padded = np.concatenate([np.zeros(self.order - 1, np.int64), text, np.zeros(1, np.int64)])
        grams = np.zeros(len(text) + 1, np.int64)
        for position in range(self.order):
            grams = grams * self.base + padded[position : position + len(grams)]
        return grams

    def _order(self, grams: Symbols, counts: Symbols) -> _Order:
        contexts, first = np.unique(grams // self.base, return_index=True)
        once, twice = int((counts == 1).sum()), int((counts == 2).sum())
        # the formula is 0 if no gram was seen once
        discount = once / (once + 2 * twice) if once else 0.5
        totals = np.add.reduceat(counts, first)
        kinds = np.diff(np.append(first, len(grams)))
        return _Order(grams, counts, contexts, totals, kinds, discount)


def _looked_up(keys: Symbols, values: Symbols, wanted: Symbols) -> Symbols:
    """Return the values of the wanted keys; 0 for missing keys."""
    positions = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(keys[positions] == wanted, values[positions], 0)


def bits_per_symbol(model: KneserNey, texts: Sequence[Symbols]) -> float:
    """Compute the bits of all texts and their ends, per symbol."""
    nats = -sum(float(model.log_probabilities(text).sum()) for text in texts)
    return nats / math.log(2.0) / sum(len(text) for text in texts)
