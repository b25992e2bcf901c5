"""Question answering: the span of a text that answers a question (Devlin et al. 2019, sections 4.2 and 4.3)."""

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
from homespun.data.loader import Collate
from homespun.data.question_answering import Question, QuestionRows, parse_questions, question_batch, read_questions
from homespun.data.rows import Row, Rows, SubsetRows
from homespun.errors import UserError
from homespun.inference.question_answering import Answer, find_answers
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

_CHUNK = 64  # records read ahead in prediction, of which one may be an article with many questions
_NOTHING = "there is nothing to learn: no answer stands in its text; are data.context and data.answers right?"


class QuestionData(TaskData):
    """Questions with the texts that answer them. Articles are not divided between training and validation."""

    missing = "which questions? give data.train=FILE: SQuAD's JSON, or rows with question, context and answers"
    default_objective = "question_answering"
    from_heads = ("question_answering", "question_answering_ffn")
    not_stored = ("encoding",)

    kind: Literal["questions"] = "questions"
    question: str = Field(default="question", description="column of the question, where rows are not SQuAD's articles")
    context: str = Field(default="context", description="column of the text")
    answers: str = Field(default="answers", description="column of the answers")
    max_length: int = Field(
        default=384, ge=16, description="tokens of a window, the question and special ones included"
    )
    stride: int = Field(default=128, ge=0, description="tokens of the text that a window repeats of the one before")
    max_question_length: int = Field(default=64, ge=1, description="tokens of a question at the most")
    max_answer_length: int = Field(default=30, ge=1, description="tokens of an answer at the most")
    n_best: int = Field(default=20, ge=1, description="candidates that are kept for each question")
    no_answer: bool | None = Field(
        default=None, description="a text may not hold the answer; found from the training examples where not given"
    )
    null_threshold: float = Field(
        default=0.0, description="predict no answer where its score is so much above the best answer's"
    )

    def read_files(self, inputs: Sequence[str]) -> list[Question]:
        """Read questions from any files."""
        return read_questions(
            inputs,
            question=self.question,
            context=self.context,
            answers=self.answers,
            columns=self.columns,
            encoding=self.encoding,
        )

    def rename_columns(self, text: Sequence[str], label: str | None) -> dict[str, object]:
        """Take ``text`` for the columns of question and text, or the text alone; ``label`` for that of the answers."""
        return {
            "question": text[0] if len(text) > 1 else self.question,
            "context": text[-1] if text else self.context,
            "answers": label or self.answers,
        }


class QuestionAnswering(TaskObjective):
    """First and last token of an answer, by cross entropy over the tokens of a window; without an answer, ``[CLS]``."""

    data_kinds = ("questions",)
    description = "extractive question answering"
    count_titles: ClassVar[Mapping[str, str]] = {
        "answers_realigned": "Answers moved to their nearest occurrence",
        "answers_dropped": "Questions whose answer is not in the text, left out of training",
        "questions_truncated": "Questions truncated to the length of the model",
        "empty_contexts": "Questions about an empty text",
    }
    metrics = tuple(f"{part}{name}" for part in ("", "has_answer_", "no_answer_") for name in ANSWER_METRICS)

    kind: Literal["question_answering"] = "question_answering"
    head: Annotated[QuestionAnsweringHeadConfig | FeedForwardAnsweringHeadConfig, Field(discriminator="kind")] = (
        QuestionAnsweringHeadConfig()
    )
    frozen: bool = Field(default=False, description="train the head alone; the encoder stays as it is")
    layers: Layers = "last"

    def task(self, data: QuestionData, stored: ModelBundle, training: Sequence[Question]) -> QuestionAnsweringTask:
        """Build the task; without ``data.no_answer`` the training examples decide it.

        Raises:
            UserError: a length beyond the model's, or no question that has a text.
        """
        limit = stored.config.backbone.max_position_embeddings
        check_length("max_length", data.max_length, limit, ": longer texts are read in windows")
        if not any(one.spans or not one.answers for one in training if not one.is_empty):
            raise UserError(_NOTHING)
        none = any(not one.answers for one in training) if data.no_answer is None else data.no_answer
        return QuestionAnsweringTask(data.model_copy(update={"no_answer": none}), stored)

    @classmethod
    def task_from_metadata(cls, data: QuestionData, stored: ModelBundle, *, source: str) -> QuestionAnsweringTask:
        """Rebuild the task of a model that was fine-tuned here or with other software."""
        head = stored.config.head
        if head is None or not head.task_kind.startswith("question_answering"):
            raise UserError(
                f"{source} does not find answers; fine-tune it first: homespun finetune question-answering ... "
                f"--from {source}"
            )
        length = min(data.max_length, stored.config.backbone.max_position_embeddings)
        if length < data.max_length:
            limits = {"stride": length // 3, "max_question_length": length // 3, "max_length": length}
            data = data.model_copy(update={name: min(getattr(data, name), most) for name, most in limits.items()})
        return QuestionAnsweringTask(data, stored)

    def collate(self, pad_id: int) -> Collate:
        """Build the collate."""
        return QuestionAnsweringCollate(pad_id)

    def build(self, model: Model, config: ModelConfig) -> QuestionAnsweringLoss:
        """Build a new head on the backbone of ``model``, which is changed, not copied; ``config`` is its config.

        A model that was fine-tuned before with the same kind of head keeps its head.
        """
        if config.head != on_layers(self.head, self.layers) or model.head is None:
            model, config = build_token_head(self.head, self.layers, model, config)
        return QuestionAnsweringLoss(model, config, frozen=self.frozen)


@dataclass(frozen=True)
class QuestionAnsweringCollate:
    """Rows whose ``label`` is (2,), the positions of the first and the last token, to a `Batch`."""

    pad_id: int

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        """Collate rows; not random."""
        labels = torch.from_numpy(np.array([row.label for row in rows], dtype=np.int64))
        targets = dict.fromkeys(("loss", "accuracy"), float(len(rows)))
        return dataclasses.replace(question_batch(rows, self.pad_id), labels=labels, targets=targets)


class QuestionAnsweringLoss(FineTuningLoss):
    """Terms ``loss``, the mean of both ends' cross entropies, and ``accuracy`` (weight 0): both ends are right."""

    def forward(self, batch: Batch) -> Loss:
        """Compute the terms over all tokens of a row but its padding."""
        if batch.labels is None:
            raise ValueError("span answers need a batch with labels")
        logits: Tensor = self.model(batch.input_ids, **batch.context).float()  # (windows, seq, 2)
        if batch.attention_mask is not None:
            logits = logits.masked_fill(~batch.attention_mask[..., None], -torch.inf)
        ends = logits.transpose(1, 2).flatten(0, 1)  # (windows * 2, seq)
        loss = F.cross_entropy(ends, batch.labels.flatten(), reduction="sum") / 2
        right = (logits.argmax(dim=1) == batch.labels).all(dim=1).sum().float()
        count = len(batch.labels)
        return Loss({"loss": Term(loss, count), "accuracy": Term(right, count, weight=0.0)})


class QuestionAnsweringTask:
    """Answers out of texts; see `homespun.tasks.protocol.Task`."""

    labels = None
    reported_metrics = ANSWER_METRICS

    def __init__(self, data: QuestionData, stored: ModelBundle) -> None:
        self.data = data
        self.tokenizer: Tokenizer = stored.tokenizer
        self._segments = stored.config.backbone.type_vocab_size > 1

    def stratify_by(self, examples: Sequence[Question]) -> NDArray[np.int64]:
        """Group by article, or by text if all are of one article."""
        for keys in ([one.article for one in examples], [one.context for one in examples]):
            numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
            if len(numbers) > 1:
                return np.array([numbers[key] for key in keys], dtype=np.int64)[:, None]
        return np.zeros((len(examples), 0), dtype=np.int64)

    def texts(self, examples: Sequence[Question]) -> list[str]:
        """Return the questions, each before its text."""
        return [f"{one.question} {one.context}" for one in examples]

    def rows(self, examples: Sequence[Question]) -> QuestionRows:
        """Return a row a window."""
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
        """Build a new head on the encoder."""
        loss = objective.build(copy.deepcopy(stored.model), stored.config)
        rows, collate = _labelled(training), objective.collate(self.tokenizer.pad_id)
        return TrainingSetup(loss, loss.model, rows, collate, loss.export_model, labelled_rows=_labelled)

    def measure(self, model: Model, rows: QuestionRows, *, batch_size: int) -> Measured:
        """Compute exact match and F1; ``score`` is F1, ``start`` and ``end`` are characters of the text."""
        answers = self._find(model, rows, batch_size)
        return self._measured(rows.questions, [found[0] for found in answers])

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
        scores = [answer_scores(given.text, one.answers) for one, given in zip(questions, answers, strict=True)]
        predictions = [
            {"truth": list(one.answers), "predicted": given.text, "score": score["f1"]}
            | score
            | {"start": given.start, "end": given.end, "probability": given.probability}
            | ({"id": one.name} if one.name else {})
            for one, given, score in zip(questions, answers, scores, strict=True)
        ]
        return Measured(mean_answers(scores, [bool(one.answers) for one in questions]), predictions)

    def baselines(self, training: Sequence[Question], test: Sequence[Question]) -> dict[str, Measured]:
        """Evaluate the sentence most similar to the question, and a random span."""
        lengths = [len(answer.split()) for one in training for answer in one.answers]
        known = list(dict.fromkeys(one.context for one in training))
        found = span_baselines(known, lengths, [(one.question, one.context) for one in test])
        return {
            name: self._measured(
                test,
                [
                    Answer(one.context[start:end], start, end, 0.0, 1.0)
                    for one, (start, end) in zip(test, spans, strict=True)
                ],
            )
            for name, spans in found.items()
        }

    def result_fields(self) -> dict[str, object]:
        """Return how the texts are searched."""
        settings = {name: getattr(self.data, name) for name in ("stride", "max_answer_length", "no_answer")}
        return {"length": self.data.max_length} | settings

    def to_metadata(self) -> dict[str, object]:
        """Return how the questions are read and answered."""
        return task_metadata("question_answering", self.data)

    def predict(self, model: Model, records: Iterable[Record], *, source: str) -> Iterator[dict[str, object]]:
        """Yield ``answer``, ``start`` and ``end`` in characters (``None`` without an answer), ``probability`` and
        ``n_best``, the candidates; of a record that is an article of SQuAD's, ``predictions``, a list of these.
        """
        names = {"question": self.data.question, "context": self.data.context}
        for chunk in numbered_chunks(records, _CHUNK, source=source):
            asked = [list(parse_questions(record, **names, answers=None, where=where)) for where, record in chunk]
            rows = self.rows([one for questions in asked for one in questions])
            found = iter(zip(self._find(model, rows), rows.cut.tolist(), strict=True))
            for (_, record), questions in zip(chunk, asked, strict=True):
                predictions = [_prediction(*next(found)) for _ in questions]
                if "paragraphs" not in record:
                    yield predictions[0]
                    continue
                named = [{"id": one.name} | given for one, given in zip(questions, predictions, strict=True)]
                yield {"predictions": named, "truncated": any(given["truncated"] for given in predictions)}


def _prediction(answers: Sequence[Answer], truncated: bool) -> dict[str, object]:
    best, *_ = listed = [
        {"answer": one.text, "start": one.start, "end": one.end, "probability": one.probability} for one in answers
    ]
    return best | {"n_best": listed, "truncated": truncated}


def _labelled(rows: QuestionRows) -> Rows:
    """Select the windows that have a label."""
    numbers = rows.trainable_rows
    if not len(numbers):
        raise UserError(_NOTHING)
    return rows if len(numbers) == len(rows) else SubsetRows(rows, numbers)


def span_baselines(
    texts: Sequence[str], lengths: Sequence[int], asked: Sequence[tuple[str, str]]
) -> dict[str, list[tuple[int, int]]]:
    """Answer questions without training; spans are in characters.

    ``tfidf-sentence`` is the sentence with the highest TF-IDF cosine to the question; ``random-span`` as many words as
    one of the training's answers, anywhere, drawn from the index of the question alone.

    Args:
        texts: of the training, for the inverse document frequencies of words.
        lengths: of the training's answers, in words.
        asked: (question, text) each.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(token_pattern=r"(?u)\b\w+\b", sublinear_tf=True)
    try:
        vectorizer.fit([text[begin:end] for text in texts for begin, end in sentence_spans(text)])
    except ValueError:  # no word: any sentence is as good as another
        vectorizer = None
    similar: list[tuple[int, int]] = []
    drawn: list[tuple[int, int]] = []
    for index, (question, text) in enumerate(asked):
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
        drawn.append((words[first][0], words[first + max(count, 1) - 1][1]))
    return {"tfidf-sentence": similar, "random-span": drawn}
