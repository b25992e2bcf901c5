"""What fine-tuning asks of a task. The job, its trials and `homespun evaluate` know these interfaces and no task.

A task is a file beside this one. It has a config of its data, which is a member of the union `FinetuneData`, and a
class that is a `Task`; its objective is a config of `homespun.objectives`, a member of `FinetuneObjective`. *Examples*
are what was read, one for each thing that a split may divide; *rows* are what a model is given of them, and there may
be more rows than examples (windows of a long text) or fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from homespun.data.labelled import Labels
from homespun.data.loader import Collate
from homespun.data.rows import Rows
from homespun.jobs.tasks.tuning import Tuning
from homespun.models.bundle import ModelBundle
from homespun.models.config import ModelConfig
from homespun.models.model import Model
from homespun.training.evaluate import Metrics
from homespun.training.validation import Evaluation

Part = Literal["train", "validation", "test"]
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
        product: the model to keep, once the best weights are in the objective.
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

    def validate(self, lesson: Lesson, rows: RowsOfTask, *, batch_size: int) -> Evaluation:
        """What chooses the checkpoint: ``train.best_metric`` is its loss or a measure of it, which
        `homespun.training.measures` knows by the kind of the objective."""

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


class TaskData(Protocol):
    """The config of a task's data: where it lies, how it is read, how much of it a model is given."""

    @property
    def columns(self) -> list[str] | None:
        """Names of the columns of a csv without a header."""

    @property
    def share(self) -> float | None:
        """Of the training examples, for the validation; ``None`` where it has files of its own."""

    @property
    def split_seed(self) -> int:
        """Of the folds, and of which examples that share is."""

    def read(self, part: Part) -> list[Any] | None:
        """The examples of a part; ``None`` where it has no files.

        Raises:
            UserError: there are no training files, or these cannot be read so.
        """

    def read_files(self, inputs: Sequence[str]) -> list[Any]:
        """The examples of any files, for `homespun evaluate`."""

    def task(self, objective: Any, stored: ModelBundle, training: Sequence[Any]) -> Task[Any, Any]:
        """The task, for a model and the examples that it may learn from.

        Raises:
            UserError: the objective is of another kind, the model cannot do it, or a package is missing.
        """

    def stored_task(self, stored: ModelBundle, *, source: str) -> Task[Any, Any]:
        """The task of a fine-tuned model, as `Task.describe` wrote it.

        Raises:
            UserError: beginning with ``source``: the model was not fine-tuned so.
        """

    def with_columns(
        self,
        *,
        text: Sequence[str] | None,
        label: str | None,
        encoding: str | None,
        columns: Sequence[str] | None,
    ) -> Self:
        """The same for files with other columns, where they are given."""
