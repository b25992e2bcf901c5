"""Detection of quoted cells in tables that are separated by tabs."""

from __future__ import annotations

import csv
from collections.abc import Sequence

SAMPLE_LINES = 1000
"""Lines of a file that decide whether its cells are quoted."""


def is_quoted(sample: Sequence[str]) -> bool:
    """True if the lines of a tsv file were written by a program that quotes cells."""
    if not any(cell.startswith('"') for line in sample for cell in line.split("\t")):
        return False
    reader = csv.reader((f"{line}\n" for line in sample), delimiter="\t", strict=True)
    widths, finished, spanning, doubled = set(), 0, False, False
    try:
        for row in reader:
            widths.add(len(row))
            spanning |= reader.line_num > finished + 1
            doubled |= any('"' in cell for cell in row)
            finished = reader.line_num
    except csv.Error:
        # the sample may end within a cell of a few lines; after a stray quote the cell has many more
        if len(sample) < SAMPLE_LINES or reader.line_num < len(sample) or len(sample) - finished > 20:
            return False
        spanning = True
    # quoted speech may span rows too; quoting programs leave lines of other widths, or doubled quotes
    unquoted_widths = {len(line.split("\t")) for line in sample if line}
    if spanning and not doubled and len(unquoted_widths) == 1 and unquoted_widths != {1}:
        return False
    return len(widths - {0}) == 1
