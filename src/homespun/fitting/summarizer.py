"""Extractive summarizer of a fit: training within a time limit, and choice of the number of sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import ClassVar

from homespun.data.source_target import SourceTargetPair
from homespun.extractive import SentenceRanker, count_words, fit_ranker, join, with_count
from homespun.metrics.classification import Metrics
from homespun.metrics.text import Rouge
from homespun.tasks.seq2seq_data import TextPairsData
from homespun.tasks.summaries import measure_texts, sentence_baselines, typical_count
from homespun.tasks.summarizers import ExtractiveSummarizer
from homespun.text.clean import split_sentences

_WORD_COST = 15e-6  # seconds on one core for a word of a source
_MOST_WORDS = 3_000_000  # whose features take about 1 GB
_MORE_SENTENCES = 2  # or fewer than the median reference, at most


@dataclass(frozen=True)
class SummarizerPlan:
    """Share of the training examples, maximum words, and expected seconds with the final training."""

    title: ClassVar[str] = "extractive summarizer"
    share: float
    max_words: int
    seconds: float


def plan_summarizer(training: Sequence[SourceTargetPair], seconds: float) -> SummarizerPlan:
    """Choose examples for a time limit, for two trainings: the choice of the number of sentences, and the final one."""
    words = max(1, count_words([pair.source for pair in training]))
    max_words = min(_MOST_WORDS, round(seconds / (2 * _WORD_COST)))
    return SummarizerPlan(min(1.0, max_words / words), max_words, 2 * min(words, max_words) * _WORD_COST)


@dataclass(frozen=True)
class SummarizerFit:
    """An extractive summarizer with the examples and the plan of its training."""

    name: ClassVar[str] = "extractive"
    model: ExtractiveSummarizer
    parts: Mapping[str, list[SourceTargetPair]]
    plan: SummarizerPlan

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
        pairs = [*self.parts["train"], *self.parts["validation"]]
        ranker = with_count(_fit(pairs, self.plan), self.model.model.count)
        return replace(self, model=replace(self.model, model=ranker))


def fit_summarizer(
    data: TextPairsData, parts: Mapping[str, list[SourceTargetPair]], plan: SummarizerPlan
) -> SummarizerFit:
    """Train a summarizer; validation examples choose the number of sentences by ROUGE-L.

    Raises:
        UserError: the texts have too few words, or the package rouge-score is missing.
    """
    rouge, ranker = Rouge(), _fit(parts["train"], plan)
    typical = typical_count([pair.targets[0] for pair in parts["train"]])
    texts = [split_sentences(pair.source) for pair in parts["validation"]]
    rankings = ranker.rank(texts)

    def reached(count: int) -> float:
        summaries = (join(text, ranked, count) for text, ranked in zip(texts, rankings, strict=True))
        pairs = zip(summaries, parts["validation"], strict=True)
        return fmean(rouge.scores(summary, pair.targets)["rougeL"] for summary, pair in pairs)

    count = max(range(max(1, typical - _MORE_SENTENCES), typical + _MORE_SENTENCES + 1), key=reached)
    return SummarizerFit(ExtractiveSummarizer(with_count(ranker, count), data), parts, plan)


def _fit(pairs: Sequence[SourceTargetPair], plan: SummarizerPlan) -> SentenceRanker:
    references = [pair.targets for pair in pairs]
    return fit_ranker([pair.source for pair in pairs], references, max_words=plan.max_words)
