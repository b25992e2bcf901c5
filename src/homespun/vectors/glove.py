"""GloVe (Pennington, Socher and Manning 2014): factorisation of the logarithms of co-occurrence counts.

The paper's program takes a step for each cell of the matrix, this one for a block of columns: first all words with the
contexts of the block, then, because the matrix is symmetric, all contexts with the words of the block. A step is two
sampled and two sparse products, on all cores. AdaGrad is that of the paper.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from homespun.vectors.cooccurrence import Block, Cooccurrence

_SMALL = 1e-8


@dataclass(frozen=True)
class Epoch:
    """Progress of the training; ``loss`` is the mean weighted squared error of a cell."""

    number: int
    share: float  # of all epochs
    loss: float


@dataclass(frozen=True)
class _Side:
    """Vectors of words or of contexts, (words, size + 2); the last two columns are the bias and 1, or 1 and the bias.

    The product of a word's row and a context's row then has both biases.
    """

    values: Tensor
    squares: Tensor  # sums of squared gradients
    ones: int  # the column that stays 1

    @classmethod
    def drawn(cls, words: int, size: int, ones: int, draw: torch.Generator) -> _Side:
        values = (torch.rand(words, size + 2, generator=draw) - 0.5) / size
        values[:, ones] = 1.0
        return cls(values, torch.zeros_like(values), ones)

    def step(self, gradient: Tensor, learning_rate: float) -> None:
        gradient[:, self.ones] = 0.0
        self.squares.addcmul_(gradient, gradient)
        self.values.addcdiv_(gradient, self.squares.sqrt().add_(_SMALL), value=-learning_rate)


class Glove:
    """Training of vectors: iterate over `epochs`, then read `vectors`.

    Args:
        matrix: co-occurrence counts.
        size: dimensions of a vector.
        learning_rate: of AdaGrad.
        x_max: count from which the weight of a cell is 1; below it ``(count / x_max) ** alpha``.
        alpha: see ``x_max``.
        seed: of the initialisation and of the order of blocks.
    """

    def __init__(
        self,
        matrix: Cooccurrence,
        *,
        size: int,
        learning_rate: float,
        x_max: float = 100.0,
        alpha: float = 0.75,
        seed: int = 0,
    ) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.matrix, self.size = matrix, size
        self.learning_rate, self.x_max, self.alpha = learning_rate, x_max, alpha
        self.words = _Side.drawn(matrix.words, size, size + 1, draw)
        self.contexts = _Side.drawn(matrix.words, size, size, draw)
        self._order = np.random.default_rng(seed)

    @property
    def vectors(self) -> NDArray[np.float32]:
        """Sum of word and context vectors, (words, size) (section 4.2)."""
        both: NDArray[np.float32] = (self.words.values + self.contexts.values)[:, : self.size].numpy()
        return both

    def epochs(self, count: int) -> Iterator[Epoch]:
        """Train ``count`` epochs, and yield the progress after each block."""
        blocks = self.matrix.blocks
        for number in range(count):
            total = seen = 0.0
            for index, block in enumerate(self._order.permutation(blocks)):
                loss, cells = self._learn(self.matrix.block(int(block)))
                total, seen = total + loss, seen + cells
                yield Epoch(number + 1, (number + (index + 1) / blocks) / count, total / max(seen, 1))

    def _learn(self, block: Block) -> tuple[float, int]:
        """Take a step of words and one of contexts; returns the summed loss before them, and the number of cells."""
        counts = torch.from_numpy(np.array(block.weights))
        weights = (counts / self.x_max).clamp_(max=1.0).pow_(self.alpha)
        wanted = counts.log_().neg_()
        starts, columns = (torch.from_numpy(np.array(part)) for part in (block.row_starts, block.columns))
        here = torch.from_numpy(block.words)
        loss = 0.0
        for learning, other in ((self.words, self.contexts), (self.contexts, self.words)):
            others = other.values[here]
            shape = (self.matrix.words, len(here))
            errors = torch.sparse.sampled_addmm(_rows(starts, columns, wanted, shape), learning.values, others.T)
            weighted = errors.values() * weights
            loss += float(torch.dot(weighted, errors.values()))
            learning.step(torch.mm(_rows(starts, columns, weighted, shape), others), self.learning_rate)
        return loss / 2, len(weights)


def _rows(starts: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse", category=UserWarning)  # beta
        return torch.sparse_csr_tensor(starts, columns, values, size=shape, check_invariants=False)
