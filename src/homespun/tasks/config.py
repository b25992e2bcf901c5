"""The unions of fine-tuning, which are its registry: what is read, and what is learned from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from homespun.config import Config, validate
from homespun.errors import UserError
from homespun.models.bundle import ModelBundle
from homespun.objectives.classification import Classification
from homespun.objectives.question_answering import ExtractiveQA
from homespun.objectives.regression import OrdinalRegression, Regression
from homespun.objectives.sentence_classification import SentenceClassification
from homespun.objectives.text_to_text import TextToText
from homespun.objectives.token_classification import TokenClassification
from homespun.tasks.classification import LabelledData
from homespun.tasks.protocol import Task, TaskData
from homespun.tasks.question_answering import QuestionData
from homespun.tasks.sentence_classification import SentencesData
from homespun.tasks.sentence_pairs import PairsData
from homespun.tasks.seq2seq import TextPairsData
from homespun.tasks.token_classification import TaggedData

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
    | ExtractiveQA,
    Field(discriminator="kind"),
]
_BY_HEAD = {  # a checkpoint from elsewhere does not say what it was fine-tuned on
    "token_classification": "tags",
    "question_answering": "questions",
    "question_answering_ffn": "questions",
}
_OF_THE_TASK = ("kind", "data", "learned", "decision")  # what `Task.describe` says that is no setting of the data


class _Remembered(Config):
    data: FinetuneData


def stored_task(
    stored: ModelBundle,
    *,
    source: str,
    text: Sequence[str] | None = None,
    label: str | None = None,
    encoding: str | None = None,
    columns: Sequence[str] | None = None,
    data_set: str | None = None,
    writing: Mapping[str, Any] | None = None,
) -> Task[Any, Any]:
    """The task that a model was fine-tuned for, for files with other columns where they are given.

    Args:
        stored: the model.
        source: what messages begin with.
        text: columns of the texts.
        label: column of what is told of them.
        encoding: of the files.
        columns: names for those without a header.
        data_set: which of several that it learned from, each with its prefix.
        writing: overrides, fields of `homespun.inference.batch_generation.TextGenerationConfig`.

    Raises:
        UserError: it was not fine-tuned, or by another version; several data sets and none of them named; or it writes
            nothing, or not like that.
    """
    told = {name: value for name, value in stored.task.items() if name not in _OF_THE_TASK and value is not None}
    head = stored.config.head
    elsewhere = None if head is None or "data" in stored.task else _BY_HEAD.get(head.kind)
    kind = stored.task.get("data", "texts") if elsewhere is None else elsewhere
    if elsewhere is not None:
        told = {name: value for name, value in told.items() if name == "length"}
    if writing and kind != "pairs_of_texts":
        raise UserError(f"{source} writes no texts; leave --writing out")
    if writing:
        told["writing"] = {**told.get("writing", {}), **writing}
    tree = {"data": told | {"kind": kind}}
    data: TaskData = validate(_Remembered, tree, source=source).data
    if isinstance(data, TextPairsData):
        data = data.of_one(data_set)
    elif data_set is not None:
        raise UserError(f"{source} learned from one data set; leave --data-set {data_set} out")
    wanted = data.with_columns(text=text, label=label, encoding=encoding, columns=columns)
    return wanted.stored_task(stored, source=source)
