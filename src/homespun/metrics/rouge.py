"""ROUGE: common words, word pairs and longest subsequence of a text and a reference (Lin 2004)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from homespun.errors import UserError
from homespun.metrics.classification import Metrics

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
            raise UserError("ROUGE needs the package rouge-score; pip install 'homespun[metrics]'") from None
        self._scorer = RougeScorer(list(METRICS), use_stemmer=True)

    def scores(self, text: str, references: Sequence[str]) -> dict[str, float]:
        """F1 of each of `METRICS`, 0 to 1, with the nearest reference."""
        found = self._scorer.score_multi(list(references), text)
        return {name: float(found[name].fmeasure) for name in METRICS}


def mean_scores(scores: Sequence[dict[str, float]], texts: Sequence[str], targets: Sequence[str]) -> Metrics:
    """Means of the scores of texts, with ``rows`` and the mean number of ``words``.

    ``commonest`` and ``commonest_target`` are the shares of the most frequent text and target: a model that always
    writes one text may still have fair scores.
    """
    means = {name: fmean(score[name] for score in scores) for name in METRICS}
    words = fmean(len(text.split()) for text in texts)
    shares = {"commonest": _commonest(texts), "commonest_target": _commonest(targets)}
    return {"rows": len(scores), **means, "words": words, **shares}


def _commonest(texts: Sequence[str]) -> float:
    return max(Counter(texts).values()) / len(texts)
