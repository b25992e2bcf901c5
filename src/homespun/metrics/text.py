"""Metrics of texts against references: exact match and F1 of answers (SQuAD), ROUGE (Lin 2004)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean

from homespun.errors import UserError
from homespun.metrics.classification import Metrics

ANSWER_METRICS = ("exact_match", "f1")
ROUGE_METRICS = ("rouge1", "rouge2", "rougeL")

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_answer(text: str) -> str:
    """Lower-case, and remove ASCII punctuation, articles and extra white space, as SQuAD's script."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def answer_scores(predicted: str, references: Sequence[str]) -> dict[str, float]:
    """``exact_match`` and ``f1`` over words, 0 to 1: the best over the reference answers.

    Follows SQuAD's script (Rajpurkar et al. 2016, section 6.1; 2018). References that are empty once normalised are
    skipped; without others, the empty answer is right.
    """
    answer, truths = normalise_answer(predicted), list(filter(None, map(normalise_answer, references))) or [""]
    return {
        "exact_match": float(answer in truths),
        "f1": max(_f1(answer.split(), truth.split()) for truth in truths),
    }


def _f1(predicted: Sequence[str], reference: Sequence[str]) -> float:
    if not predicted or not reference:
        return float(predicted == reference)
    common = sum((Counter(predicted) & Counter(reference)).values())
    return 2 * common / (len(predicted) + len(reference))


def mean_answers(scores: Sequence[dict[str, float]], answerable: Sequence[bool]) -> Metrics:
    """Mean scores of questions with ``rows``; also by questions with and without an answer, if there are both."""
    metrics: Metrics = {"rows": len(scores), **_means(scores)}
    if len(set(answerable)) == 2:
        for name, wanted in (("has_answer", True), ("no_answer", False)):
            selected = [score for score, has_answer in zip(scores, answerable, strict=True) if has_answer == wanted]
            metrics |= {f"{name}_{metric}": value for metric, value in _means(selected).items()}
    return metrics


def _means(scores: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: fmean(score[name] for score in scores) for name in ANSWER_METRICS}


class Rouge:
    """F1 of ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004) by the package rouge-score with stemming. Raises `UserError`
    without it.
    """

    def __init__(self) -> None:
        try:
            from rouge_score.rouge_scorer import RougeScorer
        except ImportError:
            raise UserError("ROUGE needs the package rouge-score; pip install 'homespun[metrics]'") from None
        self._scorer = RougeScorer(list(ROUGE_METRICS), tokenizer=_StemmingTokenizer())

    def scores(self, text: str, references: Sequence[str]) -> dict[str, float]:
        """F1 of each of `ROUGE_METRICS`, 0 to 1, against the best reference."""
        scores = self._scorer.score_multi(list(references), text)
        return {name: float(scores[name].fmeasure) for name in ROUGE_METRICS}


class _StemmingTokenizer:
    """Tokenizer of rouge-score with Porter's stemmer, whose stems of known words are kept: most of its time."""

    def __init__(self) -> None:
        from nltk.stem.porter import PorterStemmer

        self.stem = lru_cache(1 << 16)(PorterStemmer().stem)

    def tokenize(self, text: str) -> list[str]:
        """Return the stems of the words of a text."""
        from rouge_score.tokenize import tokenize

        return list(tokenize(text, self))


def mean_scores(scores: Sequence[dict[str, float]], texts: Sequence[str], targets: Sequence[str]) -> Metrics:
    """Mean scores of texts, with ``rows`` and the mean number of ``words``.

    ``commonest`` and ``commonest_target`` are the shares of the most frequent text and target: a model that generates
    the same text for all sources may still have fair scores.
    """
    means = {name: fmean(score[name] for score in scores) for name in ROUGE_METRICS}
    words = fmean(len(text.split()) for text in texts)
    shares = {"commonest": _commonest(texts), "commonest_target": _commonest(targets)}
    return {"rows": len(scores), **means, "words": words, **shares}


def unsupported_numbers(texts: Sequence[str], targets: Sequence[str], sources: Sequence[str]) -> Metrics:
    """Return the share of the numbers in texts, and in targets, that are not in their sources.

    The keys are ``unsupported_numbers`` and ``unsupported_numbers_target``; 0 without numbers. A model that invents
    figures may still have a good ROUGE.
    """
    shares = {"unsupported_numbers": texts, "unsupported_numbers_target": targets}
    return {name: _unsupported(written, sources) for name, written in shares.items()}


def _unsupported(texts: Sequence[str], sources: Sequence[str]) -> float:
    found = [(set(_NUMBER.findall(text)), source) for text, source in zip(texts, sources, strict=True)]
    missing = sum(len(numbers - set(_NUMBER.findall(source))) for numbers, source in found if numbers)
    return missing / max(1, sum(len(numbers) for numbers, _ in found))


def _commonest(texts: Sequence[str]) -> float:
    return max(Counter(texts).values()) / len(texts)
