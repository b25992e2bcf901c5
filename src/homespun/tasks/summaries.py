"""Metrics and baselines of generated texts, such as summaries."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from contextlib import suppress
from statistics import median

import numpy as np

from homespun.data.source_target import SourceTargetPair
from homespun.errors import UserError
from homespun.extractive import fit_ranker
from homespun.metrics.classification import Metrics
from homespun.metrics.text import Rouge, mean_scores, unsupported_numbers
from homespun.tasks.protocol import Measured
from homespun.tasks.seq2seq_data import TextPairsData
from homespun.text.clean import split_sentences

_MAX_WORDS = 1_000_000  # of the sources that the extractive baseline learns from, 15 seconds of one core
_Scored = tuple[SourceTargetPair, str, dict[str, float]]  # pair, generated text, ROUGE


def measure_texts(
    data: TextPairsData, pairs: Sequence[SourceTargetPair], texts: Sequence[str], rouge: Rouge
) -> Measured:
    """Compute the metrics of a text for each pair, over the pairs with source and target, and of each data set.

    Raises:
        UserError: no pair has both.
    """
    predictions: list[dict[str, object]] = []
    scored: list[_Scored] = []
    for pair, text in zip(pairs, texts, strict=True):
        predictions.append({"truth": list(pair.targets), "predicted": text})
        if not pair.is_empty:
            scores = rouge.scores(text, pair.targets)
            predictions[-1] |= {"score": scores["rougeL"]} | scores
            scored.append((pair, text, scores))
    if not scored:
        raise UserError("every pair has an empty source or target; give pairs with both texts")
    metrics = _mean_metrics(scored)
    count = len(data.all_sets)
    if count > 1:
        parts = [[one for one in scored if one[0].data_set == number] for number in range(count)]
        metrics["by_set"] = {data.name_of(n): _mean_metrics(part) for n, part in enumerate(parts) if part}
    return Measured(metrics, predictions)


def measure_baselines(
    data: TextPairsData, training: Sequence[SourceTargetPair], test: Sequence[SourceTargetPair], rouge: Rouge
) -> dict[str, Measured]:
    """Evaluate `sentence_baselines` on ``test``, and ``extractive``: an extractive model of the training pairs."""
    filled, sources = [pair for pair in training if not pair.is_empty], [pair.source for pair in test]
    targets = [pair.targets[0] for pair in filled]
    baselines = sentence_baselines(targets, sources)
    with suppress(UserError):  # texts without words
        references = [pair.targets for pair in filled]
        ranker = fit_ranker(
            [pair.source for pair in filled], references, count=typical_count(targets), max_words=_MAX_WORDS
        )
        baselines["extractive"] = ranker.summarize(sources)
    return {name: measure_texts(data, test, texts, rouge) for name, texts in baselines.items()}


def _mean_metrics(scored: Sequence[_Scored]) -> Metrics:
    """Average the scores of pairs with their generated texts."""
    texts, targets = [text for _, text, _ in scored], [pair.targets[0] for pair, _, _ in scored]
    numbers = unsupported_numbers(texts, targets, [pair.source for pair, _, _ in scored])
    return mean_scores([scores for _, _, scores in scored], texts, targets) | numbers


def typical_count(targets: Sequence[str]) -> int:
    """Median number of sentences of training targets, at least 1."""
    return max(1, round(median(len(split_sentences(target)) for target in targets))) if targets else 3


def sentence_baselines(targets: Sequence[str], sources: Sequence[str]) -> dict[str, list[str]]:
    """Summarize each source without training.

    ``lead-3`` is its first three sentences, ``random-3`` three random sentences, seeded by the index of the source,
    ``central-3`` the result of `central_sentences`, and ``copy`` the complete source. If the median number of sentences
    N of the training ``targets`` is not 3, ``lead-N``, ``random-N`` and ``central-N`` are added: three sentences are a
    weak baseline for targets of one.
    """
    sentences = list(map(split_sentences, sources))
    baselines: dict[str, list[str]] = {}
    for count in dict.fromkeys((3, typical_count(targets))):
        baselines[f"lead-{count}"] = [" ".join(text[:count]) for text in sentences]
        baselines[f"random-{count}"] = [
            " ".join(text[i] for i in sorted(random.Random(index).sample(range(len(text)), min(count, len(text)))))
            for index, text in enumerate(sentences)
        ]
        baselines[f"central-{count}"] = [" ".join(central_sentences(text, count)) for text in sentences]
    return baselines | {"copy": list(sources)}


def central_sentences(sentences: Sequence[str], count: int) -> list[str]:
    """Return the ``count`` sentences that are most similar to the others, in their order.

    Similarity is the sum of BM25 (Robertson and Zaragoza 2009) over the other sentences as queries, with the sentences
    of this text as the collection.
    """
    words = [re.findall(r"\w+", sentence.lower()) for sentence in sentences]
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys(word for found in words for word in found))}
    if len(sentences) <= count or not vocabulary:
        return list(sentences[:count])
    counts = np.zeros((len(words), len(vocabulary)))
    for row, found in enumerate(words):
        np.add.at(counts[row], [vocabulary[word] for word in found], 1)
    lengths = counts.sum(axis=1, keepdims=True)
    containing = (counts > 0).sum(axis=0)
    rarity = np.log1p((len(words) - containing + 0.5) / (containing + 0.5))
    k1, b = 1.2, 0.75  # saturation of the word frequency, strength of the correction for sentence length
    weights = rarity * counts * (k1 + 1) / (counts + k1 * (1 - b + b * lengths / lengths.mean()))
    scores = ((counts.sum(axis=0) - counts) * weights).sum(axis=1)
    return [sentences[index] for index in sorted(np.argsort(-scores, kind="stable")[:count])]
