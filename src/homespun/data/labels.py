"""Labelled texts: readers, classes, and rows for classifiers."""

from __future__ import annotations

import copy
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from homespun.data.long_inputs import TRUNCATE, LongInputs
from homespun.data.rows import Row, Rows
from homespun.errors import UserError
from homespun.text.formats import Record
from homespun.text.sources import ReadProgress, read_records
from homespun.text.tokenizer import TokenIds, Tokenizer

LabelNames = Sequence[str] | Sequence[tuple[str, ...]]
"""A name for each text, or a tuple of names if multi-label."""

_CHUNK = 8192  # texts encoded at a time; only their ids are Python objects
_FLAGS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
_BOOLEANS = {"false", "true"}
_INTEGER = re.compile(r"(-?\d+)\.0+|-?\d+")


@dataclass(frozen=True)
class Labels:
    """Classes of a data set, in the order of the logits."""

    names: tuple[str, ...]
    multi_label: bool = False

    @classmethod
    def collect(cls, labels: LabelNames, *, multi_label: bool = False) -> Labels:
        """Collect the classes in ``labels``: numbers by value, then names alphabetically.

        Raises:
            UserError: there are fewer than two classes.
        """
        names = {name for label in labels for name in (label if multi_label else (str(label),))}
        mixed = len(names) > 2 and {name.lower() for name in names} == _BOOLEANS  # csv has True for the true of JSON
        if mixed or all(map(_INTEGER.fullmatch, names)):  # a csv column of integers with missing values has 1.0 for 1
            names = set(map(_common_name, names))
        if len(names) < 2:
            classes = f"only one class, {names.pop()!r}" if names else "no labels"
            raise UserError(f"the training data has {classes}; a classifier needs two or more classes")
        return cls(tuple(sorted(names, key=_number_or_name)), multi_label)

    def __len__(self) -> int:
        return len(self.names)

    def index(self, name: str) -> int:
        """Return the class number of ``name``. Raises `UserError` for an unknown class."""
        try:
            return self.names.index(name)
        except ValueError:
            raise UserError(f"label {name!r} is not in the training data, which has: {', '.join(self.names)}") from None

    def name_of(self, label: str) -> str:
        """Return the class of a label: the label, or another form of it: ``1`` for ``1.0``, ``true`` for ``True``."""
        common = _common_name(label)
        return next((name for name in (label, common, common.title()) if name in self.names), common)

    def encode(self, labels: LabelNames) -> NDArray[np.int64]:
        """Return (texts,) int64 class numbers, or (texts, classes) int64 zeros and ones if multi-label.

        Raises:
            UserError: an unknown class.
        """
        known = {name: index for index, name in enumerate(self.names)}
        for name in dict.fromkeys(n for label in labels for n in (label if self.multi_label else (str(label),))):
            if name not in known:
                known[name] = self.index(self.name_of(name))
        if not self.multi_label:
            return np.array([known[str(label)] for label in labels], dtype=np.int64)
        table = np.zeros((len(labels), len(self.names)), dtype=np.int64)
        for row, label in enumerate(labels):
            table[row, [known[name] for name in label]] = 1
        return table

    def columns(self, targets: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Yield (texts,) zeros and ones of each class, from values of `encode`."""
        if self.multi_label:
            yield from targets.T
        else:  # one at a time: a table of a million texts and 1,000 classes has 8 GB
            yield from ((targets == number).astype(np.int64) for number in range(len(self)))

    def decode(self, target: int | NDArray[np.int64]) -> str | tuple[str, ...]:
        """Return the name of a class number, or the names of (classes,) zeros and ones."""
        if self.multi_label:
            return tuple(self.names[index] for index in np.flatnonzero(target))
        return self.names[int(target)]

    def to_dict(self) -> dict[str, object]:
        """Return values for JSON, read by `from_dict`."""
        return {"names": list(self.names), "multi_label": self.multi_label}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Labels:
        """Read the values of `to_dict`. Raises `UserError` for other values."""
        names, multi_label = values.get("names"), values.get("multi_label")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UserError(f"labels.names={names!r} must be a list of names; fine-tune the model again")
        if not isinstance(multi_label, bool):
            raise UserError(f"labels.multi_label={multi_label!r} must be true or false; fine-tune the model again")
        return cls(tuple(names), multi_label)


def _common_name(label: str) -> str:
    """Return ``1`` for ``1.0``, and ``true`` for ``True``; other labels are unchanged."""
    if label.lower() in _BOOLEANS:
        return label.lower()
    match = _INTEGER.fullmatch(label)
    return match[1] or label if match else label


def _number_or_name(name: str) -> tuple[bool, float, str]:
    """Sort key: numbers by value, then names."""
    try:
        number = float(name)
    except ValueError:
        number = math.nan
    return (False, number, name) if math.isfinite(number) else (True, 0.0, name)


class LabelledRows:
    """Rows of texts: ``[CLS] text [SEP]``, or ``[CLS] text [SEP] pair [SEP]``, of at most ``length`` tokens.

    Special tokens are those of `Tokenizer.template` and `Tokenizer.pair_template`. If ``long_inputs`` splits texts into
    chunks, a row is ``[CLS] chunk [SEP] [CLS] chunk [SEP] ...`` and its ``documents`` number the chunks. The longer
    text of a pair is truncated first. Token ids are in one flat array, 2 or 4 bytes a token. The row of an empty text
    is ``[CLS] [SEP]``, or a padding token without a template. With ``segments`` the second text of a pair has the token
    type 1. ``labels`` and the classes ``names`` are None for prediction.

    Raises:
        UserError: ``length`` is too small, a label is unknown, or ``long_inputs`` does not support pairs.
    """

    lengths: NDArray[np.int64]  # (rows,) tokens in each row, over all its chunks, special tokens included
    cut: NDArray[np.bool_]  # (rows,) True if tokens were left out
    empty: int  # texts without tokens
    one_sided: NDArray[np.bool_]  # (rows,) True if a text of the pair has no token
    targets: NDArray[np.int64] | None  # `Labels.encode` of the labels

    def __init__(
        self,
        texts: Sequence[str],
        labels: LabelNames | None,
        tokenizer: Tokenizer,
        *,
        length: int,
        long_inputs: LongInputs = TRUNCATE,
        names: Labels | None = None,
        pairs: Sequence[str] | None = None,
        segments: bool = True,
    ) -> None:
        template = tokenizer.template if pairs is None else tokenizer.pair_template
        room = _room(template, length, long_inputs)
        for name, values in (("labels", labels), ("pairs", pairs)):
            if values is not None and len(values) != len(texts):
                raise ValueError(f"{len(texts)} texts but {len(values)} {name}")
        if (labels is None) != (names is None):
            raise ValueError("labels and names must be given together")
        self.targets = None if labels is None or names is None else names.encode(labels)
        self.pad_id = tokenizer.pad_id
        self.length = length
        reach = long_inputs.reach(room)

        begin, *between, end = (np.array(ids, tokenizer.dtype) for ids in template)
        padding = np.array([tokenizer.pad_id], tokenizer.dtype)
        pieces: list[TokenIds] = [padding[:0]]
        lengths, first_lengths, cut, one_sided, self.empty = [], [], [], [], 0
        for start in range(0, len(texts), _CHUNK):
            part = slice(start, start + _CHUNK)
            first = tokenizer.encode_batch(texts[part])
            second = [None] * len(first) if pairs is None else tokenizer.encode_batch(pairs[part])
            for ids, other in zip(first, second, strict=True):
                size = len(ids) + (0 if other is None else len(other))
                self.empty += len(ids) == 0
                cut.append(size > reach)
                one_sided.append(other is not None and not (len(ids) and len(other)))
                if other is None:
                    row = [part for piece in long_inputs.pieces(ids, room) for part in (begin, piece, end)]
                else:
                    keep, keep_other = _cut_longer(len(ids), len(other), room)
                    row = [begin, ids[:keep], *between, other[:keep_other], end]
                row = row if any(map(len, row)) else [padding]
                lengths.append(sum(map(len, row)))
                first_lengths.append(sum(map(len, row[:3])))
                pieces += row
            pieces = [np.concatenate(pieces)]  # many small arrays take more memory
        self.lengths = np.array(lengths, dtype=np.int64)
        self.cut = np.array(cut, dtype=bool)
        self.one_sided = np.array(one_sided, dtype=bool)
        self._paired, self._segments = pairs is not None, segments
        self._ids = pieces[0]
        self._starts = np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)
        self._first_lengths = None if pairs is None else np.array(first_lengths, dtype=np.int64)

    def with_segments(self) -> LabelledRows:
        """Return the rows with the token types of pairs, for a model of two segments."""
        rows = copy.copy(self)
        rows._segments = True
        return rows

    @property
    def truncated(self) -> int:
        """Number of truncated texts."""
        return int(self.cut.sum())

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of ``longer``, ``truncated`` and ``chunked`` texts, and of ``one_sided`` pairs."""
        chunked = self.lengths > self.length
        return {
            "longer": int((self.cut | chunked).sum()),
            "truncated": self.truncated,
            "chunked": int(chunked.sum()),
            **({"one_sided": int(self.one_sided.sum())} if self._paired else {}),
        }

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Row:
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        index %= len(self)
        input_ids = self._ids[self._starts[index] : self._starts[index + 1]].astype(np.int64)
        token_types = chunks = None
        if len(input_ids) > self.length:  # all chunks but the last are full
            chunks = np.arange(len(input_ids)) // self.length
        if self._first_lengths is not None and self._segments:
            token_types = (np.arange(len(input_ids)) >= self._first_lengths[index]).astype(np.int64)
        target = None if self.targets is None else self.targets[index]
        label = int(target) if target is not None and target.ndim == 0 else target
        return Row(input_ids, documents=chunks, token_type_ids=token_types, label=label)


def _room(template: Sequence[list[int]], length: int, long_inputs: LongInputs) -> int:
    """Return the tokens of a row between the special tokens of the ``template`` of a text or a pair."""
    room, is_pair = length - sum(map(len, template)), len(template) == 3
    if room < 1 + is_pair:
        raise UserError(f"data.max_length={length} leaves no room between the special tokens; set it to 16 or more")
    if is_pair and long_inputs != TRUNCATE:
        raise UserError(f"data.truncation.kind={long_inputs.kind} does not support pairs; use kind=truncate")
    return room


def _cut_longer(first: int, second: int, room: int) -> tuple[int, int]:
    """Return the tokens to keep of each text so that both fit into ``room``, truncating the longer text first.

    An odd token goes to the longer text, or to the second, as in transformers' ``longest_first``.
    """
    half = room // 2
    if first + second <= room:
        return first, second
    if min(first, second) <= half:
        return (first, room - first) if first < second else (room - second, second)
    return (room - half, half) if first > second else (half, room - half)


def read_rows(
    inputs: Sequence[str],
    *,
    columns: Sequence[str] | None = None,
    encoding: str | None = None,
    read_progress: ReadProgress | None = None,
) -> Iterator[tuple[Record, str]]:
    """Yield each record of ``inputs`` (see `homespun.text.sources.read_records`) and its location for errors."""
    records = read_records(inputs, encoding=encoding, columns=columns, read_progress=read_progress)
    for number, record in enumerate(records, start=1):
        yield record, f"row {number} of {', '.join(inputs)}"


def read_labelled_texts(
    inputs: Sequence[str],
    *,
    text: str | Sequence[str],
    label: str,
    columns: Sequence[str] | None = None,
    encoding: str | None = None,
) -> tuple[list[str], list[str]]:
    """Read texts and labels of all records of ``inputs`` (see `homespun.text.sources.read_records`).

    ``text`` is a column, or several that are joined with a space, such as title and description.

    Raises:
        UserError: as in `get_text` and `single_label`.
    """
    text_columns = [text] if isinstance(text, str) else list(text)
    texts, labels = [], []
    for record, where in read_rows(inputs, encoding=encoding, columns=columns):
        texts.append(get_text(record, text_columns, where=where))
        labels.append(single_label(record, label, where=where))
    return texts, labels


def single_label(record: Record, column: str, *, where: str) -> str:
    """Return the label of a record.

    Raises:
        UserError: a missing column, or no label; the message begins with ``where``.
    """
    name = label_name(get_field(record, column, where=where))
    if not name:
        raise UserError(f"{where} has no label in column {column!r}; give it one, or leave the row out")
    return name


def several_labels(record: Record, column: str, *, separator: str, where: str) -> tuple[str, ...]:
    """Return the labels of a record: a list, or names separated by ``separator``; possibly none.

    Raises:
        UserError: a missing column; the message begins with ``where``.
    """
    value = get_field(record, column, where=where)
    parts = value if isinstance(value, Sequence) and not isinstance(value, str) else label_name(value).split(separator)
    return tuple(dict.fromkeys(name for name in map(label_name, parts) if name))


def one_hot_labels(record: Record, columns: Sequence[str], *, where: str) -> tuple[str, ...]:
    """Return the names of the ``columns`` of a record that are 1; the others must be 0 (`parse_flag`).

    Raises:
        UserError: a missing column, or another value; the message begins with ``where``.
    """
    names = []
    for column in columns:
        flag = parse_flag(value := get_field(record, column, where=where))
        if flag is None:
            raise UserError(
                f"{where} has {value!r} in the label column {column!r}; each of several label columns must be 0 or 1; "
                f"correct it, or leave the row out"
            )
        names += [column] * flag
    return tuple(names)


def parse_flag(value: object) -> bool | None:
    """Return the truth of a label of 0 or 1, ``false`` or ``true``; None for other values."""
    return _FLAGS.get(label_name(value).lower())


def get_text(record: Record, columns: Sequence[str], *, where: str) -> str:
    """Join the non-empty ``columns`` of a record with a space.

    Raises:
        UserError: a missing column, or a value that is not text or a number; the message begins with ``where``.
    """
    parts = []
    for column in columns:
        value = get_field(record, column, where=where)
        if value is None or value != value:  # tables have NaN for a missing value
            continue
        if not isinstance(value, str | int | float):
            raise UserError(
                f"{where}: column {column!r} is a {type(value).__name__}; name a column of text, or write a record for "
                f"each text, such as with pandas.json_normalize or DataFrame.to_json(orient='records')"
            )
        parts.append(str(value).strip())
    return " ".join(part for part in parts if part)


def get_field(record: Record, column: str, *, where: str) -> Any:
    """Return the value of a column of a record.

    Raises:
        UserError: the column is missing; the message begins with ``where``.
    """
    if column not in record:
        raise UserError(f"{where} has no column {column!r}; there are: {', '.join(map(str, record))}")
    return record[column]


def label_name(value: object) -> str:
    """Convert a value to the name of a class; empty for a missing value."""
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # a column of integers with missing values is read as floats
    return str(value).strip()


class RegressionRows:
    """Rows with (rows,) ``numbers`` as labels, NaN if unknown, and the counts of a result file."""

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
