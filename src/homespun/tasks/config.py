"""Unions of the data and of the objectives of fine-tuning, and the task of a fine-tuned model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, TypedDict, Unpack, get_args

from pydantic import Field

from homespun.config import Config, validate
from homespun.errors import UserError
from homespun.models.bundle import ModelBundle
from homespun.tasks.classification import Classification
from homespun.tasks.ordinal_regression import OrdinalRegression
from homespun.tasks.protocol import AnyTask, TaskData, TaskObjective
from homespun.tasks.question_answering import QuestionAnswering, QuestionData
from homespun.tasks.regression import Regression
from homespun.tasks.sentence_classification import SentenceClassification, SentencesData
from homespun.tasks.seq2seq import TextToText
from homespun.tasks.seq2seq_data import TextPairsData
from homespun.tasks.texts import LabelledData, PairsData
from homespun.tasks.token_classification import TaggedData, TokenClassification

FinetuneData = Annotated[
    LabelledData | PairsData | SentencesData | TextPairsData | TaggedData | QuestionData, Field(discriminator="kind")
]
FinetuneObjective = Annotated[
    Classification
    | Regression
    | OrdinalRegression
    | SentenceClassification
    | TextToText
    | TokenClassification
    | QuestionAnswering,
    Field(discriminator="kind"),
]
_DATA: tuple[type[TaskData], ...] = get_args(get_args(FinetuneData)[0])
_OBJECTIVES: tuple[type[TaskObjective], ...] = get_args(get_args(FinetuneObjective)[0])
_NOT_DATA = ("kind", "data", "learned", "decision")  # keys of `Task.to_metadata` without the settings of the data


class _StoredData(Config):
    data: FinetuneData


def task_from_metadata(data: TaskData, stored: ModelBundle, *, source: str) -> AnyTask:
    """Rebuild the task that a model was fine-tuned on; a model without metadata gets the data's default objective.

    Raises:
        UserError: the model was not fine-tuned on this data.
    """
    objectives = {one.model_fields["kind"].default: one for one in _OBJECTIVES}
    objective = objectives.get(stored.task.get("kind"))
    if objective is None or data.kind not in objective.data_kinds:
        objective = objectives[data.default_objective]
    return objective.task_from_metadata(data, stored, source=source)


class ReadOptions(TypedDict, total=False):
    """Options for reading records for a fine-tuned model; by default as in training, and the encoding is detected."""

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
    """Generation settings that differ from training: `homespun.inference.generation.TextGenerationConfig`."""


def stored_task(stored: ModelBundle, *, source: str, **options: Unpack[ReadOptions]) -> AnyTask:
    """Rebuild the task that a model was fine-tuned on, with other columns if given.

    Args:
        stored: the model.
        source: beginning of error messages.
        options: see `ReadOptions`.

    Raises:
        UserError: the model was not fine-tuned, or by another version; or as in `stored_data`.
    """
    metadata: Mapping[str, object] = stored.task
    if "data" not in metadata and (head := stored.config.head) is not None:
        for data_class in _DATA:
            if head.kind in data_class.from_heads:
                kind = data_class.model_fields["kind"].default
                metadata = {"data": kind} | {k: v for k, v in metadata.items() if k in ("kind", "max_length")}
    return task_from_metadata(stored_data(metadata, source=source, **options), stored, source=source)


def stored_data(metadata: Mapping[str, object], *, source: str, **options: Unpack[ReadOptions]) -> TaskData:
    """Rebuild the data config of a fine-tuned model from `Task.to_metadata`.

    Raises:
        UserError: several data sets and no ``data_set``; or ``generation`` for a model that does not generate text.
    """
    settings = {name: value for name, value in metadata.items() if name not in _NOT_DATA and value is not None}
    kind = metadata.get("data", "texts")
    if generation := options.get("generation"):
        if not any(kind == one.model_fields["kind"].default and "generation" in one.model_fields for one in _DATA):
            raise UserError(f"{source} does not generate text; leave --generation out")
        earlier = settings.get("generation", {})
        settings["generation"] = {**(earlier if isinstance(earlier, Mapping) else {}), **generation}
    data: TaskData = validate(_StoredData, {"data": settings | {"kind": kind}}, source=source).data
    data = data.select_set(options.get("data_set"), source=source)
    return data.with_columns(
        text=options.get("text"),
        label=options.get("label"),
        encoding=options.get("encoding"),
        columns=options.get("columns"),
    )
