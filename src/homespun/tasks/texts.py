"""Labelled texts, and pairs of texts: what every task on them reads, whatever it learns from the labels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from homespun.data.labels import LabelledRows, LabelNames, Labels
from homespun.data.long_inputs import LongInputs
from homespun.data.regression import SubsetRows
from homespun.data.rows import Rows
from homespun.errors import UserError
from homespun.models.bundle import ModelBundle
from homespun.tasks.protocol import TaskData

_AHEAD = 4096  # records read ahead in prediction, and sorted by length together


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text, or a pair of texts, and its label, or its labels where it may have several."""

    text: str
    label: str | tuple[str, ...]
    second: str | None = None


class TextsData(TaskData):
    """Labelled texts or pairs of texts."""

    objectives = ("classification", "regression", "ratings")

    label: str = Field(default="label", description="column of the label, the number or the rating")
    length: int = Field(
        default=128, ge=8, description="tokens that the model is given at a time, special ones included"
    )

    if TYPE_CHECKING:  # a field of one kind, constant in the other

        @property
        def long_inputs(self) -> LongInputs:
            """How texts longer than ``length`` are read."""

    @abstractmethod
    def texts_of(self, record: Mapping[str, Any], *, where: str) -> tuple[str, str | None]:
        """The text of a record, and the second of a pair.

        Raises:
            UserError: beginning with ``where``: it has not got these columns.
        """


def labels_of(examples: Sequence[LabelledText]) -> LabelNames:
    """Their labels."""
    names: Any = [example.label for example in examples]
    return names  # type: ignore[no-any-return]  # all of one type or all of the other, as `read_labelled_texts` gave them


def seconds_of(examples: Sequence[LabelledText]) -> list[str] | None:
    """The second texts, where the examples are pairs."""
    if not examples or examples[0].second is None:
        return None
    return [example.second or "" for example in examples]


def shown(examples: Sequence[LabelledText]) -> list[str]:
    """Each as people read it."""
    return [e.text if e.second is None else f"{e.text} | {e.second}" for e in examples]


def rows_of(
    examples: Sequence[LabelledText], data: TextsData, stored: ModelBundle, *, names: Labels | None = None
) -> LabelledRows:
    """A row a text or pair; with ``names`` it has its class."""
    return LabelledRows(
        [example.text for example in examples],
        None if names is None else labels_of(examples),
        stored.tokenizer,
        length=data.length,
        long_inputs=data.long_inputs,
        names=names,
        pairs=seconds_of(examples),
        segments=stored.config.backbone.type_vocab_size > 1,
    )


def whole_pairs(rows: Rows, one_sided: Any) -> Rows:
    """The rows to learn from: without pairs of which one side is empty."""
    if not one_sided.any():
        return rows
    places = np.flatnonzero(~one_sided)
    if not len(places):
        raise UserError(
            "in every pair of the training one side is empty; are data.first and data.second the right columns?"
        )
    return SubsetRows(rows, places)


def predicted_in_parts(
    records: Iterable[Mapping[str, Any]], data: TextsData, *, source: str
) -> Iterator[list[LabelledText]]:
    """The records as examples without labels, a few thousand at a time."""
    waiting = enumerate(records, start=1)
    while part := list(islice(waiting, _AHEAD)):
        read = [data.texts_of(record, where=f"row {number} of {source}") for number, record in part]
        yield [LabelledText(text, "", second) for text, second in read]
