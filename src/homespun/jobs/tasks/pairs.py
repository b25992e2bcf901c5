"""Pairs of texts with one label a pair: whether they say the same, whether one follows, how alike they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from homespun.config import Config
from homespun.data.labelled import labelled_records, text_of
from homespun.data.long_inputs import TRUNCATE, Truncate
from homespun.errors import UserError
from homespun.jobs.tasks.classification import stored_task_on_texts, task_on_texts
from homespun.jobs.tasks.files import SplitSeed, files_of, paths
from homespun.jobs.tasks.task import Part, Task
from homespun.jobs.tasks.texts import LabelledText
from homespun.models.bundle import ModelBundle


class PairsData(Config):
    """Pairs of texts with a label, a number or a rating each, read as ``[CLS] first [SEP] second [SEP]``.

    Of a pair that is too long the longer text is cut first. Pairs of which one side is empty are counted
    (``one_sided``), and nothing is learned from them.
    """

    kind: Literal["pairs"] = "pairs"
    train: str | list[str] = Field(default="", description="file, glob, folder or hub name, or several")
    test: str | list[str] = Field(default="", description="the same, for the last evaluation; or none")
    validation: float | str | list[str] = Field(
        default=0.1, description="held-out share of the training pairs (by class), or files"
    )
    split_seed: SplitSeed = 0
    first: str | list[str] = Field(default="first", description="column of the first text; several are joined")
    second: str | list[str] = Field(default="second", description="column of the second text; several are joined")
    label: str = Field(default="label", description="column of the label, the number or the rating")
    columns: list[str] | None = Field(default=None, description="names of the columns of a csv without a header")
    encoding: str | None = Field(default=None, description="character encoding; detected where not given")
    length: int = Field(default=128, ge=8, description="tokens of both texts together, special ones included")

    @property
    def long_inputs(self) -> Truncate:
        """Pairs are never read in chunks."""
        return TRUNCATE

    @property
    def share(self) -> float | None:
        """Of the training pairs, for the validation."""
        return self.validation if isinstance(self.validation, float) else None

    def read(self, part: Part) -> list[Any] | None:
        """The pairs of a part."""
        ways = "which pairs? give data.train=FILE, with data.first=COLUMN, data.second=COLUMN and data.label=COLUMN"
        files = files_of(part, train=self.train, validation=self.validation, test=self.test, ways=ways)
        return self.read_files(files) if files else None

    def read_files(self, inputs: Sequence[str]) -> list[LabelledText]:
        """The pairs of any files."""
        if self.first == self.second:
            raise UserError(f"data.first and data.second are the same column, {self.first!r}; name two")
        found = labelled_records(inputs, label=self.label, columns=self.columns, encoding=self.encoding)
        pairs = []
        for record, label, where in found:
            first, second = self.texts_of(record, where=where)
            pairs.append(LabelledText(first, label, second))
        return pairs

    def texts_of(self, record: Mapping[str, Any], *, where: str) -> tuple[str, str]:
        """Both texts of a record."""
        first, second = (text_of(record, paths(columns), where=where) for columns in (self.first, self.second))
        return first, second

    def task(self, objective: Any, stored: ModelBundle, training: Sequence[Any]) -> Task[Any, Any]:
        """What the objective learns from them: classes, numbers, ratings.

        Raises:
            UserError: as in `homespun.jobs.tasks.classification.LabelledData.task`.
        """
        return task_on_texts(self, objective, stored, training)

    def stored_task(self, stored: ModelBundle, *, source: str) -> Task[Any, Any]:
        """The task that the model was fine-tuned for."""
        return stored_task_on_texts(self, stored, source=source)

    def with_columns(
        self,
        *,
        text: Sequence[str] | None,
        label: str | None,
        encoding: str | None,
        columns: Sequence[str] | None,
    ) -> PairsData:
        """The same for files with other columns; ``text`` are two, of the first text and of the second.

        Raises:
            UserError: there are not two.
        """
        if text is not None and len(text) != 2:
            raise UserError(f"the model reads pairs: give --text-field twice, not {len(text)} times")
        first, second = (self.first, self.second) if text is None else text
        return self.model_copy(
            update={
                "first": first,
                "second": second,
                "label": label or self.label,
                "columns": list(columns) if columns else self.columns,
                "encoding": encoding,
            }
        )

    def described(self) -> dict[str, Any]:
        """How the pairs are read."""
        return self.model_dump(mode="json", exclude={"kind", "train", "test", "validation", "split_seed"})
