"""Task of a fit from the values of the label column."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from homespun.choices import TextTaskName
from homespun.data.labels import label_name, parse_flag
from homespun.errors import UserError
from homespun.fitting.columns import MAX_CLASSES, no_header
from homespun.text.formats import Record

_NUMBER_NAMES = ("score", "similarity", "rating", "stars")
_SEPARATORS = (";", "|", ",")  # of several labels in a cell
_WORDS = 3  # of a column name that is a text, if the name of the label column is a label
_COMMA = re.compile(",").search
_NUMBER_WITH_UNIT = re.compile(r"\W{0,2}\d[\d.,' ]*\W{0,2}")
_REPEATS = 9  # mean examples of a class number; with fewer, a class would lack a validation example


def check_values(
    values: Sequence[object], label: str, texts: Sequence[str], sample: Sequence[Record], source: str
) -> None:
    """Raise `UserError` for a label column without values, or with its name, the label of a first row, among them."""
    labelled = [name for value in values if (name := label_name(value))]
    if not labelled:
        raise UserError(
            f"column {label!r} of {source} is empty in all {len(values):,} rows; name another column with "
            f"--label-field, or for texts without labels give --task language-model"
        )
    if label in labelled and any(len(name.split()) >= _WORDS for name in texts):
        raise no_header(sample, label, source, label)


def _check_numbers(label: str, names: Sequence[str]) -> None:
    """Raise `UserError` for numbers in a form that is not read, which would be taken for classes."""
    if all(re.fullmatch(r"-?\d+(,\d+)?", name) for name in names) and (pair := next(filter(_COMMA, names), None)):
        raise UserError(
            f"is {pair!r} in column {label!r} a number or two labels? write numbers with a decimal point, or give "
            f"--task multi-label"
        )
    others, classes = [name for name in names if not _is_number(name)], "or for classes give --task classification"
    if len(set(names)) <= MAX_CLASSES or not others:
        return
    values = f"column {label!r} holds values such as {others[0]!r}"
    if len(others) < len(names) / 2:
        raise UserError(f"{values} besides numbers; leave the cells of missing numbers empty, {classes}")
    if all(map(_NUMBER_WITH_UNIT.fullmatch, names)):
        raise UserError(f"{values}; write numbers as 1234.56, without a unit, {classes}")


def _number(name: str) -> float:
    """Return the number of a name. Raises `ValueError` for others, such as ``10_2``, which Python reads as 102."""
    if "_" in name:
        raise ValueError(f"{name!r} is no number")
    return float(name)


def _is_number(name: str) -> bool:
    try:
        return bool(np.isfinite(_number(name)))
    except ValueError:
        return False


def find_separator(values: Sequence[object], *, several: bool = False) -> str | None:
    """Return the separator of several labels in a cell, by which the distinct cells have fewer distinct parts.

    With ``several`` the texts are known to have several labels, and a separator in any cell suffices.
    """
    names = {label_name(value) for value in values if not isinstance(value, list | tuple)} - {""}
    parts = {s: {part.strip() for name in names for part in name.split(s)} - {""} for s in _SEPARATORS}
    fewer = next((separator for separator, found in parts.items() if len(found) < len(names)), None)
    if fewer is None and several:
        return next((separator for separator, found in parts.items() if found != names), None)
    return fewer


def find_task(
    values: Sequence[object], label: str, given: TextTaskName, separator: str | None, decisions: list[str]
) -> TextTaskName:
    """Return the task, ``given`` or found from the ``values`` of ``label``; the reason is appended to ``decisions``.

    Raises:
        UserError: numbers in a form that is not read, or labels of which most occur once.
    """
    if given != "auto":
        return given
    names = [name for value in values if (name := label_name(value))]
    _check_numbers(label, names)
    if separator is not None:
        decisions.append(
            f"task: multi-label classification ({label!r} holds labels separated by {separator!r}; for one label per "
            f"text give --task classification)"
        )
        return "multi-label"
    if any(isinstance(value, list | tuple) for value in values):
        several = {label_name(one) for value in values if isinstance(value, list | tuple) for one in value}
        _check_repeats(label, len(several), len(values))
        decisions.append("task: multi-label classification (a row holds a list of labels)")
        return "multi-label"
    try:
        numbers = np.array([_number(name) for name in names])
    except ValueError:
        numbers = np.array([])
    distinct = len(set(names))
    finite = numbers[np.isfinite(numbers)]  # nan may be the name of a class
    if (finite != np.round(finite)).any():
        decisions.append(f"task: regression ({label!r} holds numbers with fractions)")
        return "regression"
    rated = label.lower() in _NUMBER_NAMES
    if len(numbers) and distinct > (10 if rated else MAX_CLASSES) and (rated or not _are_class_numbers(numbers)):
        hint = "; for classes give --task classification" if distinct <= len(numbers) / 2 else ""
        decisions.append(f"task: regression ({label!r} holds {distinct} distinct numbers{hint})")
        return "regression"
    _check_repeats(label, distinct, len(names))
    hint = "; for numbers give --task regression" if len(numbers) and distinct > 2 else ""
    if cell := next((name for name in names if any(separator in name for separator in _SEPARATORS)), None):
        hint = f"; if {cell!r} holds several labels, give --task multi-label"
    decisions.append(f"task: classification ({distinct} distinct labels{hint})")
    return "classification"


def one_hot_task(
    columns: Sequence[str], given: TextTaskName, records: Iterable[Record], decisions: list[str]
) -> TextTaskName:
    """Task of several label columns: classification if each of the records has a single 1, otherwise multi-label.

    Raises:
        UserError: another task is ``given``.
    """
    if given == "regression":
        raise UserError(f"--task {given} takes one label column, not {len(columns)}; name one with --label-field")
    if given != "multi-label" and all(_has_one_label(record, columns) for record in records):
        decisions.append(
            f"task: classification (one of {len(columns)} columns is 1 in each row; if texts may have several labels, "
            f"give --task multi-label)"
        )
        return "classification"
    if given == "classification":
        raise UserError(
            f"--task classification needs a single 1 among {', '.join(columns)} in each row; give --task multi-label, "
            f"or name one column with --label-field"
        )
    decisions.append(f"task: multi-label classification (a label for each of {len(columns)} columns)")
    return "multi-label"


def _has_one_label(record: Record, columns: Sequence[str]) -> bool:
    flags = [parse_flag(record.get(column)) for column in columns]
    return None not in flags and flags.count(True) == 1


def _are_class_numbers(numbers: NDArray[np.float64]) -> bool:
    """True for whole numbers from 0 or 1 without a gap that repeat often, as class numbers do."""
    distinct = np.unique(numbers)
    without_gap = bool(distinct[0] in (0, 1) and distinct[-1] - distinct[0] == len(distinct) - 1)
    return without_gap and len(numbers) >= _REPEATS * len(distinct)


def _check_repeats(label: str, distinct: int, rows: int) -> None:
    """Raise `UserError` for labels of which most occur once."""
    if distinct > max(MAX_CLASSES, rows / 2):
        raise UserError(
            f"{label!r} holds {distinct:,} distinct labels in {rows:,} rows, so it is no column of classes; name "
            f"another with --label-field, or give --task text-to-text"
        )
