"""Extractive question answering (Devlin et al. 2019, sections 4.2 and 4.3)."""

from __future__ import annotations

import copy
import dataclasses
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from homespun.batch import Batch, Loss, RowSeed, Term
from homespun.data.question_answering import Question, QuestionRows, parse_questions, question_batch
from homespun.data.rows import Row, Rows, SubsetRows
from homespun.errors import UserError
from homespun.inference.spans import Answer, find_answers
from homespun.metrics.text import ANSWER_METRICS, answer_scores, mean_answers
from homespun.models.bundle import ModelBundle
from homespun.models.composite_heads import Layers, on_layers
from homespun.models.config import ModelConfig
from homespun.models.heads import FeedForwardAnsweringHeadConfig, QuestionAnsweringHeadConfig
from homespun.models.model import Model
from homespun.tasks.head_training import FineTuningLoss, build_token_head
from homespun.tasks.protocol import (
    Measured,
    TaskData,
    TaskObjective,
    TrainingSetup,
    check_length,
    numbered_chunks,
    task_metadata,
)
from homespun.text.clean import sentence_spans
from homespun.text.formats import Record
from homespun.text.tokenizer import Tokenizer

_CHUNK = 64  # records read ahead in prediction; a record may be an article with many questions
_NO_ANSWERS = "no text of the training contains its answer; check data.context and data.answers"


class QuestionData(TaskData):
    """Questions with texts and answers. A split keeps the questions of an article together."""

    missing = "which questions? give data.train=FILE: SQuAD's JSON, or rows with question, context and answers"
    no_examples = "no question; give SQuAD's JSON, or question, context and answers"
    default_objective = "question_answering"
    from_heads = ("question_answering", "question_answering_ffn")
    not_stored = ("encoding",)
    not_for_baselines = ("max_length", "stride", "max_question_length", "max_answer_length", "n_best", "null_threshold")
    input_kind = "question"

    kind: Literal["questions"] = "questions"
    question: str = Field(default="question", description="column of the question, unless rows are SQuAD articles")
    context: str = Field(default="context", description="column of the text")
    answers: str = Field(default="answers", description="column of the answers")
    max_length: int = Field(default=384, ge=16, description="tokens of a window, with question and special tokens")
    stride: int = Field(default=128, ge=0, description="tokens of the text that two consecutive windows share")
    max_question_length: int = Field(default=64, ge=1, description="maximum tokens of a question")
    max_answer_length: int = Field(default=30, ge=1, description="maximum tokens of an answer")
    n_best: int = Field(default=20, ge=1, description="number of candidates for each question")
    no_answer: bool | None = Field(default=None, description="questions may have no answer; default: as in training")
    null_threshold: float = Field(default=0.0, description="margin of the no-answer score over the best answer's")

    def parse(self, record: Record, *, where: str) -> list[Question]:
        columns = {"question": self.question, "context": self.context, "answers": self.answers}
        return list(parse_questions(record, **columns, where=where))

    def record_of_texts(self, texts: Sequence[str]) -> Record:
        """Return the record of a question and its text."""
        if len(texts) != 2:
            raise UserError(f"the model reads a question and its text; give two texts, not {len(texts)}")
        return dict(zip((self.question, self.context), texts, strict=True))

    def rename_columns(self, text: Sequence[str], label: str | None) -> dict[str, object]:
        """Return the fields for the columns of the text, or of question and text, and of the answers."""
        if len(text) > 2:
            raise UserError(
                f"--text-field is given {len(text)} times; give the columns of the question and of the text"
            )
        return {
            "question": text[0] if len(text) > 1 else self.question,
            "context": text[-1] if text else self.context,
            "answers": label or self.answers,
        }


class QuestionAnswering(TaskObjective):
    """Prediction of the first and last token of an answer by cross-entropy over the tokens of a window.

    Questions without an answer have the target ``[CLS]``.
    """

    data_kinds = ("questions",)
    description = "extractive question answering"
    count_titles: ClassVar[Mapping[str, str]] = {
        "answers_realigned": "Answers moved to their nearest occurrence",
        "answers_dropped": "Questions whose answer is not in the text, left out of training",
        "questions_truncated": "Questions truncated to the maximum length",
        "empty_contexts": "Questions about an empty text",
    }
    metrics = tuple(f"{part}{name}" for part in ("", "has_answer_", "no_answer_") for name in ANSWER_METRICS)

    kind: Literal["question_answering"] = "question_answering"
    head: Annotated[QuestionAnsweringHeadConfig | FeedForwardAnsweringHeadConfig, Field(discriminator="kind")] = (
        QuestionAnsweringHeadConfig()
    )
    frozen: bool = Field(default=False, description="train only the head")
    layers: Layers = "last"

    def task(self, data: QuestionData, stored: ModelBundle, training: Sequence[Question]) -> QuestionAnsweringTask:
        """Build the task; ``data.no_answer`` is set from the training examples if it is None."""
        limit = stored.config.backbone.max_position_embeddings
        check_length("max_length", data.max_length, limit, ": longer texts are read in windows")
        if not any(one.spans or not one.answers for one in training if not one.is_empty):
            raise UserError(_NO_ANSWERS)
        no_answer = any(not one.answers for one in training) if data.no_answer is None else data.no_answer
        return QuestionAnsweringTask(data.model_copy(update={"no_answer": no_answer}), stored)

    @classmethod
    def task_from_metadata(cls, data: QuestionData, stored: ModelBundle, *, source: str) -> QuestionAnsweringTask:
        """Rebuild the task of a model that was fine-tuned here or with other software."""
        head = stored.config.head
        if head is None or not head.task_kind.startswith("question_answering"):
            raise UserError(
                f"{source} is not a question answering model; fine-tune it first: homespun finetune "
                f"question-answering ... --from {source}"
            )
        length = min(data.max_length, stored.config.backbone.max_position_embeddings)
        if length < data.max_length:
            limits = {"stride": length // 3, "max_question_length": length // 3, "max_length": length}
            data = data.model_copy(update={name: min(getattr(data, name), most) for name, most in limits.items()})
        return QuestionAnsweringTask(data, stored)

    def build(self, model: Model, config: ModelConfig) -> QuestionAnsweringLoss:
        """Build a new head on the backbone of ``model``, which is modified in place.

        A head of the same kind is kept.
        """
        if config.head != on_layers(self.head, self.layers) or model.head is None:
            model, config = build_token_head(self.head, self.layers, model, config)
        return QuestionAnsweringLoss(model, config, frozen=self.frozen)


@dataclass(frozen=True)
class QuestionAnsweringCollator:
    """Collate rows whose ``label`` is (2,), the positions of first and last token; deterministic."""

    pad_id: int

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        labels = torch.from_numpy(np.array([row.label for row in rows], dtype=np.int64))
        targets = dict.fromkeys(("loss", "accuracy"), float(len(rows)))
        return dataclasses.replace(question_batch(rows, self.pad_id), labels=labels, targets=targets)


class QuestionAnsweringLoss(FineTuningLoss):
    """Compute ``loss``, the mean cross-entropy of both ends, and ``accuracy`` (weight 0) of both ends."""

    def forward(self, batch: Batch) -> Loss:
        """Compute the terms over all tokens except padding."""
        if batch.labels is None:
            raise ValueError("question answering needs a batch with labels")
        logits: Tensor = self.model(batch.input_ids, **batch.context).float()  # (windows, seq, 2)
        if batch.attention_mask is not None:
            logits = logits.masked_fill(~batch.attention_mask[..., None], -torch.inf)
        ends = logits.transpose(1, 2).flatten(0, 1)  # (windows * 2, seq)
        loss = F.cross_entropy(ends, batch.labels.flatten(), reduction="sum") / 2
        right = (logits.argmax(dim=1) == batch.labels).all(dim=1).sum().float()
        count = len(batch.labels)
        return Loss({"loss": Term(loss, count), "accuracy": Term(right, count, weight=0.0)})


class QuestionAnsweringTask:
    """Answers to questions from texts; see `homespun.tasks.protocol.Task`."""

    labels = None
    reported_metrics = ANSWER_METRICS

    def __init__(self, data: QuestionData, stored: ModelBundle) -> None:
        self.data = data
        self.tokenizer: Tokenizer = stored.tokenizer
        self._segments = stored.config.has_segments

    def stratify_by(self, examples: Sequence[Question]) -> NDArray[np.int64]:
        """Group by article, or by text if there is only one article."""
        for keys in ([one.article for one in examples], [one.context for one in examples]):
            numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
            if len(numbers) > 1:
                return np.array([numbers[key] for key in keys], dtype=np.int64)[:, None]
        return np.zeros((len(examples), 0), dtype=np.int64)

    def texts(self, examples: Sequence[Question]) -> list[str]:
        return [f"{one.question} {one.context}" for one in examples]

    def rows(self, examples: Sequence[Question]) -> QuestionRows:
        return QuestionRows(
            examples,
            self.tokenizer,
            length=self.data.max_length,
            stride=self.data.stride,
            question_length=self.data.max_question_length,
            segments=self._segments,
        )

    def training_setup(
        self, objective: QuestionAnswering, stored: ModelBundle, training: QuestionRows
    ) -> TrainingSetup:
        loss = objective.build(copy.deepcopy(stored.model), stored.config)
        collate = QuestionAnsweringCollator(self.tokenizer.pad_id)
        return TrainingSetup(loss, _labelled(training), collate, labelled_rows=_labelled)

    def measure(self, model: Model, rows: QuestionRows, *, batch_size: int) -> Measured:
        """Compute exact match and F1; ``score`` is F1, ``start`` and ``end`` are positions in characters."""
        return self._measured(rows.questions, [candidates[0] for candidates in self._find(model, rows, batch_size)])

    def _find(self, model: Model, rows: QuestionRows, batch_size: int = 32) -> list[list[Answer]]:
        return find_answers(
            model,
            rows,
            n_best=self.data.n_best,
            max_answer_length=self.data.max_answer_length,
            no_answer=bool(self.data.no_answer),
            null_threshold=self.data.null_threshold,
            pad_id=self.tokenizer.pad_id,
            batch_size=batch_size,
        )

    def _measured(self, questions: Sequence[Question], answers: Sequence[Answer]) -> Measured:
        scores = [answer_scores(answer.text, one.answers) for one, answer in zip(questions, answers, strict=True)]
        predictions = [
            {"truth": list(one.answers), "predicted": answer.text, "score": score["f1"]}
            | score
            | {"start": answer.start, "end": answer.end, "probability": answer.probability}
            | ({"id": one.name} if one.name else {})
            for one, answer, score in zip(questions, answers, scores, strict=True)
        ]
        return Measured(mean_answers(scores, [bool(one.answers) for one in questions]), predictions)

    def baselines(self, training: Sequence[Question], test: Sequence[Question]) -> dict[str, Measured]:
        """Evaluate the sentence most similar to the question, and a random span."""
        lengths = [len(answer.split()) for one in training for answer in one.answers]
        texts = list(dict.fromkeys(one.context for one in training))
        measured = {}
        for name, spans in span_baselines(texts, lengths, [(one.question, one.context) for one in test]).items():
            pairs = zip(test, spans, strict=True)
            answers = [Answer(one.context[start:end], start, end, 0.0, 1.0) for one, (start, end) in pairs]
            measured[name] = self._measured(test, answers)
        return measured

    def result_fields(self) -> dict[str, object]:
        settings = {name: getattr(self.data, name) for name in ("stride", "max_answer_length", "no_answer")}
        return {"length": self.data.max_length} | settings

    def to_metadata(self) -> dict[str, object]:
        return task_metadata("question_answering", self.data)

    def predict(
        self, model: Model, records: Iterable[Record], *, source: str, first: int = 1
    ) -> Iterator[dict[str, object]]:
        """Yield ``answer``, its ``start`` and ``end`` in characters, ``probability`` and ``n_best``.

        ``start`` and ``end`` are ``None`` without an answer. A SQuAD article yields a list of these as ``predictions``.
        """
        names = {"question": self.data.question, "context": self.data.context}
        for chunk in numbered_chunks(records, _CHUNK, source=source, first=first):
            parsed = [list(parse_questions(record, **names, answers=None, where=where)) for where, record in chunk]
            rows = self.rows([one for questions in parsed for one in questions])
            answers = iter(zip(self._find(model, rows), rows.cut.tolist(), strict=True))
            for (_, record), questions in zip(chunk, parsed, strict=True):
                predictions = [{"id": one.name} | _prediction(*next(answers)) for one in questions]
                if "paragraphs" in record:
                    yield {"predictions": predictions, "truncated": any(one["truncated"] for one in predictions)}
                else:
                    yield {name: value for name, value in predictions[0].items() if name != "id"}


def _prediction(answers: Sequence[Answer], truncated: bool) -> dict[str, object]:
    n_best = [
        {"answer": one.text, "start": one.start, "end": one.end, "probability": one.probability} for one in answers
    ]
    return n_best[0] | {"n_best": n_best, "truncated": truncated}


def _labelled(rows: QuestionRows) -> Rows:
    """Select the windows for training."""
    numbers = rows.trainable_rows
    if not len(numbers):
        raise UserError(_NO_ANSWERS)
    return rows if len(numbers) == len(rows) else SubsetRows(rows, numbers)


def span_baselines(
    texts: Sequence[str], lengths: Sequence[int], questions: Sequence[tuple[str, str]]
) -> dict[str, list[tuple[int, int]]]:
    """Answer questions without training; spans are in characters.

    ``tfidf-sentence`` is the sentence with the highest TF-IDF cosine similarity to the question. ``random-span`` is a
    random span with as many words as a random training answer, seeded by the index of the question. ``texts`` are those
    of the training, ``lengths`` the words in each of its answers, ``questions`` (question, text) pairs.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(token_pattern=r"(?u)\b\w+\b", sublinear_tf=True)
    try:
        vectorizer.fit([text[begin:end] for text in texts for begin, end in sentence_spans(text)])
    except ValueError:  # no words
        vectorizer = None
    similar: list[tuple[int, int]] = []
    drawn: list[tuple[int, int]] = []
    for index, (question, text) in enumerate(questions):
        sentences = sentence_spans(text) or [(0, 0)]
        best = 0
        if vectorizer is not None:
            vectors = vectorizer.transform([text[begin:end] for begin, end in sentences])
            best = int((vectors @ vectorizer.transform([question]).T).toarray().argmax())
        similar.append(sentences[best])
        draw = random.Random(index)
        words = [match.span() for match in re.finditer(r"\S+", text)] or [(0, 0)]
        count = min(draw.choice(lengths) if lengths else 1, len(words))
        first = draw.randrange(len(words) - count + 1)
        drawn.append((words[first][0], words[first + count - 1][1]))
    return {"tfidf-sentence": similar, "random-span": drawn}
