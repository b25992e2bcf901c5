"""Interfaces of fine-tuning. The job, its trials and `homespun evaluate` know these interfaces and no task.

A task is one file of this package. It has a config of its data, a `TaskData` and member of the union `FinetuneData`,
and a class that is a `Task`; its objective is a config of `homespun.objectives`, a member of `FinetuneObjective`.
*Examples* are what was read, one for each thing that a split may divide; *rows* are what a model is given of them, and
there may be more rows than examples (windows of a long text) or fewer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import nn

from homespun.config import Config
from homespun.data.labels import Labels
from homespun.data.loader import Collate
from homespun.data.rows import Rows
from homespun.errors import UserError
from homespun.metrics.classification import Metrics
from homespun.models.bundle import ModelBundle
from homespun.models.config import ModelConfig
from homespun.models.model import Model
from homespun.tasks.files import Part, SplitSeed, files_of
from homespun.tasks.tuning import Tuning
from homespun.training.validation import EvalResult

Example_contra = TypeVar("Example_contra", contravariant=True)


class TaskRows(Rows, Protocol):
    """The rows of some examples, which they remember: what is measured needs the truth."""

    @property
    def counts(self) -> dict[str, int]:
        """What the result tells of them, such as how many texts were ``truncated``; summed over the parts."""


RowsOfTask = TypeVar("RowsOfTask", bound=TaskRows)


@dataclass(frozen=True)
class Measured:
    """The metrics of a model or of a baseline on some examples, and what it said of each of them.

    ``predictions`` has an object an example, in their order: ``truth``, ``predicted`` and what there is besides.
    """

    metrics: Metrics
    predictions: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Lesson:
    """What is to be trained.

    Args:
        objective: maps a batch to its `Loss`.
        model: the part of it that is measured, in whatever state it is.
        rows: what an epoch goes through.
        collate: rows to a batch, for training and for the loss of the validation.
        export_model: the model to keep, once the best weights are in the objective.
        tune: the validation rows, what the recipe wants tuned, rows at a time -> the task with what was chosen on them;
            once the best weights are in. ``None``: there is nothing to choose.
    """

    objective: nn.Module
    model: Model
    rows: Rows
    collate: Collate
    export_model: Callable[[], tuple[Model, ModelConfig]]
    tune: Callable[[Any, Tuning, int], Tuned] | None = None


@dataclass(frozen=True)
class Tuned:
    """A task that reads its model's logits otherwise, and what ``tuning`` of the result tells of that."""

    task: Task[Any, Any]
    told: dict[str, Any]


class Task(Protocol[Example_contra, RowsOfTask]):
    """One kind of fine-tuning, made by the config of its data."""

    @property
    def data(self) -> TaskData:
        """How it reads."""

    @property
    def labels(self) -> Labels | None:
        """The classes, which are stored with the model; ``None``: there are none."""

    @property
    def measures(self) -> Sequence[str]:
        """The metrics that tables show, by which the first models are compared."""

    def strata(self, examples: Sequence[Example_contra]) -> NDArray[np.int64]:
        """(examples,) classes that a split keeps in proportion, or (examples, n), which is drawn at random, but
        (examples, 1) are groups that it does not divide.

        Raises:
            UserError: something that cannot be learned or measured, such as a label that was not seen in training.
        """

    def texts(self, examples: Sequence[Example_contra]) -> Sequence[str]:
        """(examples,) what is read of each, as people read it: to be shown, and compared with that of other parts."""

    def rows(self, examples: Sequence[Example_contra]) -> RowsOfTask:
        """What a model is given of them."""

    def lesson(self, objective: Any, stored: ModelBundle, training: RowsOfTask) -> Lesson:
        """A training of ``objective`` (a member of `FinetuneObjective`) on a copy of the model in ``stored``.

        Raises:
            UserError: the model cannot be trained so.
        """

    def validate(self, lesson: Lesson, rows: RowsOfTask, *, batch_size: int) -> EvalResult:
        """What chooses the checkpoint: ``train.best_metric`` is its loss or a measure of it, which
        `homespun.metrics.registry` knows by the kind of the objective."""

    def measure(self, model: Model, rows: RowsOfTask, *, batch_size: int) -> Measured:
        """What the result tells. The model is where it was trained, and is left in the mode it is in."""

    def baselines(self, training: Sequence[Example_contra], test: Sequence[Example_contra]) -> Mapping[str, Measured]:
        """What a model must beat, by name; each measured as `measure` does."""

    def facts(self) -> dict[str, Any]:
        """What ``result.json`` tells of the task itself."""

    def describe(self) -> dict[str, Any]:
        """The ``task`` of the stored model, of which `TaskData.stored_task` makes this again. It has the ``kind`` of
        the objective, and ``data``, the kind of the data."""

    def predict(self, model: Model, records: Iterable[Mapping[str, Any]], *, source: str) -> Iterator[dict[str, Any]]:
        """An object a record, in their order, in bounded memory; ``truncated`` in it where something was cut.

        Raises:
            UserError: beginning with ``source``: a record without the columns.
        """


class TaskData(Config, ABC):
    """Data of one kind of task: its files, how they are split and read. A subclass adds its columns and lengths."""

    missing: ClassVar[str]
    """Error without training files, with the settings that name them."""
    objectives: ClassVar[tuple[str, ...]]
    """Kinds of objectives that train on such data, the usual one first."""

    kind: str
    train: str | list[str] = Field(default="", description="file, glob, folder or hub name, or several")
    test: str | list[str] = Field(default="", description="the same, for the last evaluation; or none")
    validation: float | str | list[str] = Field(
        default=0.1, description="held-out share of the training examples, or files"
    )
    split_seed: SplitSeed = 0
    columns: list[str] | None = Field(default=None, description="names of the columns of a file without a header")
    encoding: str | None = Field(default=None, description="character encoding; detected where not given")

    @property
    def share(self) -> float | None:
        """Share of the training examples held out for validation; ``None`` where there are validation files."""
        return self.validation if isinstance(self.validation, float) else None

    def read(self, part: Part) -> list[Any] | None:
        """Examples of a part; ``None`` where it has no files.

        Raises:
            UserError: there are no training files, or these cannot be read so.
        """
        files = files_of(part, self, self.missing)
        return self.read_files(files) if files else None

    @abstractmethod
    def read_files(self, inputs: Sequence[str]) -> list[Any]:
        """Examples of any files, for `homespun evaluate`."""

    @abstractmethod
    def task(self, objective: Any, stored: ModelBundle, training: Sequence[Any]) -> Task[Any, Any]:
        """Task for a model and the examples that it may train on.

        Raises:
            UserError: the objective is of another kind, the model cannot do it, or a package is missing.
        """

    @abstractmethod
    def stored_task(self, stored: ModelBundle, *, source: str) -> Task[Any, Any]:
        """Task of a fine-tuned model, as `Task.describe` wrote it.

        Raises:
            UserError: beginning with ``source``: the model was not fine-tuned so.
        """

    @abstractmethod
    def rename_columns(self, text: Sequence[str], label: str | None) -> dict[str, Any]:
        """Fields of this config for files with other columns; no ``text``, ``label=None``: those columns stay."""

    def with_columns(
        self,
        *,
        text: Sequence[str] | None,
        label: str | None,
        encoding: str | None,
        columns: Sequence[str] | None,
    ) -> Self:
        """Copy for other files: with their columns, where given, and their encoding, not that of the training."""
        kept = {"columns": list(columns) if columns else self.columns, "encoding": encoding}
        return self.model_copy(update=self.rename_columns(text or (), label) | kept)

    def to_metadata(self, *without: str) -> dict[str, Any]:
        """Settings that are stored with a model: not the files and how they are split, nor the fields ``without``."""
        return self.model_dump(mode="json", exclude={"kind", "train", "test", "validation", "split_seed", *without})

    def check_objective(self, objective: Any) -> None:
        """Refuse an objective of another kind.

        Raises:
            UserError: naming one that fits.
        """
        if objective.kind not in self.objectives:
            raise UserError(
                f"objective.kind={objective.kind} does not train on data.kind={self.kind}; set "
                f"objective.kind={self.objectives[0]}, or give data of another kind"
            )


def check_length(name: str, length: int, limit: int, hint: str = "") -> None:
    """Refuse a ``length`` beyond the model's ``limit``; ``hint`` says what else helps.

    Raises:
        UserError: naming both.
    """
    if length > limit:
        raise UserError(f"data.{name}={length} exceeds the model's max_position_embeddings={limit}; lower it{hint}")
