"""Texts with labels: reading them, naming their classes, and the rows that a classifier learns from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from homespun.data.long_inputs import TRUNCATE, LongInputs
from homespun.data.rows import Row
from homespun.errors import UserError
from homespun.text.sources import read_records
from homespun.text.tokenizer import Tokenizer

LabelNames = Sequence[str] | Sequence[tuple[str, ...]]
"""One name a text, or one tuple of names a text where a text may carry several labels or none."""

_CHUNK = 8192  # texts encoded at a time, so that only one chunk's ids are ever held as Python objects


@dataclass(frozen=True)
class Labels:
    """The classes of a data set, in the order of the classifier's logits."""

    names: tuple[str, ...]
    multi_label: bool = False

    @classmethod
    def collect(cls, labels: LabelNames, *, multi_label: bool = False) -> Labels:
        """The classes found in ``labels``, numbers in the order of their value and names in that of the alphabet.

        Raises:
            UserError: fewer than two classes, of which nothing can be learned.
        """
        found = {name for label in labels for name in (label if multi_label else (str(label),))}
        if len(found) < 2:
            only = f"only one class, {found.pop()!r}" if found else "no label at all"
            raise UserError(f"the training data has {only}; a classifier needs two or more classes")
        return cls(tuple(sorted(found, key=_number_or_name)), multi_label)

    def __len__(self) -> int:
        return len(self.names)

    def index(self, name: str) -> int:
        """The class number of ``name``.

        Raises:
            UserError: the name was not among the training labels.
        """
        try:
            return self.names.index(name)
        except ValueError:
            raise UserError(f"label {name!r} was not seen in training; there are: {', '.join(self.names)}") from None

    def encode(self, labels: LabelNames) -> NDArray[np.int64]:
        """(texts,) int64 class numbers, or (texts, classes) int64 zeros and ones where a text may have several.

        Raises:
            UserError: a name that was not among the training labels.
        """
        known = {name: index for index, name in enumerate(self.names)}
        unseen = [n for label in labels for n in (label if self.multi_label else (str(label),)) if n not in known]
        if unseen:
            self.index(unseen[0])
        if not self.multi_label:
            return np.array([known[str(label)] for label in labels], dtype=np.int64)
        table = np.zeros((len(labels), len(self.names)), dtype=np.int64)
        for row, label in enumerate(labels):
            table[row, [known[name] for name in label]] = 1
        return table

    def decode(self, target: int | NDArray[Any]) -> str | tuple[str, ...]:
        """The name of a class number, or the names where ``target`` is (classes,) zeros and ones."""
        if self.multi_label:
            return tuple(self.names[index] for index in np.flatnonzero(target))
        return self.names[int(target)]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, read back by `from_dict`."""
        return {"names": list(self.names), "multi_label": self.multi_label}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Labels:
        """The classes that `to_dict` described.

        Raises:
            UserError: they are described in some other way.
        """
        names, multi_label = values.get("names"), values.get("multi_label")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UserError(f"labels must have a list of names, not {names!r}")
        if not isinstance(multi_label, bool):
            raise UserError(f"multi_label of labels must be true or false, not {multi_label!r}")
        return cls(tuple(names), multi_label)


def _number_or_name(name: str) -> tuple[bool, float, str]:
    try:
        number = float(name)
    except ValueError:
        number = math.nan
    return (False, number, name) if math.isfinite(number) else (True, 0.0, name)


class LabelledRows:
    """One row a text: ``[CLS] text [SEP]``, or ``[CLS] text [SEP] pair [SEP]``, of at most ``length`` tokens.

    The special tokens are those of `Tokenizer.template` and `Tokenizer.pair_template`, if any. What is read
    of a longer text is for ``long_inputs`` to say. Where that is chunks, the row is ``[CLS] chunk [SEP] [CLS] chunk
    [SEP] ...`` and its ``documents`` number them. Of a pair, the longer text is cut first. Token ids lie in one flat
    array, 2 or 4 bytes a token, whatever the number of texts. An empty text is the row ``[CLS] [SEP]``, and a token of
    padding where there are none around it.

    Args:
        texts: the texts, ``pairs`` their second texts where a row is a pair.
        labels: their labels, as read; ``None`` for texts to predict.
        length: the greatest number of tokens that the model is given at a time, special tokens included.
        long_inputs: what is read of a longer text.
        names: the classes; only needed with ``labels``.
        segments: the second text of a pair is segment 1, for models that have two.

    Raises:
        UserError: ``length`` leaves no room for a token, a label was not seen in training, or pairs are to be read
            otherwise than truncated.
    """

    lengths: NDArray[np.int64]  # (rows,) tokens in each row, over all its chunks, special tokens included
    cut: NDArray[np.bool_]  # (rows,) whether tokens were left out
    empty: int  # texts without a single token
    one_sided: NDArray[np.bool_]  # (rows,) whether it is a pair of which one text has no token
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
        room = length - sum(map(len, template))
        if room < (1 if pairs is None else 2):
            raise UserError(f"a length of {length} tokens leaves no room between the special tokens; give 16 or more")
        if pairs is not None and long_inputs != TRUNCATE:
            raise UserError(
                f"pairs of texts are truncated, not read by {long_inputs.kind}; set long_inputs.kind=truncate"
            )
        for name, values in (("labels", labels), ("pairs", pairs)):
            if values is not None and len(values) != len(texts):
                raise ValueError(f"{len(texts)} texts but {len(values)} {name}")
        if (labels is None) != (names is None):
            raise ValueError("labels and their names come together")
        self.targets = None if labels is None or names is None else names.encode(labels)
        self.pad_id = tokenizer.pad_id
        self.length = length
        reach = long_inputs.reach(room)

        kind = np.uint16 if tokenizer.vocab_size <= 2**16 else np.int32
        begin, *between, end = (np.array(ids, kind) for ids in template)
        nothing = np.array([tokenizer.pad_id], kind)
        pieces: list[NDArray[Any]] = [np.empty(0, kind)]
        lengths, firsts, cut, one_sided, self.empty = [], [], [], [], 0
        for start in range(0, len(texts), _CHUNK):
            part = slice(start, start + _CHUNK)
            first = tokenizer.encode_batch(texts[part])
            second = None if pairs is None else tokenizer.encode_batch(pairs[part])
            for index, ids in enumerate(first):
                other = None if second is None else second[index]
                size = len(ids) + (0 if other is None else len(other))
                self.empty += len(ids) == 0
                cut.append(size > reach)
                one_sided.append(other is not None and not (len(ids) and len(other)))
                if other is None:
                    pieces_of_text = long_inputs.pieces(ids, room)
                    row = [ids for piece in pieces_of_text for ids in (begin, piece.astype(kind), end)]
                else:
                    keep, keep_other = _cut_longer(len(ids), len(other), room)
                    row = [begin, ids[:keep].astype(kind), *between, other[:keep_other].astype(kind), end]
                row = row if any(map(len, row)) else [nothing]
                lengths.append(sum(map(len, row)))
                firsts.append(sum(map(len, row[:3])))
                pieces += row
            pieces = [np.concatenate(pieces)]  # before the next chunk: a row's own small arrays are not compact
        self.lengths = np.array(lengths, dtype=np.int64)
        self.cut = np.array(cut, dtype=bool)
        self.one_sided = np.array(one_sided, dtype=bool)
        self._paired, self._segments = pairs is not None, segments
        self._ids = pieces[0]
        self._starts = np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)
        self._firsts = None if pairs is None else np.array(firsts, dtype=np.int64)

    @property
    def truncated(self) -> int:
        """Texts of which tokens were left out."""
        return int(self.cut.sum())

    @property
    def counts(self) -> dict[str, int]:
        """Texts ``longer`` than ``length``, and of these the ``truncated`` and the ``chunked``, which may be both; of
        pairs, those that are ``one_sided``."""
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
        if len(input_ids) > self.length:  # every chunk but the last is full
            chunks = np.arange(len(input_ids)) // self.length
        if self._firsts is not None and self._segments:
            token_types = (np.arange(len(input_ids)) >= self._firsts[index]).astype(np.int64)
        target = None if self.targets is None else self.targets[index]
        label = int(target) if target is not None and target.ndim == 0 else target
        return Row(input_ids, documents=chunks, token_type_ids=token_types, label=label)


def _cut_longer(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of each text to keep so that both fit into ``room``, taking from the longer one. An odd token is
    the longer's, or the second's, as transformers' ``longest_first`` has it.
    """
    half = room // 2
    if first + second <= room:
        return first, second
    if min(first, second) <= half:
        return (first, room - first) if first < second else (room - second, second)
    return (room - half, half) if first > second else (half, room - half)


def read_labelled_texts(
    inputs: Sequence[str],
    *,
    text: str | Sequence[str],
    label: str,
    columns: Sequence[str] | None = None,
    encoding: str | None = None,
    multi_label: bool = False,
    separator: str | None = None,
) -> tuple[list[str], list[str] | list[tuple[str, ...]]]:
    """The texts and labels of all records of ``inputs`` (see `homespun.text.sources.read_records`).

    ``text`` is a column, or several to be joined with a space, such as title and description. With ``multi_label``
    the label column holds a list, or names in one string with ``separator`` between them (a comma where not given);
    a row may then have no label at all.

    Raises:
        UserError: no such column (naming those there are), a text that is not text, a row without a label, no rows.
    """
    wanted = [text] if isinstance(text, str) else list(text)
    names = ", ".join(inputs)
    texts: list[str] = []
    single: list[str] = []
    several: list[tuple[str, ...]] = []
    for number, record in enumerate(read_records(inputs, encoding=encoding, columns=columns), start=1):
        where = f"row {number} of {names}"
        texts.append(get_text(record, wanted, where=where))
        value = get_field(record, label, where=where)
        if multi_label:
            several.append(_label_set(value, separator or ","))
            continue
        single.append(_label(value))
        if not single[-1]:
            raise UserError(f"{where} has no label in column {label!r}; give it one, or leave the row out")
    if not texts:
        raise UserError(f"{names} holds no rows; give a file with at least one row for each of two classes")
    return texts, several if multi_label else single


def read_labelled_records(
    inputs: Sequence[str], *, label: str, columns: Sequence[str] | None = None, encoding: str | None = None
) -> Iterator[tuple[Mapping[str, Any], str, str]]:
    """Every record of ``inputs`` with its one label, and where it stands, in words.

    Raises:
        UserError: no such column, or a record without a label.
    """
    for number, record in enumerate(read_records(inputs, encoding=encoding, columns=columns), start=1):
        where = f"row {number} of {', '.join(inputs)}"
        name = _label(get_field(record, label, where=where))
        if not name:
            raise UserError(f"{where} has no label in column {label!r}; give it one, or leave the row out")
        yield record, name, where


def get_text(record: Mapping[str, Any], columns: Sequence[str], *, where: str) -> str:
    """The text of a record: its ``columns`` joined with a space, empty ones left out.

    Raises:
        UserError: beginning with ``where``: no such column, or something in it that is neither text nor number.
    """
    parts = []
    for column in columns:
        value = get_field(record, column, where=where)
        if value is None:
            continue
        if not isinstance(value, str | int | float):
            raise UserError(
                f"{where}: column {column!r} holds a {type(value).__name__}, not text; name a column of text"
            )
        parts.append(str(value).strip())
    return " ".join(part for part in parts if part)


def get_field(record: Mapping[str, Any], column: str, *, where: str) -> Any:
    """What stands in a column of a record.

    Raises:
        UserError: beginning with ``where``: there is no such column; those there are are named.
    """
    if column not in record:
        raise UserError(f"{where} has no column {column!r}; there are: {', '.join(map(str, record))}")
    return record[column]


def _label(value: object) -> str:
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # whole numbers come out of some readers as floats where a column has gaps
    return str(value).strip()


def _label_set(value: object, separator: str) -> tuple[str, ...]:
    parts = value if isinstance(value, Sequence) and not isinstance(value, str) else _label(value).split(separator)
    return tuple(dict.fromkeys(name for name in map(_label, parts) if name))
