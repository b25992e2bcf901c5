"""Extractive question answering: readers of questions, and windowed rows of their texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np
import torch
from numpy.typing import NDArray

from homespun.batch import Batch
from homespun.data.labels import get_field
from homespun.data.rows import Row, pad
from homespun.data.token_labels import window_starts
from homespun.errors import UserError
from homespun.text.formats import Record
from homespun.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Question:
    """Question with its text and reference answers."""

    question: str
    context: str
    answers: tuple[str, ...] = ()
    # (start, end) of the answers in characters; answers that are not in the text have none
    spans: tuple[tuple[int, int], ...] = ()
    article: str = ""
    name: str = ""
    realigned: int = 0  # number of answers that were moved to their nearest occurrence

    @property
    def is_empty(self) -> bool:
        """True if the text is blank."""
        return not self.context.strip()


def parse_questions(
    record: Record, *, question: str, context: str, answers: str | None, where: str
) -> Iterator[Question]:
    """Parse the questions of a record; without answers if ``answers`` is ``None``.

    A record is an article of SQuAD's JSON, with ``paragraphs``; or a question with its ``context`` and ``answers``: a
    text, a list of texts, SQuAD's objects with ``text`` and ``answer_start``, or one object with a list of each. A
    question without an answer, or with ``is_impossible``, is unanswerable. An answer that is not at its position is
    moved to the nearest occurrence.

    Raises:
        UserError: a missing column, or answers in another format; the message begins with ``where``.
    """
    if "paragraphs" not in record:
        text = _text(record, context, where)
        title = str(record.get("title") or "")
        yield _question(record, _text(record, question, where), text, answers, title, where)
        return
    title = str(record.get("title") or where)
    for paragraph in _objects(record["paragraphs"], "paragraphs", where):
        text = _text(paragraph, "context", where)
        for entry in _objects(get_field(paragraph, "qas", where=where), "qas", where):
            column = None if answers is None else "answers"
            yield _question(entry, _text(entry, "question", where), text, column, title, where)


def _question(record: Record, question: str, context: str, answers: str | None, article: str, where: str) -> Question:
    name = str(record.get("id") or "")
    if answers is None or _is_impossible(record, where):
        return Question(question, context, article=article, name=name)
    texts, spans, realigned = [], [], 0
    for text, start in _answers(get_field(record, answers, where=where), answers, where):
        texts.append(text)
        if start is not None and start >= 0 and context[start : start + len(text)] == text:
            spans.append((start, start + len(text)))
        elif (nearest := _nearest(context, text, start)) is not None:
            spans.append((nearest, nearest + len(text)))
            realigned += start is not None
    return Question(
        question, context, tuple(dict.fromkeys(texts)), tuple(dict.fromkeys(spans)), article, name, realigned
    )


def _is_impossible(record: Record, where: str) -> bool:
    """True if a record marks its question unanswerable; csv files do so in words."""
    value = record.get("is_impossible")
    if value is None or value != value:  # missing; NaN in tables
        return False
    word = value.strip().lower() if isinstance(value, str) else value
    if word in (True, "true", "1"):
        return True
    if word in (False, "false", "0", ""):
        return False
    raise UserError(f"{where}: is_impossible={value!r:.80} must be true or false, 1 or 0")


def _nearest(context: str, text: str, start: int | None) -> int | None:
    """Return the start of the occurrence of ``text`` nearest to ``start``, or None."""
    starts = [match.start() for match in re.finditer(f"(?={re.escape(text)})", context)]
    return min(starts, key=lambda position: (abs(position - (start or 0)), position), default=None)


def _answers(value: object, column: str, where: str) -> list[tuple[str, int | None]]:
    """Return (text, start) of each answer that is not blank; start is None if unknown."""
    if isinstance(value, Mapping) and isinstance(value.get("text"), list):
        texts = value["text"]
        starts = value.get("answer_start")
        starts = starts[: len(texts)] if isinstance(starts, list) else [starts]
        value = [{"text": text, "answer_start": start} for text, start in zip_longest(texts, starts)]
    values = value if isinstance(value, list | tuple) else [] if value is None or value != value else [value]
    answers = []
    for one in values:
        text, start = (one.get("text"), one.get("answer_start")) if isinstance(one, Mapping) else (one, None)
        if isinstance(text, int | float):
            text = str(text)
        if not isinstance(text, str) or not isinstance(start, int | None):
            raise UserError(
                f"{where}: {column!r} has {one!r:.80}; give texts, or objects with text and answer_start (a number)"
            )
        if text.strip():
            answers.append((text, start))
    return answers


def _text(record: Record, column: str, where: str) -> str:
    value = get_field(record, column, where=where)
    if value is not None and not isinstance(value, str):
        raise UserError(f"{where}: column {column!r} is a {type(value).__name__}; name a column of text")
    return value or ""


def _objects(value: object, key: str, where: str) -> list[Record]:
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise UserError(f"{where}: {key!r} is {value!r:.80}; give a list of objects, as in SQuAD's JSON")
    return value


@dataclass(frozen=True, slots=True)
class Window:
    """Window of ``tokens`` tokens of a question's text from ``start``, at position ``place`` of its row."""

    question: int
    start: int
    tokens: int
    place: int


class QuestionRows:
    """Rows of windows of the texts of questions, ``[CLS] question [SEP] window [SEP]``.

    Special tokens are those of `Tokenizer.pair_template`. ``label`` has the positions of the first and last token of
    the first answer, or 0 and 0 if the window does not contain the complete answer (Devlin et al. 2019, section 4.3).
    ``sentence_ends`` has the end of the question. Questions about a blank text have no row. Two consecutive windows
    share ``stride`` tokens. Questions are truncated to ``question_length`` tokens. With ``segments`` rows have
    ``token_type_ids``.

    Raises:
        UserError: no room for a window and its stride after the longest question.
    """

    def __init__(
        self,
        questions: Sequence[Question],
        tokenizer: Tokenizer,
        *,
        length: int,
        stride: int,
        question_length: int,
        segments: bool = True,
    ) -> None:
        self._segments = segments
        self.questions = questions
        self._template = tokenizer.pair_template
        before, between, after = map(len, self._template)
        special = before + between + after
        self._questions, self.cut = tokenizer.encode_truncated([one.question for one in questions], question_length)
        room = length - special - max(map(len, self._questions), default=0)
        if room - stride < 1:
            raise UserError(
                f"data.max_length={length} leaves {max(room, 0)} tokens for a text after the longest question, which "
                f"must exceed data.stride={stride}; raise it, or lower data.stride or data.max_question_length"
            )
        contexts = list(dict.fromkeys(one.context for one in questions))
        self._texts = dict(zip(contexts, tokenizer.encode_with_offsets(contexts), strict=True))
        self._answers = [self._tokens_of_answer(one) for one in questions]
        self.windows: list[Window] = []
        for number, one in enumerate(questions):
            ids, _ = self._texts[one.context]
            if not one.is_empty and len(ids):
                place = before + len(self._questions[number]) + between
                room = length - place - after
                for begin in window_starts(len(ids), room, room - stride).tolist():
                    self.windows.append(Window(number, begin, len(ids[begin : begin + room]), place))
        self.lengths: NDArray[np.int64] = np.array([w.place + w.tokens + after for w in self.windows], dtype=np.int64)
        first = np.array([window.question for window in self.windows], dtype=np.int64)
        self.counts: dict[str, int] = {
            "empty_contexts": sum(one.is_empty for one in questions),
            "answers_realigned": sum(one.realigned for one in questions),
            "answers_dropped": sum(bool(one.answers) and not one.spans for one in questions),
            "windowed": int((np.bincount(first, minlength=1) > 1).sum()),
            "questions_truncated": int(self.cut.sum()),
        }

    def _tokens_of_answer(self, question: Question) -> tuple[int, int] | None:
        """Return the first and last token of the first answer in the text."""
        if not question.spans:
            return None
        start, end = question.spans[0]
        _, offsets = self._texts[question.context]
        inside = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < end) & (offsets[:, 1] > offsets[:, 0]))
        return (int(inside[0]), int(inside[-1])) if len(inside) else None

    @property
    def trainable_rows(self) -> NDArray[np.int64]:
        """Return the (n,) numbers of the training rows: all except questions whose answers are not in the text."""
        pairs = zip(self._answers, self.questions, strict=True)
        trainable = [answer is not None or not question.answers for answer, question in pairs]
        return np.array([i for i, window in enumerate(self.windows) if trainable[window.question]], dtype=np.int64)

    def offsets(self, window: Window) -> NDArray[np.int64]:
        """Return (tokens, 2) start and end of each token of a window, in characters."""
        _, offsets = self._texts[self.questions[window.question].context]
        return offsets[window.start : window.start + window.tokens]

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> Row:
        window = self.windows[index]
        ids, _ = self._texts[self.questions[window.question].context]
        piece = ids[window.start : window.start + window.tokens]
        before, between, after = self._template
        parts = (before, self._questions[window.question], between, piece, after)
        input_ids = np.concatenate(parts, dtype=np.int64, casting="unsafe")
        label = np.zeros(2, dtype=np.int64)
        answer = self._answers[window.question]
        if answer is not None and window.start <= answer[0] and answer[1] < window.start + window.tokens:
            label = np.array(answer, dtype=np.int64) - window.start + window.place
        return Row(
            input_ids,
            token_type_ids=(np.arange(len(input_ids)) >= window.place).astype(np.int64) if self._segments else None,
            sentence_ends=np.array([window.place, len(input_ids)], dtype=np.int64),
            label=label,
        )


def question_batch(rows: Sequence[Row], pad_id: int) -> Batch:
    """Pad windows to a batch whose question tokens are global tokens (Beltagy et al. 2020, section 6)."""
    batch = pad(rows, pad_id)
    mask = np.zeros(batch.input_ids.shape, dtype=np.bool_)
    for line, row in zip(mask, rows, strict=True):
        assert row.sentence_ends is not None
        line[: int(row.sentence_ends[0])] = True
    return replace(batch, global_attention_mask=torch.from_numpy(mask))
