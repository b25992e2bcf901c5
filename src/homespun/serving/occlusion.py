"""Effect of each word of a text on a prediction."""

from __future__ import annotations

import functools
import re
import unicodedata
from dataclasses import replace

from pydantic import BaseModel

from homespun.tasks.text_models import TextModel
from homespun.tasks.text_outputs import to_predictions
from homespun.tasks.texts import LabelledText

MAX_PARTS = 100
"""Parts of a text that are left out one after another; a part of a longer text is several words."""
_LEAST = 1e-7  # probability, so that log-odds are finite

Span = tuple[int, int]
_UNITS = re.compile("w+(?:jw+)*|c|s+")
_JOINERS = frozenset("'’-.,_/@\u200c\u200d")  # inside of words and numbers


class Word(BaseModel):
    """Part of a text that was removed; ``score`` is its effect on the log-odds or on the number."""

    text: str
    start: int
    end: int
    score: float
    side: int


class Explanation(BaseModel):
    """Effect of each part of a text on a prediction."""

    label: str | None  # the predicted class, for multi-label models the most probable one; None for regression
    probability: float | None  # probability of the class
    number: float | None  # predicted number of a regression
    words: list[Word]  # the parts, in order
    words_a_part: int  # number of words that were removed together
    truncated: bool  # the text is longer than the model reads


@functools.lru_cache(maxsize=4096)
def _class_of(character: str) -> str:
    """Classify a character: ``w`` of words, ``c`` scripts without spaces, ``s`` symbols, ``j`` joiners, or other."""
    if character in _JOINERS:
        return "j"
    category = unicodedata.category(character)[0]
    if category in "LNM":
        return "c" if unicodedata.name(character, "").startswith(("CJK", "HIRAGANA", "KATAKANA")) else "w"
    return "s" if category == "S" else " "


def split_words(text: str) -> list[Span]:
    """Return (start, end) of the words, numbers and symbols of a text in characters, without punctuation."""
    return [found.span() for found in _UNITS.finditer("".join(map(_class_of, text)))]


def occlude(model: TextModel, example: LabelledText) -> Explanation:
    """Compute the effect of each word on a prediction by removing it (Zeiler and Fergus 2014; Li et al. 2016).

    The score of a word is the log-odds of the predicted class with the word minus the log-odds without it; a positive
    score supports the class. The shortened texts are computed in batches.
    """
    from scipy.special import logit

    parts, words_a_part = _parts(example)
    outputs = model.outputs([example, *(_leave_out(example, side, span) for side, span in parts)])
    table = to_predictions(outputs.values, model.labels, model.decision)
    if model.labels is None:
        label, probability, number, values = None, None, float(table[0]), table
    else:
        best = int(table[0].argmax())
        label, probability, number = model.labels.names[best], float(table[0, best]), None
        values = logit(table[:, best].clip(_LEAST, 1 - _LEAST))
    words = [
        Word(text=_side(example, side)[start:end], start=start, end=end, score=round(float(score), 6), side=side)
        for (side, (start, end)), score in zip(parts, values[0] - values[1:], strict=True)
    ]
    return Explanation(
        label=label,
        probability=probability,
        number=number,
        words=words,
        words_a_part=words_a_part,
        truncated=bool(outputs.truncated[0]),
    )


def _parts(example: LabelledText) -> tuple[list[tuple[int, Span]], int]:
    """Return the side and span of each part, and the number of words a part."""
    sides = [split_words(_side(example, side)) for side in range(1 if example.second is None else 2)]
    size = -(-sum(map(len, sides)) // MAX_PARTS) or 1
    parts = [
        (side, (spans[first][0], spans[min(first + size, len(spans)) - 1][1]))
        for side, spans in enumerate(sides)
        for first in range(0, len(spans), size)
    ]
    return parts, size


def _side(example: LabelledText, side: int) -> str:
    return (example.second or "") if side else example.text


def _leave_out(example: LabelledText, side: int, span: Span) -> LabelledText:
    text, (start, end) = _side(example, side), span
    before, after = text[:start], text[end:]
    if not before or before[-1].isspace():
        after = after.lstrip()  # one space less, as if the word had never been there
    return replace(example, second=before + after) if side else replace(example, text=before + after)
