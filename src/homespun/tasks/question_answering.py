"""Finding the answers to questions in texts, in the format of SQuAD."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from homespun.baselines import span_baselines
from homespun.data.loader import Loader
from homespun.data.question_answering import Question, QuestionRows, parse_questions, read_questions
from homespun.data.regression import SubsetRows
from homespun.data.rows import Rows
from homespun.errors import UserError
from homespun.inference.question_answering import Answer, find_answers
from homespun.metrics.qa import METRICS, answer_scores, mean_answers
from homespun.models.bundle import ModelBundle
from homespun.models.model import Model
from homespun.models.scalar_mix import kind_of_head
from homespun.objectives.question_answering import ExtractiveQA
from homespun.tasks.protocol import Lesson, Measured, Task, TaskData, check_length
from homespun.text.tokenizer import Tokenizer
from homespun.training.validation import EvalResult, evaluate_loss

_AHEAD = 64  # records read ahead in prediction, of which one may be an article with many questions

_NOTHING = "there is nothing to learn: no answer stands in its text; are data.context and data.answers right?"


class QuestionData(TaskData):
    """Questions with the texts that answer them. Articles are not divided between training and validation."""

    missing = "which questions? give data.train=FILE: SQuAD's JSON, or rows with question, context and answers"
    objectives = ("span_answers",)

    kind: Literal["questions"] = "questions"
    question: str = Field(default="question", description="column of the question, where rows are not SQuAD's articles")
    context: str = Field(default="context", description="column of the text")
    answers: str = Field(default="answers", description="column of the answers")
    length: int = Field(default=384, ge=16, description="tokens of a window, the question and special ones included")
    stride: int = Field(default=128, ge=0, description="tokens of the text that a window repeats of the one before")
    question_length: int = Field(default=64, ge=1, description="tokens of a question at the most")
    max_answer_length: int = Field(default=30, ge=1, description="tokens of an answer at the most")
    n_best: int = Field(default=20, ge=1, description="candidates that are kept for each question")
    no_answer: bool | None = Field(
        default=None, description="a text may not hold the answer; told by the training where not given"
    )
    null_threshold: float = Field(
        default=0.0, description="no answer is said where its score is so much above the best answer's"
    )

    def read_files(self, inputs: Sequence[str]) -> list[Question]:
        """The questions of any files."""
        return read_questions(
            inputs,
            question=self.question,
            context=self.context,
            answers=self.answers,
            columns=self.columns,
            encoding=self.encoding,
        )

    def task(self, objective: Any, stored: ModelBundle, training: Sequence[Any]) -> Task[Any, Any]:
        """Answering them.

        Raises:
            UserError: another objective, a length beyond the model's, or no question that has a text.
        """
        self.check_objective(objective)
        limit = stored.config.backbone.max_position_embeddings
        check_length("length", self.length, limit, ": longer texts are read in windows")
        if not any(one.spans or not one.answers for one in training if not one.is_empty):
            raise UserError(_NOTHING)
        none = any(not one.answers for one in training) if self.no_answer is None else self.no_answer
        return AnswersTask(self.model_copy(update={"no_answer": none}), stored)

    def stored_task(self, stored: ModelBundle, *, source: str) -> Task[Any, Any]:
        """Answering, as the model was fine-tuned for it, here or elsewhere."""
        head = stored.config.head
        if head is None or not kind_of_head(head).startswith("question_answering"):
            raise UserError(
                f"{source} does not find answers; fine-tune it first: homespun finetune answer ... --from {source}"
            )
        length = min(self.length, stored.config.backbone.max_position_embeddings)
        room = {"length": length, "stride": min(self.stride, length // 3)}
        room |= {"question_length": min(self.question_length, length // 3)}
        return AnswersTask(self.model_copy(update=room if length < self.length else {}), stored)

    def rename_columns(self, text: Sequence[str], label: str | None) -> dict[str, Any]:
        """``text`` are the columns of question and text, or that of the text alone; ``label`` that of the answers."""
        return {
            "question": text[0] if len(text) > 1 else self.question,
            "context": text[-1] if text else self.context,
            "answers": label or self.answers,
        }


class AnswersTask:
    """Answers out of texts; see `homespun.tasks.protocol.Task`."""

    labels = None
    measures = METRICS

    def __init__(self, data: QuestionData, stored: ModelBundle) -> None:
        self.data = data
        self.tokenizer: Tokenizer = stored.tokenizer
        self._segments = stored.config.backbone.type_vocab_size > 1

    def strata(self, examples: Sequence[Question]) -> NDArray[np.int64]:
        """Their articles, or their texts where there is one article, are not divided."""
        for keys in ([one.article for one in examples], [one.context for one in examples]):
            numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
            if len(numbers) > 1:
                return np.array([numbers[key] for key in keys], dtype=np.int64)[:, None]
        return np.zeros((len(examples), 0), dtype=np.int64)

    def texts(self, examples: Sequence[Question]) -> list[str]:
        """The questions, each before its text."""
        return [f"{one.question} {one.context}" for one in examples]

    def rows(self, examples: Sequence[Question]) -> QuestionRows:
        """A row a window."""
        return QuestionRows(
            examples,
            self.tokenizer,
            length=self.data.length,
            stride=self.data.stride,
            question_length=self.data.question_length,
            segments=self._segments,
        )

    def lesson(self, objective: ExtractiveQA, stored: ModelBundle, training: QuestionRows) -> Lesson:
        """A new head on the encoder."""
        module = objective.build(copy.deepcopy(stored.model), stored.config)
        return Lesson(
            module, module.model, _teaching(training), objective.collate(self.tokenizer.pad_id), module.export_model
        )

    def validate(self, lesson: Lesson, rows: QuestionRows, *, batch_size: int) -> EvalResult:
        """The loss over the windows, exact match and F1."""
        loader = Loader(_teaching(rows), lesson.collate, batch_size=batch_size, seed=0)
        found = evaluate_loss(lesson.objective, loader.once(), next(lesson.model.parameters()).device)
        metrics = self.measure(lesson.model, rows, batch_size=batch_size).metrics
        return EvalResult(found.loss, found.losses, metrics)

    def measure(self, model: Model, rows: QuestionRows, *, batch_size: int) -> Measured:
        """Exact match and F1; ``score`` is F1, ``start`` and ``end`` are characters of the text."""
        answers = self._find(model, rows, batch_size)
        return self._measured(rows.questions, [found[0] for found in answers])

    def _find(self, model: Model, rows: QuestionRows, batch_size: int) -> list[list[Answer]]:
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
        scores = [answer_scores(told.text, one.answers) for one, told in zip(questions, answers, strict=True)]
        said = [
            {"truth": list(one.answers), "predicted": told.text, "score": score["f1"]}
            | score
            | {"start": told.start, "end": told.end, "probability": told.probability}
            | ({"id": one.name} if one.name else {})
            for one, told, score in zip(questions, answers, scores, strict=True)
        ]
        return Measured(mean_answers(scores, [bool(one.answers) for one in questions]), said)

    def baselines(self, training: Sequence[Question], test: Sequence[Question]) -> dict[str, Measured]:
        """The sentence most like the question, and a span at random."""
        lengths = [len(answer.split()) for one in training for answer in one.answers]
        known = list(dict.fromkeys(one.context for one in training))
        made = span_baselines(known, lengths, [(one.question, one.context) for one in test])
        return {
            name: self._measured(
                test,
                [
                    Answer(one.context[start:end], start, end, 0.0, 1.0)
                    for one, (start, end) in zip(test, spans, strict=True)
                ],
            )
            for name, spans in made.items()
        }

    def facts(self) -> dict[str, Any]:
        """How the texts are searched."""
        return {name: getattr(self.data, name) for name in ("length", "stride", "max_answer_length", "no_answer")}

    def describe(self) -> dict[str, Any]:
        """How the questions are read and answered."""
        return {"kind": "span_answers", "data": self.data.kind} | self.data.to_metadata("encoding")

    def predict(self, model: Model, records: Iterable[Mapping[str, Any]], *, source: str) -> Iterator[dict[str, Any]]:
        """``answer``, ``start`` and ``end`` in the text in characters (none where there is no answer), ``probability``,
        and ``n_best``, the candidates. Of a record that is an article of SQuAD's: ``predictions``, a list of these.
        """
        waiting = enumerate(records, start=1)
        names = {"question": self.data.question, "context": self.data.context}
        while part := list(islice(waiting, _AHEAD)):
            asked = [
                list(parse_questions(record, **names, answers=None, where=f"row {number} of {source}"))
                for number, record in part
            ]
            rows = self.rows([one for several in asked for one in several])
            found = iter(zip(self._find(model, rows, 32), rows.cut.tolist(), strict=True))
            for (_, record), several in zip(part, asked, strict=True):
                told = [_said(*next(found)) for _ in several]
                if "paragraphs" not in record:
                    yield told[0]
                    continue
                named = [{"id": one.name} | said for one, said in zip(several, told, strict=True)]
                yield {"predictions": named, "truncated": any(said["truncated"] for said in told)}


def _said(answers: Sequence[Answer], truncated: bool) -> dict[str, Any]:
    best, *_ = listed = [
        {"answer": one.text, "start": one.start, "end": one.end, "probability": one.probability} for one in answers
    ]
    return best | {"n_best": listed, "truncated": truncated}


def _teaching(rows: QuestionRows) -> Rows:
    places = rows.trainable_rows
    if not len(places):
        raise UserError(_NOTHING)
    return rows if len(places) == len(rows) else SubsetRows(rows, places)
