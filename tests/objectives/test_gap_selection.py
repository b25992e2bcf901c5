"""Principal sentences against ROUGE as the rouge-score package counts it, and against choosing by counting anew."""

from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.lra.fixed_vocabularies import word_tokenizer

from homespun.objectives.gap_selection import (
    COUNTINGS,
    PrincipalSelector,
    WordHashes,
    count_words,
    score_independently,
    select_independent,
    select_lead,
    select_random,
    select_sequential,
)

VOCABULARY = [f"w{number}" for number in range(23)]
TOKENIZER = word_tokenizer([*VOCABULARY, "."])
WORDS = WordHashes.of(TOKENIZER)
every_counting = pytest.mark.parametrize("counting", COUNTINGS)


def document(seed: int, sentences: int = 11) -> tuple[list[list[str]], np.ndarray, np.ndarray]:
    """Sentences of words, some of them often; the ids with a full stop behind each; where each ends."""
    random = np.random.default_rng(seed)
    texts = [
        [VOCABULARY[int(w)] for w in np.minimum(random.zipf(1.3, random.integers(1, 14)), 23) - 1]
        for _ in range(sentences)
    ]
    rows = TOKENIZER.encode_batch([" ".join([*words, "."]) for words in texts])
    return texts, np.concatenate([*rows, [TOKENIZER.sep_id]]).astype(np.int64), np.cumsum([len(row) for row in rows])


class Split:
    """The package's own tokenizer drops what is not a letter or a digit, and stems if asked to."""

    def tokenize(self, text: str) -> list[str]:
        return text.split()


def slow_f1(part: list[str], rest: list[str], counting: str) -> float:
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rouge1"], tokenizer=Split())
    if counting == "unique":
        part, rest = sorted(set(part)), sorted(set(rest))
    result: Any = scorer.score(" ".join(rest), " ".join(part))["rouge1"].fmeasure
    return float(result)


def words_of(texts: list[list[str]], chosen: set[int], *, inside: bool) -> list[str]:
    return [word for number, words in enumerate(texts) if (number in chosen) == inside for word in words]


@every_counting
@pytest.mark.parametrize("seed", range(7))
def test_scores_are_those_of_rouge(seed: int, counting: str) -> None:
    texts, ids, ends = document(seed)
    found = score_independently(count_words(WORDS, ids, ends), COUNTINGS[counting])
    expected = [
        slow_f1(words_of(texts, {i}, inside=True), words_of(texts, {i}, inside=False), counting) for i in range(11)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


@every_counting
@pytest.mark.parametrize("seed", range(7))
def test_independent_takes_the_highest_scores(seed: int, counting: str) -> None:
    texts, ids, ends = document(seed)
    scores = [
        round(slow_f1(words_of(texts, {i}, inside=True), words_of(texts, {i}, inside=False), counting), 12)
        for i in range(11)
    ]
    expected = sorted(sorted(range(11), key=lambda i: (-scores[i], i))[:4])
    counts = count_words(WORDS, ids, ends)
    assert select_independent(counts, COUNTINGS[counting], np.ones(11), 4).tolist() == expected


@every_counting
@pytest.mark.parametrize("seed", range(7))
def test_sequential_is_greedy(seed: int, counting: str) -> None:
    texts, ids, ends = document(seed)
    taken: list[int] = []
    for _ in range(5):
        scores = {
            i: round(
                slow_f1(
                    words_of(texts, {*taken, i}, inside=True), words_of(texts, {*taken, i}, inside=False), counting
                ),
                12,
            )
            for i in range(11)
            if i not in taken
        }
        taken.append(max(scores, key=lambda i: (scores[i], -i)))
    counts = count_words(WORDS, ids, ends)
    assert select_sequential(counts, COUNTINGS[counting], np.ones(11), 5).tolist() == sorted(taken)


@every_counting
@pytest.mark.parametrize("choose", [select_independent, select_sequential])
def test_of_equal_sentences_the_earliest_is_taken(choose: Any, counting: str) -> None:
    row = TOKENIZER.encode_batch(["w3 w5 w7 ."])[0].astype(np.int64)
    counts = count_words(WORDS, np.tile(row, 6), np.arange(4, 25, 4))
    assert choose(counts, COUNTINGS[counting], np.ones(6), 2).tolist() == [0, 1]


@every_counting
@pytest.mark.parametrize("choose", [select_independent, select_sequential])
def test_sentences_without_words_come_last(choose: Any, counting: str) -> None:
    ids = TOKENIZER.encode_batch([". . w1 w2 . . w2 w1 ."])[0].astype(np.int64)
    counts = count_words(WORDS, ids, np.array([2, 5, 9]))
    assert choose(counts, COUNTINGS[counting], np.ones(3), 1).tolist() == [1]
    nothing = count_words(WORDS, ids[[0, 0, 0]], np.array([1, 2, 3]))
    assert choose(nothing, COUNTINGS[counting], np.ones(3), 2).tolist() == [0, 1]


def test_noise_moves_scores_by_its_share_at_most() -> None:
    _, ids, ends = document(3)
    seen: list[np.ndarray] = []

    def choose(counts: Any, counting: Any, factors: np.ndarray, number: int) -> np.ndarray:
        seen.append(factors)
        return select_independent(counts, counting, factors, number)

    noisy = PrincipalSelector(WORDS, choose, COUNTINGS["original"], noise=0.2)
    generator = torch.Generator().manual_seed(1)
    choices = {tuple(noisy(ids, ends, 4, generator).tolist()) for _ in range(300)}
    factors = np.concatenate(seen)
    assert len(choices) > 1
    assert factors.min() > 0.8
    assert factors.max() < 1.2
    assert abs(factors.mean() - 1.0) < 0.01
    assert abs(factors.std() - 0.4 / 12**0.5) < 0.005  # that of the uniform distribution
    quiet = PrincipalSelector(WORDS, choose, COUNTINGS["original"], noise=0.0)
    state = generator.get_state()
    quiet(ids, ends, 4, generator)
    assert torch.equal(generator.get_state(), state)


def test_random_and_lead() -> None:
    _, ids, ends = document(5)
    generator = torch.Generator().manual_seed(1)
    taken = np.concatenate([select_random(ids, ends, 4, generator) for _ in range(2000)])
    assert abs(np.bincount(taken, minlength=11) / 2000 - 4 / 11).max() < 0.05
    assert select_lead(ids, ends, 4, generator).tolist() == [0, 1, 2, 3]
