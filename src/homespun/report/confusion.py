"""Confusion matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from homespun.report import formats
from homespun.report.table import Table, numbers, texts
from homespun.results import Metrics


@dataclass(frozen=True)
class Confusion:
    """Counts of texts: rows are the truth, columns the prediction."""

    labels: Sequence[str]
    counts: Sequence[Sequence[float]]  # (classes, classes)

    @property
    def readable(self) -> bool:
        """True for few enough classes for a coloured table."""
        return len(self.labels) <= 40

    def percent(self) -> list[list[float]]:
        """(classes, classes) percent of each row; the diagonal is the recall."""
        return [[100 * n / max(1.0, sum(row)) for n in row] for row in self.counts]

    def table(self, name: str) -> Table:
        """The counts as a table."""
        columns = (*texts("truth \\ prediction"), *numbers(formats.integer, *self.labels))
        rows = tuple((label, *row) for label, row in zip(self.labels, self.counts, strict=True))
        return Table(name, "Confusion matrix", columns, rows, "Texts: rows are the truth, columns the prediction.")


def confusion(test: Metrics) -> Confusion | None:
    """Confusion matrix in test metrics; None if there is none or it is not square."""
    matrix = test.confusion
    if matrix is None or not matrix.is_square:
        return None
    return Confusion([formats.text(label) for label in matrix.labels], matrix.counts)


def mistakes(found: Confusion, name: str, title: str = "Most frequent mistakes") -> Table | None:
    """The eight most frequent mistakes; None without mistakes."""
    shares = found.percent()
    pairs = [
        (label, taken, found.counts[i][j], shares[i][j] / 100)
        for i, label in enumerate(found.labels)
        for j, taken in enumerate(found.labels)
        if i != j and found.counts[i][j]
    ]
    largest = tuple(sorted(pairs, key=lambda pair: -pair[2])[:8])
    columns = (
        *texts("truth", "taken for"),
        *numbers(formats.integer, "texts"),
        *numbers(formats.percent, "of the class"),
    )
    return Table(name, title, columns, largest) if largest else None
