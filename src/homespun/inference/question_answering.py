"""Extractive question answering: the best spans over all windows of a question."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from homespun.data.question_answering import QuestionRows, question_batch
from homespun.inference.predict import forward_logits
from homespun.models.model import Model


@dataclass(frozen=True, slots=True)
class Answer:
    """Span of a text in characters; no answer is an empty text without span."""

    text: str
    start: int | None
    end: int | None
    score: float  # sum of the logits of start and end
    probability: float  # among the candidates

    @property
    def is_none(self) -> bool:
        """True for no answer."""
        return self.start is None


NO_TEXT = Answer("", None, None, 0.0, 1.0)
"""Answer to a question about an empty text."""


def find_answers(
    model: Model,
    rows: QuestionRows,
    *,
    n_best: int,
    max_answer_length: int,
    no_answer: bool,
    null_threshold: float,
    pad_id: int,
    batch_size: int = 32,
) -> list[list[Answer]]:
    """Find the best answers to each question, at least one, the best first.

    The score of a span is the sum of the logits of its start and end. The score of no answer is that of ``[CLS]``, the
    minimum over the windows; no answer is first if it exceeds the best span's score by more than ``null_threshold``
    (Devlin et al. 2019, section 4.3).

    Args:
        model: returns (batch, seq, 2) logits.
        rows: windows of the questions.
        n_best: maximum number of answers to a question.
        max_answer_length: maximum number of tokens of an answer.
        no_answer: whether no answer is a candidate.
        null_threshold: see above.
        pad_id: padding token.
        batch_size: windows at a time.
    """
    best: list[dict[tuple[int, int], float]] = [{} for _ in rows.questions]
    none = np.full(len(rows.questions), np.inf)
    for numbers, logits in forward_logits(model, rows, partial(question_batch, pad_id=pad_id), batch_size=batch_size):
        for number, values in zip(numbers, logits, strict=True):
            window = rows.windows[number]
            own = best[window.question]
            none[window.question] = min(none[window.question], float(values[0].sum()))
            offsets = rows.offsets(window)
            scores = values[window.place : window.place + window.tokens].astype(np.float64)
            for first, last, score in _spans(scores, offsets, n_best, max_answer_length):
                span = (int(offsets[first, 0]), int(offsets[last, 1]))
                own[span] = max(score, own.get(span, -np.inf))  # it may be in two windows
    return [
        _ranked(question.context, spans, least if no_answer else None, n_best, null_threshold)
        for question, spans, least in zip(rows.questions, best, none.tolist(), strict=True)
    ]


def _spans(
    scores: NDArray[np.float64], offsets: NDArray[np.int64], count: int, longest: int
) -> list[tuple[int, int, float]]:
    """The best ``count`` spans of (tokens, 2) scores, of at most ``longest`` tokens: first, last, score."""
    blank = offsets[:, 0] >= offsets[:, 1]  # no answer starts or ends with white space
    scores = np.where(blank[:, None], -np.inf, scores)
    tokens = len(scores)
    longest = min(longest, tokens)
    ends = np.concatenate([scores[:, 1], np.full(longest - 1, -np.inf)])
    table = scores[:, :1] + np.lib.stride_tricks.sliding_window_view(ends, longest)  # (tokens, tokens of the span)
    flat = table.ravel()
    top = np.argpartition(-flat, min(count, len(flat)) - 1)[:count]
    found = [(index // longest, index // longest + index % longest, float(flat[index])) for index in top.tolist()]
    return [one for one in found if one[2] > -np.inf]


def _ranked(
    context: str, spans: dict[tuple[int, int], float], none: float | None, count: int, threshold: float
) -> list[Answer]:
    ordered = sorted(spans.items(), key=lambda item: (-item[1], item[0]))[:count]
    candidates: list[tuple[tuple[int, int] | None, float]] = [(span, score) for span, score in ordered]
    if none is not None and np.isfinite(none):
        first = not candidates or none - candidates[0][1] > threshold
        later = sum(score >= none for _, score in ordered) or 1  # better than the best span by less than the threshold
        candidates.insert(0 if first else later, (None, none))
    if not candidates:
        return [NO_TEXT]
    values = np.array([score for _, score in candidates])
    shares = np.exp(values - values.max())
    shares /= shares.sum()
    return [
        Answer("", None, None, score, share)
        if span is None
        else Answer(context[span[0] : span[1]], *span, score, share)
        for (span, score), share in zip(candidates, shares.tolist(), strict=True)
    ]
