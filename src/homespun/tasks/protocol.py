"""Interfaces of fine-tuning. The commands know these interfaces and no task.

A task is one file of this package: a `TaskObjective` (a member of the union `FinetuneObjective`) that builds a `Task`,
and the `TaskData` that it reads (a member of `FinetuneData`). *Examples* are what was read, the units that a split
divides; *rows* are what the model is given of them, more (windows of a long text) or fewer than examples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import nn

from homespun.config import Config
from homespun.data.labels import Labels
from homespun.data.loader import Collate, Loader
from homespun.data.rows import Rows
from homespun.errors import UserError
from homespun.metrics.classification import Metrics
from homespun.models.bundle import ModelBundle
from homespun.models.config import ModelConfig
from homespun.models.model import Model
from homespun.tasks.calibration import Calibration
from homespun.text.formats import Record
from homespun.training.validation import EvalResult, evaluate_loss

Part = Literal["train", "validation", "test"]

SplitSeed = Annotated[
    int,
    Field(
        ge=0, description="divides the training into folds, and the validation from the rest, whatever train.seed is"
    ),
]
"""Trainings of several seeds are then chosen and measured on the same examples, and compared example by example."""


def paths(value: str | Sequence[str] | Path) -> list[str]:
    """Return one input or several as a list."""
    return [str(value)] if isinstance(value, str | Path) else [str(v) for v in value]


class HasFiles(Protocol):
    """Config with the files of each part; a share in place of validation files."""

    @property
    def train(self) -> str | list[str]: ...
    @property
    def validation(self) -> float | str | list[str]: ...
    @property
    def test(self) -> str | list[str]: ...


def files_of(part: Part, data: HasFiles, missing: str) -> list[str]:
    """Return the files of a part, or an empty list.

    Raises:
        UserError: there are no training files; ``missing`` is the message.
    """
    given: float | str | list[str] = getattr(data, part)
    if part == "train" and not given:
        raise UserError(missing)
    return [] if isinstance(given, float) or not given else paths(given)


@contextmanager
def prefix_errors(files: str | Sequence[str] | float) -> Iterator[None]:
    """Put the names of ``files`` before errors raised inside; a share of other files has no name.

    Raises:
        UserError: the one raised inside, with the names before it.
    """
    try:
        yield
    except UserError as error:
        names = "" if isinstance(files, float) else ", ".join(paths(files))
        raise UserError(f"{names}: {error}" if names else str(error)) from error


def numbered_chunks(records: Iterable[Record], size: int, *, source: str) -> Iterator[list[tuple[str, Record]]]:
    """Yield ``size`` records at a time, each with its position for error messages."""
    numbered = enumerate(records, start=1)
    while chunk := list(islice(numbered, size)):
        yield [(f"row {number} of {source}", record) for number, record in chunk]


Example_contra = TypeVar("Example_contra", contravariant=True)


class TaskRows(Rows, Protocol):
    """Rows of examples, with the truth that metrics need."""

    @property
    def counts(self) -> dict[str, int]:
        """Counts for the result, such as how many texts were ``truncated``; summed over the parts."""


RowsOfTask = TypeVar("RowsOfTask", bound=TaskRows)
Examples = list[Any]
"""Examples of one kind of data, which only the data and its task know."""


@dataclass(frozen=True)
class Measured:
    """Metrics and predictions of a model or a baseline on examples.

    ``predictions`` has an object an example, in their order: ``truth``, ``predicted`` and more by task.
    """

    metrics: Metrics
    predictions: Sequence[Mapping[str, object]] = ()


@dataclass(frozen=True)
class TrainingSetup:
    """Objective, rows and collate of one training.

    Args:
        objective: maps a batch to its `Loss`.
        model: the part of it that is evaluated, with its current weights.
        rows: training rows.
        collate: rows to a batch, for training and for the validation loss.
        export_model: returns the model to save, once the best weights are loaded.
        loss_from_metrics: validation loss from the metrics; ``None``: the objective's loss on the validation rows.
        labelled_rows: selects the validation rows that have a loss.
        calibrate: validation rows, settings, rows at a time -> the task with the decision rule chosen on these rows,
            after training. ``None``: there is nothing to calibrate.
    """

    objective: nn.Module
    model: Model
    rows: Rows
    collate: Collate
    export_model: Callable[[], tuple[Model, ModelConfig]]
    loss_from_metrics: Callable[[Metrics], float] | None = None
    labelled_rows: Callable[[Any], Rows] | None = None
    calibrate: Callable[[Any, Calibration, int], CalibratedTask] | None = None


@dataclass(frozen=True)
class CalibratedTask:
    """Task with a calibrated decision rule, and the values for ``tuning`` in the result."""

    task: AnyTask
    result: dict[str, object]


class Task(Protocol[Example_contra, RowsOfTask]):
    """One kind of fine-tuning, built from the configs of its data and its objective."""

    @property
    def data(self) -> TaskData:
        """Config of the data."""

    @property
    def labels(self) -> Labels | None:
        """Classes, which are stored with the model; ``None`` without classes."""

    @property
    def reported_metrics(self) -> Sequence[str]:
        """Metrics for tables; the first one compares models."""

    def stratify_by(self, examples: Sequence[Example_contra]) -> NDArray[np.int64]:
        """Return the keys of a stratified or grouped split.

        Returns:
            (examples,) classes, kept in proportion; (examples, 1) groups, never divided; (examples, 0): a random split.

        Raises:
            UserError: an example that cannot be learned or evaluated, such as a label that was not seen in training.
        """

    def texts(self, examples: Sequence[Example_contra]) -> Sequence[str]:
        """Return a readable text of each example, to show and to search for duplicates in other parts."""

    def rows(self, examples: Sequence[Example_contra]) -> RowsOfTask:
        """Return the model's input rows for examples."""

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
        """Return the task's own fields of ``result.json``."""

    def to_metadata(self) -> dict[str, object]:
        """Return ``task`` of the stored model, from which `TaskObjective.task_from_metadata` rebuilds this task."""

    def predict(self, model: Model, records: Iterable[Record], *, source: str) -> Iterator[dict[str, object]]:
        """Yield a prediction for each record, in order and in bounded memory; ``truncated`` where input was cut.

        Raises:
            UserError: beginning with ``source``: a record without the columns.
        """


AnyTask = Task[Any, Any]
"""A task whose examples and rows the caller does not look into."""


class TaskData(Config, ABC):
    """Files of a task, their splits and columns. A subclass adds its columns and lengths."""

    missing: ClassVar[str]
    """Error message without training files, with the settings that name them."""
    default_objective: ClassVar[str]
    """Kind of the usual objective on such data."""
    from_heads: ClassVar[tuple[str, ...]] = ()
    """Kinds of heads of other software's checkpoints, which have no task metadata, that are read as this data."""
    not_stored: ClassVar[tuple[str, ...]] = ()
    """Settings that are not stored with a model."""

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

    def read(self, part: Part) -> Examples | None:
        """Read the examples of a part; ``None`` where it has no files.

        Raises:
            UserError: there are no training files, or they cannot be read.
        """
        files = files_of(part, self, self.missing)
        return self.read_files(files) if files else None

    @abstractmethod
    def read_files(self, inputs: Sequence[str]) -> Examples:
        """Read examples from any files."""

    @abstractmethod
    def rename_columns(self, text: Sequence[str], label: str | None) -> dict[str, object]:
        """Return the fields of this config for other columns; no ``text`` or ``label=None`` keeps those columns."""

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

    def record_of(self, text: str) -> Record:
        """Return the record of a single text, for prediction.

        Raises:
            UserError: a record has more than one text.
        """
        raise UserError("the model reads more than a single text; give a file with --input")

    def select_set(self, name: str | None, *, source: str) -> TaskData:
        """Select one of several data sets by name; ``None``: the only one.

        Raises:
            UserError: there is no such data set, or a name is needed.
        """
        if name is not None:
            raise UserError(f"{source} learned from one data set; leave --data-set {name} out")
        return self

    def stored_settings(self) -> dict[str, object]:
        """Return the settings that are stored with a model: no files, splits or `not_stored`."""
        left_out = {"kind", "train", "test", "validation", "split_seed", *self.not_stored}
        return self.model_dump(mode="json", exclude=left_out)

    def task(self, objective: TaskObjective, stored: ModelBundle, training: Examples) -> AnyTask:
        """Build the task of an objective on this data.

        Raises:
            UserError: the objective does not train on such data, or as in `TaskObjective.task`.
        """
        if self.kind not in objective.data_kinds:
            raise UserError(
                f"objective.kind={objective.kind} does not train on data.kind={self.kind}; set "
                f"objective.kind={self.default_objective}, or give data of another kind"
            )
        return objective.task(self, stored, training)


class TaskObjective(Config, ABC):
    """Settings of what is learned on a pretrained model. A subclass adds its head and builds the task."""

    data_kinds: ClassVar[tuple[str, ...]]
    """Kinds of data that it trains on."""
    metrics: ClassVar[tuple[str, ...]] = ()
    """Metrics of a validation besides its loss, for ``train.best_metric``; none: the validation has its loss alone."""
    description: ClassVar[str]
    """The task in a few words, for reports."""
    count_titles: ClassVar[Mapping[str, str]] = {}
    """Titles of the `TaskRows.counts` that a report shows."""

    kind: str

    @abstractmethod
    def task(self, data: Any, stored: ModelBundle, training: Examples) -> AnyTask:
        """Build the task for a model and its training examples.

        Raises:
            UserError: the model or the examples do not fit, or a package is missing.
        """

    @classmethod
    @abstractmethod
    def task_from_metadata(cls, data: Any, stored: ModelBundle, *, source: str) -> AnyTask:
        """Rebuild the task of a fine-tuned model from `Task.to_metadata`.

        Raises:
            UserError: beginning with ``source``: the model was not fine-tuned on this task.
        """


def task_metadata(kind: str, data: TaskData, learned: Mapping[str, object] | None = None) -> dict[str, object]:
    """Return ``task`` of a stored model: kinds of objective and data, settings of the data, values from training."""
    return {"kind": kind, "data": data.kind} | ({"learned": learned} if learned else {}) | data.stored_settings()


def validate(
    task: Task[Any, RowsOfTask], objective: TaskObjective, setup: TrainingSetup, rows: RowsOfTask, *, batch_size: int
) -> EvalResult:
    """Evaluate loss and metrics on validation rows, which choose the checkpoint.

    Args:
        task: measures the model, if ``objective`` has metrics.
        objective: names the metrics.
        setup: the training, with the model's current weights.
        rows: validation rows.
        batch_size: rows at a time.
    """
    found = None
    if setup.loss_from_metrics is None:
        labelled = rows if setup.labelled_rows is None else setup.labelled_rows(rows)
        loader = Loader(labelled, setup.collate, batch_size=batch_size, seed=0)
        found = evaluate_loss(setup.objective, loader.once(), next(setup.model.parameters()).device)
    metrics = task.measure(setup.model, rows, batch_size=batch_size).metrics if objective.metrics else {}
    figures = {name: value for name, value in metrics.items() if value is None or isinstance(value, int | float)}
    if found is not None:
        return EvalResult(found.loss, found.losses, figures)
    assert setup.loss_from_metrics is not None
    loss = setup.loss_from_metrics(metrics)
    return EvalResult(loss, {"loss": loss}, figures)


def check_length(name: str, length: int, limit: int, hint: str = "") -> None:
    """Refuse a ``length`` beyond the model's ``limit``; ``hint`` names another way.

    Raises:
        UserError: naming both.
    """
    if length > limit:
        raise UserError(f"data.{name}={length} exceeds the model's max_position_embeddings={limit}; lower it{hint}")
