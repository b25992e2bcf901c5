"""Predictions from token logits: answer spans, tags of words, and entities."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from homespun.data.labels import Labels
from homespun.data.question_answering import QuestionRows, question_batch
from homespun.data.rows import pad
from homespun.data.token_labels import TokenLabelRows
from homespun.inference.predict import forward_logits
from homespun.metrics.calibration import probabilities
from homespun.models.model import Model

_LOGITS = 2**27  # logits of a batch of tags: 512 MB
_PROBABILITIES = 2**20  # probabilities of tags at a time: 8 MB


@dataclass(frozen=True, slots=True)
class Answer:
    """Span of a text in characters; *no answer* is an empty text without a span."""

    text: str
    start: int | None
    end: int | None
    score: float  # sum of the logits of start and end
    probability: float  # probability among the candidates


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
    """Find the best answers to each question, sorted by score.

    The score of a span is the sum of the logits of its start and end; the score of *no answer* is the minimum of this
    sum at ``[CLS]`` over the windows. *No answer* is first if its score exceeds the best span's by more than
    ``null_threshold`` (Devlin et al. 2019, section 4.3). It is a candidate only with ``no_answer``.

    Args:
        model: returns (batch, seq, 2) logits.
        rows: windows of the questions.
        n_best: maximum number of answers to a question.
        max_answer_length: maximum number of tokens of an answer.
    """
    best: list[dict[tuple[int, int], float]] = [{} for _ in rows.questions]
    none = np.full(len(rows.questions), np.inf)
    for numbers, logits in forward_logits(model, rows, partial(question_batch, pad_id=pad_id), batch_size=batch_size):
        for number, values in zip(numbers, logits, strict=True):
            window = rows.windows[number]
            spans = best[window.question]
            none[window.question] = min(none[window.question], float(values[0].sum()))
            offsets = rows.offsets(window)
            scores = values[window.place : window.place + window.tokens].astype(np.float64)
            for first, last, score in _spans(scores, offsets, n_best, max_answer_length):
                span = (int(offsets[first, 0]), int(offsets[last, 1]))
                spans[span] = max(score, spans.get(span, -np.inf))  # a span may lie in two windows
    return [
        _rank(question.context, spans, score if no_answer else None, n_best, null_threshold)
        for question, spans, score in zip(rows.questions, best, none.tolist(), strict=True)
    ]


def _spans(
    scores: NDArray[np.float64], offsets: NDArray[np.int64], count: int, max_length: int
) -> list[tuple[int, int, float]]:
    """Find the ``count`` best spans of (tokens, 2) scores, as first token, last token and score."""
    blank = offsets[:, 0] >= offsets[:, 1]  # no answer starts or ends with white space
    scores = np.where(blank[:, None], -np.inf, scores)
    tokens = len(scores)
    length = min(max_length, tokens)
    ends = np.concatenate([scores[:, 1], np.full(length - 1, -np.inf)])
    table = scores[:, :1] + np.lib.stride_tricks.sliding_window_view(ends, length)  # (tokens, tokens of the span)
    flat = table.ravel()
    top = np.argpartition(-flat, min(count, len(flat)) - 1)[:count]
    spans = [(index // length, index // length + index % length, float(flat[index])) for index in top.tolist()]
    return [span for span in spans if span[2] > -np.inf]


def _rank(
    context: str, spans: dict[tuple[int, int], float], none: float | None, count: int, threshold: float
) -> list[Answer]:
    ordered = sorted(spans.items(), key=lambda item: (-item[1], item[0]))[:count]
    candidates: list[tuple[tuple[int, int] | None, float]] = [(span, score) for span, score in ordered]
    if none is not None and np.isfinite(none):
        first = not candidates or none - candidates[0][1] > threshold
        later = sum(score >= none for _, score in ordered) or 1  # the lead is below the threshold
        candidates.insert(0 if first else later, (None, none))
    if not candidates:  # an empty text has no span
        return [Answer("", None, None, 0.0, 1.0)]
    from scipy.special import softmax

    shares = softmax([score for _, score in candidates])
    return [
        Answer("", None, None, score, share)
        if span is None
        else Answer(context[span[0] : span[1]], *span, score, share)
        for (span, score), share in zip(candidates, shares.tolist(), strict=True)
    ]


def predict_tags(
    model: Model, rows: TokenLabelRows, labels: Labels, *, pad_id: int, batch_size: int = 32
) -> list[tuple[list[str], NDArray[np.float64]]]:
    """Predict the tags of the words of each sentence, and their (words,) probabilities.

    A word without tokens has the tag ``O``, or the first, and the probability 0. Memory is bounded for any number of
    tags.
    """
    unseen = labels.names.index("O") if "O" in labels.names else 0
    found = [(np.full(len(s.words), unseen), np.zeros(len(s.words))) for s in rows.sentences]
    longest = int(rows.lengths.max(initial=1))
    batch_size = max(1, min(batch_size, _LOGITS // (len(labels) * longest)))
    step = max(1, _PROBABILITIES // len(labels))
    for numbers, logits in forward_logits(model, rows, partial(pad, pad_id=pad_id), batch_size=batch_size):
        for number, values in zip(numbers, logits, strict=True):
            positions, words = rows.first_pieces(number)
            tags, certain = found[rows.owner(number)]
            for start in range(0, len(words), step):
                part = slice(start, start + step)
                table = probabilities(values[positions[part]], labels)  # (words, tags)
                tags[words[part]], certain[words[part]] = table.argmax(axis=1), table.max(axis=1)
    return [([labels.names[number] for number in tags.tolist()], certain) for tags, certain in found]
