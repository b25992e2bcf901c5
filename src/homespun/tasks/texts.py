"""Labelled texts and pairs of texts: data of classification, regression and ordinal regression."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from homespun.data.labels import LabelledRows, LabelNames, Labels, get_text, read_labelled_records, read_labelled_texts
from homespun.data.long_inputs import TRUNCATE, LongInputs, Truncate
from homespun.data.rows import Rows, SubsetRows
from homespun.errors import UserError
from homespun.models.bundle import ModelBundle
from homespun.tasks.head_training import TextHeadSettings, check_head
from homespun.tasks.protocol import TaskData, check_length, numbered_chunks, paths
from homespun.text.formats import Record

TEXT_KINDS = ("texts", "sentence_pairs")
TEXT_COUNTS = {
    "truncated": "Inputs truncated to the length of the model",
    "chunked": "Texts read in chunks",
    "one_sided": "Pairs with an empty side, left out of training",
}
_CHUNK = 4096  # records read ahead in prediction, and sorted by length together


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text, or a pair of texts, with its label, or its labels where it may have several."""

    text: str
    label: str | tuple[str, ...]
    second: str | None = None


class TextsData(TaskData):
    """Labelled texts or pairs of texts."""

    default_objective = "classification"

    label: str = Field(default="label", description="column of the label, the number or the rating")
    max_length: int = Field(
        default=128, ge=8, description="tokens that the model is given at a time, special ones included"
    )

    if TYPE_CHECKING:  # a field of one kind, constant in the other

        @property
        def truncation(self) -> LongInputs:
            """Treatment of texts longer than ``length``."""

    def with_labels(self, labels: Labels) -> Self:
        """Copy for the classes of a stored model."""
        return self

    @abstractmethod
    def example_record(self, example: LabelledText) -> Record:
        """Return the record that is read as an example."""

    @abstractmethod
    def texts_of(self, record: Record, *, where: str) -> tuple[str, str | None]:
        """Return the text of a record, and the second text of a pair.

        Raises:
            UserError: beginning with ``where``: a column is missing.
        """


class LabelledData(TextsData):
    """Labelled texts, and how to read them."""

    missing = "which labelled texts? give data.train=FILE, with data.text=COLUMN and data.label=COLUMN"
    not_stored = ("multi_label",)  # which the stored labels have

    kind: Literal["texts"] = "texts"
    text: str | list[str] = Field(default="text", description="column of the text; several are joined with a space")
    multi_label: bool = Field(default=False, description="a text may have several labels, or none")
    separator: str | None = Field(
        default=None, min_length=1, description="between the labels of one text; a comma where not given"
    )
    truncation: LongInputs = Field(default=TRUNCATE, description="what is read of a text longer than that")

    def with_labels(self, labels: Labels) -> Self:
        """Copy with one label a text, or several, as the classes of a stored model."""
        return self.model_copy(update={"multi_label": labels.multi_label})

    def read_files(self, inputs: Sequence[str]) -> list[LabelledText]:
        """Read labelled texts from any files."""
        texts, found = read_labelled_texts(
            inputs,
            text=self.text,
            label=self.label,
            columns=self.columns,
            encoding=self.encoding,
            multi_label=self.multi_label,
            separator=self.separator,
        )
        labels: Sequence[str | tuple[str, ...]] = found
        return [LabelledText(text, label) for text, label in zip(texts, labels, strict=True)]

    def record_of(self, text: str) -> Record:
        """Return the record of a single text."""
        first, *others = paths(self.text)
        return {first: text} | dict.fromkeys(others, "")

    def example_record(self, example: LabelledText) -> Record:
        """Return the record that is read as an example: its text in the first column."""
        label = list(example.label) if isinstance(example.label, tuple) else example.label
        return {**self.record_of(example.text), self.label: label}

    def texts_of(self, record: Record, *, where: str) -> tuple[str, str | None]:
        """Return the text of a record."""
        return get_text(record, paths(self.text), where=where), None

    def rename_columns(self, text: Sequence[str], label: str | None) -> dict[str, object]:
        """Take ``text`` for the columns of the text, ``label`` for that of the label."""
        return {"text": list(text) if text else self.text, "label": label or self.label}


class PairsData(TextsData):
    """Pairs of texts with a label, a number or a rating each, read as ``[CLS] first [SEP] second [SEP]``.

    ``length`` is that of both texts together; in a longer pair the longer text is cut first. Pairs with an empty side
    are counted (``one_sided``) and not trained on.
    """

    missing = "which pairs? give data.train=FILE, with data.first=COLUMN, data.second=COLUMN and data.label=COLUMN"

    kind: Literal["sentence_pairs"] = "sentence_pairs"
    first: str | list[str] = Field(default="first", description="column of the first text; several are joined")
    second: str | list[str] = Field(default="second", description="column of the second text; several are joined")

    @property
    def truncation(self) -> Truncate:
        """Truncation: pairs are never read in chunks."""
        return TRUNCATE

    def read_files(self, inputs: Sequence[str]) -> list[LabelledText]:
        """Read pairs from any files."""
        if self.first == self.second:
            raise UserError(f"data.first and data.second are the same column, {self.first!r}; name two")
        pairs = []
        for record, label, where in read_labelled_records(
            inputs, label=self.label, columns=self.columns, encoding=self.encoding
        ):
            first, second = self.texts_of(record, where=where)
            pairs.append(LabelledText(first, label, second))
        return pairs

    def example_record(self, example: LabelledText) -> Record:
        """Return the record that is read as an example: both texts in the first of their columns."""
        sides = ((paths(self.first), example.text), (paths(self.second), example.second or ""))
        columns = {name: "" for names, _ in sides for name in names}
        return columns | {names[0]: text for names, text in sides} | {self.label: example.label}

    def texts_of(self, record: Record, *, where: str) -> tuple[str, str]:
        """Return both texts of a record."""
        first, second = (get_text(record, paths(columns), where=where) for columns in (self.first, self.second))
        return first, second

    def rename_columns(self, text: Sequence[str], label: str | None) -> dict[str, object]:
        """Take ``text`` for two columns, of the first text and of the second.

        Raises:
            UserError: there are not two.
        """
        if text and len(text) != 2:
            raise UserError(f"the model reads pairs: give --text-field twice, not {len(text)} times")
        first, second = text or (self.first, self.second)
        return {"first": first, "second": second, "label": label or self.label}


def check_text_head(objective: TextHeadSettings, data: TextsData, stored: ModelBundle) -> None:
    """Refuse texts longer than the model, and a head on the first token of a causal model.

    Raises:
        UserError: naming the setting.
    """
    chunks = ", and read longer texts with data.truncation.kind=chunk_mean" if data.kind == "texts" else ""
    check_length("max_length", data.max_length, stored.config.backbone.max_position_embeddings, chunks)
    check_head(objective.head, stored.config)


def labels_of(examples: Sequence[LabelledText]) -> LabelNames:
    """Return the label, or the labels, of each example."""
    return cast(LabelNames, [example.label for example in examples])  # all are names, or all are tuples of names


def second_texts(examples: Sequence[LabelledText]) -> list[str] | None:
    """Return the second text of each pair; ``None`` without pairs."""
    if not examples or examples[0].second is None:
        return None
    return [example.second or "" for example in examples]


def second_texts_of_parts(
    training: Sequence[LabelledText], test: Sequence[LabelledText]
) -> tuple[list[str], list[str]] | None:
    """Return `second_texts` of both parts; ``None`` if one has no pairs."""
    first, second = second_texts(training), second_texts(test)
    return None if first is None or second is None else (first, second)


def readable_texts(examples: Sequence[LabelledText]) -> list[str]:
    """Return each text, or both of a pair with a bar between them."""
    return [e.text if e.second is None else f"{e.text} | {e.second}" for e in examples]


def rows_of(
    examples: Sequence[LabelledText], data: TextsData, stored: ModelBundle, *, names: Labels | None = None
) -> LabelledRows:
    """Return a row a text or pair; with ``names`` it has its class."""
    return LabelledRows(
        [example.text for example in examples],
        None if names is None else labels_of(examples),
        stored.tokenizer,
        length=data.max_length,
        long_inputs=data.truncation,
        names=names,
        pairs=second_texts(examples),
        segments=stored.config.backbone.type_vocab_size > 1,
    )


def rows_without(rows: Rows, left_out: NDArray[np.bool_]) -> Rows:
    """Return the training rows but for those ``left_out``, such as pairs with an empty side.

    Raises:
        UserError: nothing is left.
    """
    if not left_out.any():
        return rows
    kept = np.flatnonzero(~left_out)
    if not len(kept):
        raise UserError(
            "in every pair of the training one side is empty; are data.first and data.second the right columns?"
        )
    return SubsetRows(rows, kept)


def unlabelled_rows(
    records: Iterable[Record], data: TextsData, stored: ModelBundle, *, source: str
) -> Iterator[LabelledRows]:
    """Yield rows of the records, a few thousand at a time."""
    for chunk in numbered_chunks(records, _CHUNK, source=source):
        texts = [data.texts_of(record, where=where) for where, record in chunk]
        yield rows_of([LabelledText(text, "", second) for text, second in texts], data, stored)
