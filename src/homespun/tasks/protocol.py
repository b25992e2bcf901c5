"""Interfaces of fine-tuning tasks, by which the commands call a task without knowing its kind.

A task is a file of this package. It has a `TaskObjective` (a member of the union `FinetuneObjective`) that builds a
`Task`, and the `TaskData` that it reads (a member of `FinetuneData`). *Examples* are read by `TaskData` and divided by
a split; *rows* are inputs of the model, more (windows of a long text) or fewer than examples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Self, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from homespun.config import Config
from homespun.data.labels import Labels, read_rows
from homespun.data.rows import Rows
from homespun.errors import UserError
from homespun.metrics.classification import Metrics
from homespun.tasks.calibration import Calibration
from homespun.text.formats import Record

if TYPE_CHECKING:  # imported late: linear models need no torch
    from homespun.data.loader import Collate
    from homespun.models.bundle import ModelBundle
    from homespun.models.model import Model
    from homespun.objectives.protocol import Objective, WrappedClassifier

Part = Literal["train", "validation", "test"]
InputKind = Literal["text", "pair", "question", "sentences"]
"""A text, a pair of texts, a question with its text, or the sentences of a document."""

SplitSeed = Annotated[int, Field(ge=0, description="seed of folds and of the validation split; train.seed is another")]
"""Runs with several values of train.seed share their splits, so that they can be compared example by example."""


class ReadOptions(TypedDict, total=False):
    """Options for reading records for a fine-tuned model; default: as in training, with detected encoding."""

    text: Sequence[str] | None
    """Columns of the texts."""
    label: str | None
    """Column of the labels."""
    encoding: str | None
    """Of the files."""
    columns: Sequence[str] | None
    """Names of the columns of files without a header."""
    data_set: str | None
    """One of several data sets that the model learned from, each with its prefix."""
    generation: Mapping[str, object] | None
    """Generation settings that differ from training: `homespun.models.generation.settings.TextGenerationConfig`."""


def paths(value: str | Path | Sequence[str | Path]) -> list[str]:
    """Convert one input or several to a list."""
    return [str(value)] if isinstance(value, str | Path) else [str(v) for v in value]


class HasFiles(Protocol):
    """Interface of configs with files of each part; ``validation`` may be a share of the training examples."""

    @property
    def train(self) -> str | list[str]: ...
    @property
    def validation(self) -> float | str | list[str]: ...
    @property
    def test(self) -> str | list[str]: ...


def files_of(part: Part, data: HasFiles, missing: str) -> list[str]:
    """Return the files of a part, or an empty list.

    Raises:
        UserError: with message ``missing``, if there are no training files.
    """
    files: float | str | list[str] = getattr(data, part)
    if part == "train" and not files:
        raise UserError(missing)
    return [] if isinstance(files, float) or not files else paths(files)


@contextmanager
def prefix_errors(files: str | Sequence[str] | float) -> Iterator[None]:
    """Prefix the message of each `UserError` raised inside with the names of ``files``; a share has no name."""
    try:
        yield
    except UserError as error:
        names = "" if isinstance(files, float) else ", ".join(paths(files))
        raise UserError(f"{names}: {error}" if names else str(error)) from error


def numbered_chunks(
    records: Iterable[Record], size: int, *, source: str, first: int = 1
) -> Iterator[list[tuple[str, Record]]]:
    """Yield ``size`` records at a time, each with its position for error messages."""
    numbered = enumerate(records, start=first)
    while chunk := list(islice(numbered, size)):
        yield [(f"row {number} of {source}", record) for number, record in chunk]


Example_contra = TypeVar("Example_contra", contravariant=True)


class TaskRows(Rows, Protocol):
    """Rows of examples, with labels for metrics."""

    @property
    def counts(self) -> dict[str, int]:
        """Return counts for the result, such as the number of ``truncated`` texts; summed over the parts."""


RowsOfTask = TypeVar("RowsOfTask", bound=TaskRows)
Examples = list[Any]
"""Examples of one kind of data; their type depends on it."""


@dataclass(frozen=True)
class Measured:
    """Metrics and predictions of a model or a baseline.

    ``predictions`` has an object for each example, in order: ``truth``, ``predicted`` and other keys by task.
    """

    metrics: Metrics
    predictions: Sequence[Mapping[str, object]] = ()


@dataclass(frozen=True)
class TrainingSetup:
    """Objective, rows and collate of a training."""

    objective: Objective | WrappedClassifier  # the model with its loss
    rows: Rows  # training rows
    collate: Collate  # function from rows to a batch, for training and validation loss
    # validation loss from the metrics; None: the objective's loss on the validation rows
    loss_from_metrics: Callable[[Metrics], float] | None = None
    labelled_rows: Callable[[Any], Rows] | None = None  # selects the validation rows that have a loss
    # function from validation rows, settings and batch size to the calibrated task; None: the task has no calibration
    calibrate: Callable[[Any, Calibration, int], CalibratedTask] | None = None


@dataclass(frozen=True)
class CalibratedTask:
    """Task with a calibrated decision rule, and the values for ``decision_rule`` in the result."""

    task: AnyTask
    result: dict[str, object]


class Task(Protocol[Example_contra, RowsOfTask]):
    """A fine-tuning task, built from the configs of its data and its objective."""

    @property
    def data(self) -> TaskData:
        """Config of the data."""

    @property
    def labels(self) -> Labels | None:
        """Classes, stored with the model; ``None`` without classes."""

    @property
    def reported_metrics(self) -> Sequence[str]:
        """Metrics in tables; models are compared by the first, of which higher values are better."""

    def stratify_by(self, examples: Sequence[Example_contra]) -> NDArray[np.int64]:
        """Return the keys of a stratified or grouped split.

        Returns:
            (examples,) classes, kept in proportion; (examples, 1) groups, never divided; (examples, 0): a random split.

        Raises:
            UserError: an example cannot be learned or evaluated, for example because of a label that is not in the
                training.
        """

    def texts(self, examples: Sequence[Example_contra]) -> Sequence[str]:
        """Return a readable text of each example, for reports and near-duplicate detection."""

    def rows(self, examples: Sequence[Example_contra]) -> RowsOfTask:
        """Return the input rows of examples."""

    def training_setup(self, objective: Any, stored: ModelBundle, training: RowsOfTask) -> TrainingSetup:
        """Set up the training of ``objective`` (a member of `FinetuneObjective`) on a copy of the model in ``stored``.

        Raises:
            UserError: the model cannot be trained on this task.
        """

    def measure(self, model: Model, rows: RowsOfTask, *, batch_size: int) -> Measured:
        """Evaluate a model on its current device; its training mode is restored."""

    def baselines(self, training: Sequence[Example_contra], test: Sequence[Example_contra]) -> Mapping[str, Measured]:
        """Evaluate the task's baselines, by name, with the metrics of `measure`."""

    def result_fields(self) -> dict[str, object]:
        """Return the fields of ``result.json`` that only this task has."""

    def to_metadata(self) -> dict[str, object]:
        """Return the ``task`` of the stored model, from which `TaskObjective.task_from_metadata` rebuilds this task."""

    def predict(
        self, model: Model, records: Iterable[Record], *, source: str, first: int = 1
    ) -> Iterator[dict[str, object]]:
        """Yield a prediction for each record, in order and in bounded memory.

        A prediction has ``truncated`` if the input was truncated.

        Args:
            model: model of the task.
            records: read a few thousand at a time.
            source: name of the records in errors.
            first: number of the first record in errors.

        Raises:
            UserError: a record lacks a column.
        """


AnyTask = Task[Any, Any]
"""A task whose types of examples and rows do not matter to the caller."""


class TaskData(Config, ABC):
    """Files of a task, their splits and columns. Subclasses add columns and lengths."""

    # in the schema of recipes, so that `homespun.recipes.require_data` has the message without torch
    model_config = ConfigDict(json_schema_extra=lambda schema, data: schema.update(missing=data.missing))

    missing: ClassVar[str]
    """Error message if there are no training files; names the settings."""
    no_examples: ClassVar[str] = "no examples; give other files"
    """End of the error message if files have no examples."""
    default_objective: ClassVar[str]
    """Kind of the default objective on such data."""
    from_heads: ClassVar[tuple[str, ...]] = ()
    """Kinds of heads in checkpoints without task metadata (Hugging Face) whose data is this."""
    not_stored: ClassVar[tuple[str, ...]] = ()
    """Settings that are not stored with a model."""
    not_for_baselines: ClassVar[tuple[str, ...]] = ("max_length",)
    """Settings that baselines ignore: lengths of inputs, and generation."""
    input_kind: ClassVar[InputKind] = "text"
    """Input of a prediction."""
    text_settings: ClassVar[tuple[str, ...]] = ()
    """Settings of the columns that a prediction reads; none: another format has other columns."""
    label_settings: ClassVar[tuple[str, ...]] = ("label",)
    """Settings of the columns that an evaluation reads too."""

    kind: str
    train: str | list[str] = Field(default="", description="file, glob, folder or hub name, or several")
    test: str | list[str] = Field(default="", description="the same, for the last evaluation; or none")
    validation: float | str | list[str] = Field(default=0.1, description="held-out share of the training, or files")
    split_seed: SplitSeed = 0
    columns: list[str] | None = Field(default=None, description="names of the columns of a file without a header")
    encoding: str | None = Field(default=None, description="character encoding; detected by default")

    @property
    def share(self) -> float | None:
        """Share of the training examples held out for validation; ``None`` with validation files."""
        return self.validation if isinstance(self.validation, float) else None

    def read(self, part: Part) -> Examples | None:
        """Read the examples of a part; ``None`` if it has no files.

        Raises:
            UserError: there are no training files.
        """
        files = files_of(part, self, self.missing)
        return self.read_files(files) if files else None

    def read_files(self, inputs: Sequence[str]) -> Examples:
        """Read examples from any files.

        Raises:
            UserError: there are none, or as in `parse`.
        """
        rows = read_rows(inputs, columns=self.columns, encoding=self.encoding)
        examples = [example for record, where in rows for example in self.parse(record, where=where)]
        if not examples:
            raise UserError(f"{', '.join(inputs)} has {self.no_examples}")
        return examples

    def read_labelled(self, inputs: Sequence[str]) -> tuple[Examples, list[str]]:
        """Read examples for an evaluation as `read_files` does, from files that may have rows without a label.

        Returns:
            Examples, and lines with the numbers of rows that are left out and of empty texts.
        """
        return self.read_files(inputs), []

    def is_empty(self, record: Record) -> bool:
        """True for a record of an empty text that gets a label or a number all the same."""
        return False

    @abstractmethod
    def parse(self, record: Record, *, where: str) -> Examples:
        """Return the examples of a record.

        Raises:
            UserError: a column is missing or has another type of value; the message begins with ``where``.
        """

    @abstractmethod
    def rename_columns(self, text: Sequence[str], label: str | None) -> dict[str, object]:
        """Return the fields of this config for other columns; no ``text`` or ``label=None`` keeps the columns."""

    def with_columns(self, options: ReadOptions) -> Self:
        """Copy for other files, with their columns, if given, and their encoding.

        Texts of other columns than those of training are in files with a header.
        """
        text = options.get("text") or ()
        columns = list(options.get("columns") or ()) or (self.columns if set(text) <= set(self.columns or ()) else None)
        files = {"columns": columns, "encoding": options.get("encoding")}
        return self.model_copy(update=self.rename_columns(text, options.get("label")) | files)

    def missing_columns(self, names: Collection[str], *, labelled: bool) -> list[str]:
        """Return the columns of a prediction, or of an evaluation if ``labelled``, that are not among ``names``."""
        settings = (*self.text_settings, *(self.label_settings if labelled else ()))
        return [name for setting in settings for name in paths(getattr(self, setting)) if name not in names]

    def record_of(self, text: str) -> Record:
        """Return the record of a single text, for prediction.

        Raises:
            UserError: a record has more than one text.
        """
        raise UserError("the model reads several texts, not one; give a list of them, or a file with --input")

    def record_of_texts(self, texts: Sequence[str]) -> Record:
        """Return the record of an input of several texts, for prediction.

        Raises:
            UserError: an input is a single text.
        """
        raise UserError("the model reads single texts, not lists of texts")

    def select_set(self, name: str | None, *, source: str) -> TaskData:
        """Select a data set by name; ``None`` selects the only one.

        Raises:
            UserError: the name is unknown, or missing although there are several.
        """
        if name is not None:
            raise UserError(f"{source} was trained on one data set; leave --data-set {name} out")
        return self

    def stored_settings(self) -> dict[str, object]:
        """Return the settings that are stored with a model, without files, splits and `not_stored`."""
        left_out = {"kind", "train", "test", "validation", "split_seed", *self.not_stored}
        return self.model_dump(mode="json", exclude=left_out)

    def task(self, objective: TaskObjective, stored: ModelBundle, training: Examples) -> AnyTask:
        """Build the task of an objective on this data.

        Raises:
            UserError: the objective does not support this kind of data; or as in `TaskObjective.task`.
        """
        if self.kind not in objective.data_kinds:
            raise UserError(
                f"objective.kind={objective.kind} does not train on data.kind={self.kind}; set "
                f"objective.kind={self.default_objective}, or give data of another kind"
            )
        return objective.task(self, stored, training)


class TaskObjective(Config, ABC):
    """Settings of a fine-tuning objective. Subclasses add a head and build the task."""

    data_kinds: ClassVar[tuple[str, ...]]
    """Supported kinds of data."""
    metrics: ClassVar[tuple[str, ...]] = ()
    """Metrics of a validation besides its loss, for ``train.best_metric``."""
    description: ClassVar[str]
    """Name of the task in reports."""
    count_titles: ClassVar[Mapping[str, str]] = {}
    """Titles of the `TaskRows.counts` in reports."""

    kind: str

    @abstractmethod
    def task(self, data: Any, stored: ModelBundle, training: Examples) -> AnyTask:
        """Build the task for a model and its training examples.

        Raises:
            UserError: the model or the examples do not fit the task, or a package is missing.
        """

    @classmethod
    @abstractmethod
    def task_from_metadata(cls, data: Any, stored: ModelBundle, *, source: str) -> AnyTask:
        """Rebuild the task of a fine-tuned model from `Task.to_metadata`.

        Raises:
            UserError: the model was not fine-tuned on this task; the message begins with ``source``.
        """


def task_metadata(kind: str, data: TaskData, learned: Mapping[str, object] | None = None) -> dict[str, object]:
    """Return the ``task`` of a stored model: kinds of objective and data, settings of the data, and learned values."""
    return {"kind": kind, "data": data.kind} | ({"learned": learned} if learned else {}) | data.stored_settings()


def check_length(name: str, length: int, limit: int, hint: str = "") -> None:
    """Raise `UserError` if a ``length`` exceeds the ``limit`` of the model; ``hint`` is the end of the message."""
    if length > limit:
        raise UserError(f"data.{name}={length} exceeds the model's max_position_embeddings={limit}; lower it{hint}")
