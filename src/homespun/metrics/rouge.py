"""ROUGE: the words, pairs of words and longest subsequence that a text has in common with a right one (Lin 2004)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from homespun.errors import UserError

METRICS = ("rouge1", "rouge2", "rougeL")


class Rouge:
    """F1 of ROUGE-1, ROUGE-2 and ROUGE-L by the package rouge-score, with its stemmer, as papers report them.

    Raises:
        UserError: the package is not installed.
    """

    def __init__(self) -> None:
        try:
            from rouge_score.rouge_scorer import RougeScorer
        except ImportError:
            raise UserError(
                "texts that were written are measured by ROUGE, which is not installed; pip install 'homespun[metrics]'"
            ) from None
        self._scorer: Any = RougeScorer(list(METRICS), use_stemmer=True)

    def scores(self, text: str, references: Sequence[str]) -> dict[str, float]:
        """Of each of `METRICS`, 0 to 1: that of the reference which the text is nearest to in it."""
        found = self._scorer.score_multi(list(references), text)
        return {name: float(found[name].fmeasure) for name in METRICS}


def mean_scores(scores: Sequence[dict[str, float]], texts: Sequence[str], targets: Sequence[str]) -> dict[str, Any]:
    """The metrics of many texts: the means of their scores, ``rows``, and the mean of their ``words``.

    ``commonest`` is the share of the text that comes most often, and ``commonest_target`` that of the target: a model
    that writes the same of everything has learned what the targets have in common, which may do for a fair score.
    """
    means = {name: fmean(score[name] for score in scores) for name in METRICS}
    words = fmean(len(text.split()) for text in texts)
    shares = {"commonest": _commonest(texts), "commonest_target": _commonest(targets)}
    return {"rows": len(scores), **means, "words": words, **shares}


def _commonest(texts: Sequence[str]) -> float:
    return max(Counter(texts).values()) / len(texts)
