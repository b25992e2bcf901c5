"""Numbers as labels: parsing, and rows with them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from homespun.data.rows import Row, Rows
from homespun.errors import UserError


def parse_numbers(labels: Sequence[str]) -> NDArray[np.float64]:
    """``labels`` as numbers.

    Raises:
        UserError: a label is not a finite number.
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
    """Rows with a number each as label; NaN: not known.

    Args:
        rows: the rows.
        numbers: (rows,).
        counts: for the result file.
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
