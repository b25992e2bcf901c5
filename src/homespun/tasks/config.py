"""Unions of the data configs and of the objectives of fine-tuning, and the task of a fine-tuned model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Unpack, get_args

from pydantic import Field

from homespun.models.bundle import ModelBundle
from homespun.tasks.classification import Classification
from homespun.tasks.ordinal_regression import OrdinalRegression
from homespun.tasks.protocol import AnyTask, ReadOptions, TaskData, TaskObjective
from homespun.tasks.question_answering import QuestionAnswering, QuestionData
from homespun.tasks.regression import Regression
from homespun.tasks.sentence_classification import SentenceClassification, SentencesData
from homespun.tasks.seq2seq import TextToText
from homespun.tasks.seq2seq_data import TextPairsData
from homespun.tasks.stored_data import StoredData, stored_data
from homespun.tasks.taggers import TaggedData
from homespun.tasks.texts import LabelledData, PairsData
from homespun.tasks.token_classification import TokenClassification

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


class _StoredData(StoredData):
    data: FinetuneData


def task_from_metadata(data: TaskData, stored: ModelBundle, *, source: str) -> AnyTask:
    """Rebuild the task that a model was fine-tuned on. Without metadata the default objective of the data is used.

    Raises:
        UserError: the model was not fine-tuned on this data.
    """
    objectives = {one.model_fields["kind"].default: one for one in _OBJECTIVES}
    objective = objectives.get(stored.task.get("kind"))
    if objective is None or data.kind not in objective.data_kinds:
        objective = objectives[data.default_objective]
    return objective.task_from_metadata(data, stored, source=source)


def stored_task(stored: ModelBundle, *, source: str, **options: Unpack[ReadOptions]) -> AnyTask:
    """Rebuild the task that a model was fine-tuned on, with other columns if given by ``options``.

    Raises:
        UserError: the model was not fine-tuned, or by another version; or as in `stored_data`; the message begins with
            ``source``.
    """
    metadata: Mapping[str, object] = stored.task
    if "data" not in metadata and (head := stored.config.head) is not None:
        for data_class in _DATA:
            if head.kind in data_class.from_heads:
                kind = data_class.model_fields["kind"].default
                metadata = {"data": kind} | {k: v for k, v in metadata.items() if k in ("kind", "max_length")}
    data = stored_data(_StoredData, metadata, source=source, **options)
    return task_from_metadata(data, stored, source=source)
