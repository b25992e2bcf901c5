"""Selection of principal sentences by ROUGE-1 F1 against the rest of the document (Zhang et al. 2020, section 3.1).

ROUGE counts words, not tokens: tokens would count the pieces of long words several times, and a word with two spellings
of its space as two. Case is the tokenizer's, nothing is stemmed.

Reference and candidate together are the document. F1 is then twice the number of shared words over the number of words
in the document, and only shared words have to be counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch

from homespun.text.word_hashes import WordHashes


@dataclass(frozen=True)
class Counting:
    """Counting of repeated words: `COUNTINGS`."""

    most: int  # clip of a word's count on either side
    both: int  # added to the document's count for a word that both sides have


COUNTINGS = {"original": Counting(most=2**62, both=0), "unique": Counting(most=1, both=1)}
Rouge = Literal["original", "unique"]


@dataclass(frozen=True)
class WordCounts:
    """Counts of words by sentence, sparse: pairs of a word and a sentence that has it."""

    word: np.ndarray  # (pairs,) int64, ascending: the number of a word
    sentence: np.ndarray  # (pairs,) int64
    count: np.ndarray  # (pairs,) int64
    total: np.ndarray  # (words,) int64: of the word in the document
    sentences: int

    def f1(self, overlap: np.ndarray, counting: Counting) -> np.ndarray:
        """(n,) words that a part and the rest both have -> (n,) ROUGE-1 F1 of the part against the rest."""
        size = np.minimum(self.total, counting.most).sum() + counting.both * overlap
        return np.asarray(2.0 * overlap / np.maximum(size, 1))


def count_words(words: WordHashes, ids: np.ndarray, ends: np.ndarray) -> WordCounts:
    """The words of a text by sentence.

    Args:
        words: of the tokenizer.
        ids: (seq,) token ids.
        ends: (sentences,) where each ends in ``ids``, exclusive; what stands behind the last is of no sentence.
    """
    numbers, positions = words(ids[: ends[-1]], ends[:-1])
    sentences = len(ends)
    distinct, word = np.unique(numbers, return_inverse=True)
    pairs, count = np.unique(word * sentences + np.searchsorted(ends, positions, side="right"), return_counts=True)
    word, sentence = np.divmod(pairs, sentences)
    total = np.bincount(word, weights=count, minlength=len(distinct)).astype(np.int64)
    return WordCounts(word, sentence, count, total, sentences)


def score_independently(counts: WordCounts, counting: Counting) -> np.ndarray:
    """(sentences,) ROUGE-1 F1 of each sentence against all others."""
    both = _shared_count(counts.count, counts.total[counts.word], counting)
    return counts.f1(np.bincount(counts.sentence, weights=both, minlength=counts.sentences), counting)


def select_independent(counts: WordCounts, counting: Counting, factors: np.ndarray, number: int) -> np.ndarray:
    """(number,) sentences with the highest scores, each times its factor; of equal ones the earlier."""
    scores = score_independently(counts, counting) * factors
    best: np.ndarray = np.sort(np.argsort(-scores, kind="stable")[:number])
    return best


def select_sequential(counts: WordCounts, counting: Counting, factors: np.ndarray, number: int) -> np.ndarray:
    """(number,) sentences, taken one by one: each time that which, with those taken, scores highest against the rest.

    Of equal ones the earlier. A candidate's score is times its factor.
    """
    taken = np.zeros(number, np.int64)
    inside = np.zeros_like(counts.total)  # (words,) how often each stands in what is taken
    totals = counts.total[counts.word]
    shared = 0.0  # words that what is taken and the rest both have
    gains = _shared_count(counts.count, totals, counting)  # (pairs,) what each pair would add to that
    gain = np.bincount(counts.sentence, weights=gains, minlength=counts.sentences)  # (sentences,)
    open_ = np.ones(counts.sentences, np.bool_)
    for step in range(number):
        scores = np.where(open_, counts.f1(shared + gain, counting) * factors, -1.0)
        best = taken[step] = int(scores.argmax())
        shared += gain[best]
        open_[best] = False
        own = counts.sentence == best
        inside[counts.word[own]] += counts.count[own]
        # only the words of this sentence have other counts than before
        changed = np.zeros(len(inside), np.bool_)
        changed[counts.word[own]] = True
        pairs = np.flatnonzero(changed[counts.word])
        before, total = inside[counts.word[pairs]], totals[pairs]
        now = _shared_count(before + counts.count[pairs], total, counting) - _shared_count(before, total, counting)
        gain += np.bincount(counts.sentence[pairs], weights=now - gains[pairs], minlength=counts.sentences)
        gains[pairs] = now
    return np.sort(taken)


def _shared_count(part: np.ndarray, total: np.ndarray, counting: Counting) -> np.ndarray:
    """Clipped count of each word that a part shares with the rest, of ``total``."""
    both: np.ndarray = np.minimum(np.minimum(part, total - part), counting.most)
    return both


class SentenceSelector(Protocol):
    """Chooses sentences of a document."""

    def __call__(self, ids: np.ndarray, ends: np.ndarray, number: int, generator: torch.Generator) -> np.ndarray:
        """(seq,) ids and the (sentences,) ends in them -> (number,) ascending sentences."""
        ...


def select_random(ids: np.ndarray, ends: np.ndarray, number: int, generator: torch.Generator) -> np.ndarray:
    """Random sentences."""
    drawn: np.ndarray = torch.randperm(len(ends), generator=generator).numpy()[:number]
    return np.sort(drawn)


def select_lead(ids: np.ndarray, ends: np.ndarray, number: int, generator: torch.Generator) -> np.ndarray:
    """First sentences."""
    return np.arange(number)


@dataclass(frozen=True)
class PrincipalSelector:
    """Principal sentences, as `select_independent` or `select_sequential` choose them."""

    words: WordHashes
    choose: Callable[[WordCounts, Counting, np.ndarray, int], np.ndarray]
    counting: Counting
    noise: float  # each score is times a number from 1 - noise to 1 + noise

    def __call__(self, ids: np.ndarray, ends: np.ndarray, number: int, generator: torch.Generator) -> np.ndarray:
        factors = np.ones(len(ends))
        if self.noise:
            factors += self.noise * (2.0 * torch.rand(len(ends), generator=generator).numpy() - 1.0)
        return self.choose(count_words(self.words, ids, ends), self.counting, factors, number)
