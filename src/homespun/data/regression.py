"""Numbers as labels: reading them, and the rows that they stand beside."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from homespun.data.rows import Row, Rows
from homespun.errors import UserError


def parse_numbers(labels: Sequence[str]) -> NDArray[np.float64]:
    """The numbers that ``labels`` are, as they were read.

    Raises:
        UserError: one of them is no finite number; its row is named.
    """
    numbers = np.empty(len(labels))
    for place, label in enumerate(labels):
        try:
            numbers[place] = float(label)
        except ValueError:
            numbers[place] = math.nan
        if not math.isfinite(numbers[place]):
            raise UserError(
                f"row {place + 1} has {str(label)!r} where a number must be; correct it, name another data.label, "
                f"or set objective.kind=classification"
            )
    return numbers


class RegressionRows:
    """Rows with a number each, in place of their labels; a number that is NaN is one that is not known.

    Args:
        rows: the rows.
        numbers: (rows,).
        counts: what the result tells of them.
    """

    def __init__(self, rows: Rows, numbers: NDArray[np.float64], counts: dict[str, int]) -> None:
        if len(rows) != len(numbers):
            raise ValueError(f"{len(rows)} rows but {len(numbers)} numbers")
        self.rows = rows
        self.numbers = numbers
        self.counts = counts
        self.lengths: NDArray[np.int64] = rows.lengths

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return dataclasses.replace(self.rows[index], label=float(self.numbers[index]))


class SubsetRows:
    """Some of the rows, in the order of ``places``, (chosen,)."""

    def __init__(self, rows: Rows, places: NDArray[np.int64]) -> None:
        self.rows = rows
        self.places = places
        self.lengths: NDArray[np.int64] = rows.lengths[places]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Row:
        return self.rows[int(self.places[index])]
