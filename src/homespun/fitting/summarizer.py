"""Extractive summarizer of a fit: training within a time limit, and choice of the number of sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import ClassVar

import numpy as np

from homespun.data.source_target import SourceTargetPair
from homespun.extractive import SentenceRanker, fit_ranker, join, with_count
from homespun.metrics.classification import Metrics
from homespun.metrics.text import Rouge
from homespun.tasks.seq2seq_data import TextPairsData
from homespun.tasks.summaries import measure_texts, sentence_baselines
from homespun.tasks.summarizers import ExtractiveSummarizer
from homespun.text.clean import split_sentences

_WORD_COST = 15e-6  # seconds on one core for a word of a source
_MOST_WORDS = 3_000_000  # whose features take about 1 GB
_MORE_SENTENCES = 2  # than the median reference, at most


@dataclass(frozen=True)
class SummarizerPlan:
    """Share of the training examples, and expected seconds with the final training."""

    title: ClassVar[str] = "extractive summarizer"
    share: float
    seconds: float


def plan_summarizer(training: Sequence[SourceTargetPair], seconds: float) -> SummarizerPlan:
    """Choose examples for a time limit, for two trainings: the choice of the number of sentences, and the final one."""
    words = max(1, sum(len(pair.source.split()) for pair in training))
    share = min(1.0, seconds / (2 * words * _WORD_COST), _MOST_WORDS / words)
    return SummarizerPlan(share, 2 * share * words * _WORD_COST)


@dataclass(frozen=True)
class SummarizerFit:
    """An extractive summarizer with the examples and the plan of its training."""

    name: ClassVar[str] = "extractive"
    model: ExtractiveSummarizer
    parts: Mapping[str, list[SourceTargetPair]]
    plan: SummarizerPlan
    seed: int

    def measure(self, part: str) -> Metrics:
        """Evaluate the summarizer on a split of the examples."""
        return self.model.measure(self.parts[part]).metrics

    def baselines(self) -> dict[str, Metrics]:
        """Evaluate the first and the most central sentences on the test examples."""
        rouge, test = Rouge(), self.parts["test"]
        texts = sentence_baselines([pair.targets[0] for pair in self.parts["train"]], [pair.source for pair in test])
        strong = {name: found for name, found in texts.items() if name.startswith(("lead", "central"))}
        return {name: measure_texts(self.model.data, test, found, rouge).metrics for name, found in strong.items()}

    def with_validation(self) -> SummarizerFit:
        """Train on training and validation examples together, with the same number of sentences."""
        ranker = _fit([*self.parts["train"], *self.parts["validation"]], self.plan.share, self.seed)
        ranker = with_count(ranker, self.model.model.count)
        return replace(self, model=replace(self.model, model=ranker))


def fit_summarizer(
    data: TextPairsData, parts: Mapping[str, list[SourceTargetPair]], plan: SummarizerPlan, *, seed: int
) -> SummarizerFit:
    """Train a summarizer; validation examples choose the number of sentences by ROUGE-L.

    Raises:
        UserError: the texts have too few words, or the package rouge-score is missing.
    """
    rouge, ranker = Rouge(), _fit(parts["train"], plan.share, seed)
    typical = round(median(len(split_sentences(pair.targets[0])) for pair in parts["train"]))
    texts = [split_sentences(pair.source) for pair in parts["validation"]]
    rankings = ranker.rank(texts)

    def reached(count: int) -> float:
        summaries = (join(text, ranked, count) for text, ranked in zip(texts, rankings, strict=True))
        pairs = zip(summaries, parts["validation"], strict=True)
        return fmean(rouge.scores(summary, pair.targets)["rougeL"] for summary, pair in pairs)

    count = max(range(max(1, typical - _MORE_SENTENCES), max(1, typical) + _MORE_SENTENCES + 1), key=reached)
    return SummarizerFit(ExtractiveSummarizer(with_count(ranker, count), data), parts, plan, seed)


def _fit(pairs: Sequence[SourceTargetPair], share: float, seed: int) -> SentenceRanker:
    order = np.random.default_rng(seed).permutation(len(pairs))[: max(1, round(share * len(pairs)))]
    chosen = [pairs[index] for index in np.sort(order)]
    return fit_ranker([pair.source for pair in chosen], [pair.targets for pair in chosen])
