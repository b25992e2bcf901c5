"""Exact match and F1 of answers, as in SQuAD's script (Rajpurkar et al. 2016, section 6.1; 2018)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from homespun.metrics.classification import Metrics

METRICS = ("exact_match", "f1")

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_answer(text: str) -> str:
    """Lower case, without ASCII punctuation, articles and extra white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def answer_scores(predicted: str, right: Sequence[str]) -> dict[str, float]:
    """``exact_match`` and ``f1`` over words, 0 to 1: the best over the right answers.

    Answers that are empty once normalised are skipped, as in the script; without others, the empty answer is right.
    """
    truths = [text for text in right if normalise_answer(text)] or [""]
    return {
        "exact_match": max(float(normalise_answer(predicted) == normalise_answer(truth)) for truth in truths),
        "f1": max(_f1(normalise_answer(predicted).split(), normalise_answer(truth).split()) for truth in truths),
    }


def _f1(predicted: Sequence[str], right: Sequence[str]) -> float:
    if not predicted or not right:
        return float(predicted == right)
    common = sum((Counter(predicted) & Counter(right)).values())
    return 2 * common / (len(predicted) + len(right))


def mean_answers(scores: Sequence[dict[str, float]], answerable: Sequence[bool]) -> Metrics:
    """Means over questions with ``rows``; also of those with and without an answer, if there are both."""
    metrics: Metrics = {"rows": len(scores), **_means(scores)}
    if len(set(answerable)) == 2:
        for name, wanted in (("has_answer", True), ("no_answer", False)):
            own = [score for score, has in zip(scores, answerable, strict=True) if has == wanted]
            metrics |= {f"{name}_{metric}": value for metric, value in _means(own).items()}
    return metrics


def _means(scores: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: fmean(score[name] for score in scores) for name in METRICS}
