"""Labelled texts and pairs of texts: data of classification, regression and ordinal regression."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from homespun.data.labels import (
    LabelledRows,
    LabelNames,
    Labels,
    get_text,
    label_name,
    one_hot_labels,
    read_rows,
    several_labels,
    single_label,
)
from homespun.data.long_inputs import TRUNCATE, LongInputs, Truncate
from homespun.data.rows import Rows, SubsetRows
from homespun.errors import UserError
from homespun.tasks.protocol import TaskData, numbered_chunks, paths
from homespun.text.formats import Record

if TYPE_CHECKING:
    from homespun.models.bundle import ModelBundle

logger = logging.getLogger(__name__)

TEXT_KINDS = ("texts", "sentence_pairs")
TEXT_COUNTS = {
    "truncated": "Inputs truncated to the maximum length",
    "chunked": "Texts read in chunks",
    "one_sided": "Pairs with an empty side, left out of training",
}
_CHUNK = 4096  # records read ahead in prediction and sorted by length


@dataclass(frozen=True, slots=True)
class LabelledText:
    """Text or pair of texts with its label, or a tuple of labels if multi-label."""

    text: str
    label: str | tuple[str, ...]
    second: str | None = None
    row: int = field(default=0, compare=False)  # number of its record in the files, from 1; 0: not from a file

    def location(self, index: int) -> str:
        """Return the row for an error message; for an example that is not from a file, by its ``index`` in a list."""
        return f"row {self.row or index + 1}"


class TextsData(TaskData):
    """Labelled texts or pairs of texts."""

    default_objective = "classification"

    label: str | list[str] = Field(default="label", description="column of the label, number or rating")
    max_length: int = Field(default=128, ge=8, description="maximum tokens of an input, with special tokens")

    if TYPE_CHECKING:  # fields of `LabelledData`, properties of `PairsData`

        @property
        def truncation(self) -> LongInputs:
            """Treatment of texts longer than ``max_length``."""

        @property
        def multi_label(self) -> bool:
            """True if a text may have several labels, or none."""

    @property
    def label_columns(self) -> list[str]:
        """Column of the label, or several columns of 0 and 1."""
        return paths(self.label)

    def with_labels(self, labels: Labels) -> Self:
        """Copy for the classes of a stored model."""
        return self

    def read_files(self, inputs: Sequence[str]) -> list[LabelledText]:
        """Read examples; rows without a label are left out, as by `homespun fit`, with a warning."""
        examples, lines = self._read_kept(inputs)
        for line in lines:
            logger.warning(line)
        return examples

    def read_labelled(self, inputs: Sequence[str]) -> tuple[list[LabelledText], list[str]]:
        examples, lines = self._read_kept(inputs)
        if empty := sum(not all(text.strip() for text in (e.text, e.second) if text is not None) for e in examples):
            lines.append(
                f"{empty:,} of {len(examples):,} examples of {', '.join(inputs)} have an empty text: evaluated too"
            )
        return examples, lines

    def _read_kept(self, inputs: Sequence[str]) -> tuple[list[LabelledText], list[str]]:
        """Return the examples of the rows with a label, and a line with the number of the other rows.

        With several labels a text, an empty cell means no label. A record may lack the label column if it has no
        column besides those of labelled records: another column may be the label under another name.
        """
        rows = list(read_rows(inputs, columns=self.columns, encoding=self.encoding))
        known = {name for record, _ in rows if self._has_label_columns(record) for name in record}
        source = ", ".join(inputs)
        kept = [
            (row, record, where)
            for row, (record, where) in enumerate(rows, start=1)
            if self.multi_label or not self.lacks_label(record, known)
        ]
        if rows and not kept:
            raise UserError(f"no row of {source} has a label in column {self.label!r}; give labelled rows")
        examples = [replace(one, row=row) for row, record, where in kept for one in self.parse(record, where=where)]
        if not examples:
            raise UserError(f"{source} has {self.no_examples}")
        left_out = len(rows) - len(kept)
        return examples, [f"{left_out:,} of {len(rows):,} rows of {source} have no label: left out"] if left_out else []

    def lacks_label(self, record: Record, known: set[str]) -> bool:
        """True for an empty label, or for a record without the label column that has only columns of ``known``."""
        has_label = any(label_name(record.get(column)) for column in self.label_columns)
        return not has_label and (self._has_label_columns(record) or known.issuperset(record))

    def _has_label_columns(self, record: Record) -> bool:
        return all(column in record for column in self.label_columns)

    def is_empty(self, record: Record) -> bool:
        try:
            texts = self.texts_of(record, where="")
        except UserError:  # the record lacks a column, which `texts_of` reports with its number
            return False
        return not all(text.strip() for text in texts if text is not None)

    @abstractmethod
    def example_record(self, example: LabelledText) -> Record:
        """Return the record from which an example is read."""

    @abstractmethod
    def texts_of(self, record: Record, *, where: str) -> tuple[str, str | None]:
        """Return the text of a record, and the second text of a pair.

        Raises:
            UserError: the record lacks a column; the message begins with ``where``.
        """


class LabelledData(TextsData):
    """Labelled texts."""

    missing = "which labelled texts? give data.train=FILE, with data.text=COLUMN and data.label=COLUMN"
    not_stored = ("multi_label",)  # stored with the labels
    not_for_baselines = ("max_length", "truncation")
    text_settings = ("text",)

    kind: Literal["texts"] = "texts"
    text: str | list[str] = Field(default="text", description="column of the text; several are joined with a space")
    label: str | list[str] = Field(
        default="label",
        description="column of the label, number or rating; several columns of 0 and 1 are a label each",
    )
    multi_label: bool = Field(default=False, description="a text may have several labels, or none")
    separator: str | None = Field(default=None, min_length=1, description="separator of labels; a comma by default")
    truncation: LongInputs = Field(default=TRUNCATE, description="treatment of longer texts")

    @model_validator(mode="before")
    @classmethod
    def _accept_one_hot(cls, values: object) -> object:
        """Set ``multi_label`` for several label columns, unless it is given."""
        if isinstance(values, Mapping) and isinstance(label := values.get("label"), list) and len(label) > 1:
            return {"multi_label": True, **values}
        return values

    def with_labels(self, labels: Labels) -> Self:
        return self.model_copy(update={"multi_label": labels.multi_label})

    def parse(self, record: Record, *, where: str) -> list[LabelledText]:
        text = get_text(record, paths(self.text), where=where)
        first, *others = self.label_columns
        if others:
            labels = one_hot_labels(record, [first, *others], where=where)
            if not self.multi_label and len(labels) != 1:
                raise UserError(
                    f"{where} has {len(labels)} labels; exactly one of the columns {', '.join(self.label_columns)} "
                    f"must be 1, or give data.multi_label=true (fit: --task multi-label)"
                )
            return [LabelledText(text, labels if self.multi_label else labels[0])]
        if self.multi_label:
            separator = self.separator or ","
            return [LabelledText(text, several_labels(record, first, separator=separator, where=where))]
        return [LabelledText(text, single_label(record, first, where=where))]

    def record_of(self, text: str) -> Record:
        """Return the record of a single text."""
        first, *others = paths(self.text)
        return {first: text} | dict.fromkeys(others, "")

    def example_record(self, example: LabelledText) -> Record:
        """Return the record from which an example is read: its text in the first column."""
        first, *others = self.label_columns
        label: object = list(example.label) if isinstance(example.label, tuple) else example.label
        given = label if isinstance(label, list) else [label]
        labels = {name: int(name in given) for name in (first, *others)} if others else {first: label}
        return {**self.record_of(example.text), **labels}

    def texts_of(self, record: Record, *, where: str) -> tuple[str, str | None]:
        return get_text(record, paths(self.text), where=where), None

    def rename_columns(self, text: Sequence[str], label: str | None) -> dict[str, object]:
        """Return the fields for the columns of the text and of the label."""
        return {"text": list(text) if text else self.text, "label": label or self.label}


class PairsData(TextsData):
    """Pairs of texts with a label, number or rating, read as ``[CLS] first [SEP] second [SEP]``.

    ``max_length`` limits both texts together; the longer text is truncated first. Pairs with an empty text are counted
    (``one_sided``) and not trained on.
    """

    missing = "which pairs? give data.train=FILE, with data.first=COLUMN, data.second=COLUMN and data.label=COLUMN"
    input_kind = "pair"
    text_settings = ("first", "second")

    kind: Literal["sentence_pairs"] = "sentence_pairs"
    label: str = Field(default="label", description="column of the label, number or rating")
    first: str | list[str] = Field(default="first", description="column of the first text; several are joined")
    second: str | list[str] = Field(default="second", description="column of the second text; several are joined")

    @property
    def truncation(self) -> Truncate:
        """Truncation, since pairs are not read in chunks."""
        return TRUNCATE

    @property
    def multi_label(self) -> bool:
        """False, since a pair has one label."""
        return False

    def parse(self, record: Record, *, where: str) -> list[LabelledText]:
        label = single_label(record, self.label, where=where)
        first, second = self.texts_of(record, where=where)
        return [LabelledText(first, label, second)]

    def record_of_texts(self, texts: Sequence[str]) -> Record:
        """Return the record of a pair: each text in the first of its columns."""
        if len(texts) != 2:
            raise UserError(f"the model reads pairs of texts; give two texts, not {len(texts)}")
        sides = list(zip((paths(self.first), paths(self.second)), texts, strict=True))
        return {name: "" for names, _ in sides for name in names} | {names[0]: text for names, text in sides}

    def example_record(self, example: LabelledText) -> Record:
        """Return the record from which an example is read."""
        return {**self.record_of_texts([example.text, example.second or ""]), self.label: example.label}

    def texts_of(self, record: Record, *, where: str) -> tuple[str, str]:
        if self.first == self.second:
            raise UserError(f"data.first and data.second are the same column, {self.first!r}; name two columns")
        first, second = (get_text(record, paths(columns), where=where) for columns in (self.first, self.second))
        return first, second

    def rename_columns(self, text: Sequence[str], label: str | None) -> dict[str, object]:
        """Return the fields for the columns of the first text, the second text and the label."""
        if text and len(text) != 2:
            raise UserError(f"--text-field is given {len(text)} times; the model reads pairs, give it twice")
        first, second = text or (self.first, self.second)
        return {"first": first, "second": second, "label": label or self.label}


def labels_of(examples: Sequence[LabelledText]) -> LabelNames:
    """Return the label, or the labels, of each example."""
    return cast(LabelNames, [example.label for example in examples])  # all str, or all tuples


def second_texts(examples: Sequence[LabelledText]) -> list[str] | None:
    """Return the second text of each pair; ``None`` without pairs."""
    if not examples or examples[0].second is None:
        return None
    return [example.second or "" for example in examples]


def second_texts_of_parts(
    training: Sequence[LabelledText], test: Sequence[LabelledText]
) -> tuple[list[str], list[str]] | None:
    """Return `second_texts` of both parts; ``None`` if a part has no pairs."""
    first, second = second_texts(training), second_texts(test)
    return None if first is None or second is None else (first, second)


def readable_texts(examples: Sequence[LabelledText]) -> list[str]:
    """Return each text, or both texts of a pair separated by a bar."""
    return [e.text if e.second is None else f"{e.text} | {e.second}" for e in examples]


def rows_of(
    examples: Sequence[LabelledText], data: TextsData, stored: ModelBundle, *, names: Labels | None = None
) -> LabelledRows:
    """Return a row for each text or pair, with its class if ``names`` are given.

    Outer white space is not read, as `get_text` removes it from the texts of files.
    """
    seconds = second_texts(examples)
    return LabelledRows(
        [example.text.strip() for example in examples],
        None if names is None else labels_of(examples),
        stored.tokenizer,
        length=data.max_length,
        long_inputs=data.truncation,
        names=names,
        pairs=seconds and [text.strip() for text in seconds],
        segments=stored.config.has_segments,
    )


def rows_without(rows: Rows, left_out: NDArray[np.bool_]) -> Rows:
    """Return the training rows without the rows masked by (rows,) ``left_out``, such as pairs with an empty text.

    Raises:
        UserError: no row is kept.
    """
    if not left_out.any():
        return rows
    kept = np.flatnonzero(~left_out)
    if not len(kept):
        raise UserError("every training pair has an empty text; check data.first and data.second")
    return SubsetRows(rows, kept)


def unlabelled_texts(
    records: Iterable[Record], data: TextsData, *, source: str, first: int = 1
) -> Iterator[list[LabelledText]]:
    """Yield the texts or pairs of records, a few thousand at a time."""
    for chunk in numbered_chunks(records, _CHUNK, source=source, first=first):
        texts = [data.texts_of(record, where=where) for where, record in chunk]
        yield [LabelledText(text, "", second) for text, second in texts]


def unlabelled_rows(
    records: Iterable[Record], data: TextsData, stored: ModelBundle, *, source: str, first: int = 1
) -> Iterator[LabelledRows]:
    """Yield the rows of records, a few thousand at a time."""
    for texts in unlabelled_texts(records, data, source=source, first=first):
        yield rows_of(texts, data, stored)
