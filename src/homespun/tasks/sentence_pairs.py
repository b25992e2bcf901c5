"""Pairs of texts with one label a pair: whether they say the same, whether one follows, how alike they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from homespun.data.labels import get_text, read_labelled_records
from homespun.data.long_inputs import TRUNCATE, Truncate
from homespun.errors import UserError
from homespun.models.bundle import ModelBundle
from homespun.tasks.classification import stored_task_on_texts, task_on_texts
from homespun.tasks.files import paths
from homespun.tasks.protocol import Task
from homespun.tasks.texts import LabelledText, TextsData


class PairsData(TextsData):
    """Pairs of texts with a label, a number or a rating each, read as ``[CLS] first [SEP] second [SEP]``.

    ``length`` is that of both texts together; of a longer pair the longer text is cut first. Pairs of which one side is
    empty are counted (``one_sided``), and nothing is learned from them.
    """

    missing = "which pairs? give data.train=FILE, with data.first=COLUMN, data.second=COLUMN and data.label=COLUMN"

    kind: Literal["pairs"] = "pairs"
    first: str | list[str] = Field(default="first", description="column of the first text; several are joined")
    second: str | list[str] = Field(default="second", description="column of the second text; several are joined")

    @property
    def long_inputs(self) -> Truncate:
        """Pairs are never read in chunks."""
        return TRUNCATE

    def read_files(self, inputs: Sequence[str]) -> list[LabelledText]:
        """The pairs of any files."""
        if self.first == self.second:
            raise UserError(f"data.first and data.second are the same column, {self.first!r}; name two")
        found = read_labelled_records(inputs, label=self.label, columns=self.columns, encoding=self.encoding)
        pairs = []
        for record, label, where in found:
            first, second = self.texts_of(record, where=where)
            pairs.append(LabelledText(first, label, second))
        return pairs

    def texts_of(self, record: Mapping[str, Any], *, where: str) -> tuple[str, str]:
        """Both texts of a record."""
        first, second = (get_text(record, paths(columns), where=where) for columns in (self.first, self.second))
        return first, second

    def task(self, objective: Any, stored: ModelBundle, training: Sequence[Any]) -> Task[Any, Any]:
        """What the objective learns from them: classes, numbers, ratings.

        Raises:
            UserError: as in `homespun.tasks.classification.LabelledData.task`.
        """
        return task_on_texts(self, objective, stored, training)

    def stored_task(self, stored: ModelBundle, *, source: str) -> Task[Any, Any]:
        """The task that the model was fine-tuned for."""
        return stored_task_on_texts(self, stored, source=source)

    def rename_columns(self, text: Sequence[str], label: str | None) -> dict[str, Any]:
        """``text`` are two columns, of the first text and of the second.

        Raises:
            UserError: there are not two.
        """
        if text and len(text) != 2:
            raise UserError(f"the model reads pairs: give --text-field twice, not {len(text)} times")
        first, second = text or (self.first, self.second)
        return {"first": first, "second": second, "label": label or self.label}
