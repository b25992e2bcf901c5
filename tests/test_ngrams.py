"""The n-gram model of the benchmark of bytes: its probabilities sum to one, and are those of the formula."""

import math

import numpy as np
import pytest
from benchmarks.ngrams import KneserNey, bits_per_symbol


def coded(text: str) -> np.ndarray:
    return np.array([" abc".index(letter) for letter in text], dtype=np.int64)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("context", ["", "a", "ab", "abca", "ccccc", "bcabc"])
def test_probabilities_sum_to_one(order: int, context: str) -> None:
    model = KneserNey([coded("abcabcab"), coded("abbacab"), coded("a")], symbols=3, order=order)
    after = [float(model.log_probabilities(coded(context + letter))[len(context)]) for letter in "abc"]
    end = float(model.log_probabilities(coded(context))[-1])
    assert math.fsum(math.exp(value) for value in [*after, end]) == pytest.approx(1.0)


def test_a_bigram_by_hand() -> None:
    model = KneserNey([coded("abab"), coded("abb")], symbols=3, order=2)
    # pairs, | for the ends: |a 2, ab 3, ba 1, bb 1, b| 2
    pairs = {"|a": 2, "ab": 3, "ba": 1, "bb": 1, "b|": 2}
    discount = 2 / (2 + 2 * 2)  # two pairs once, two pairs twice
    behind = {"a": 2, "b": 2, "|": 1}  # symbols that each was seen behind
    below = 1 / (1 + 2 * 2)  # one of them once, two twice

    def one(symbol: str) -> float:
        return max(behind.get(symbol, 0) - below, 0) / 5 + below * 3 / 5 / 4

    def two(context: str, symbol: str) -> float:
        total = sum(count for pair, count in pairs.items() if pair[0] == context)
        kinds = sum(pair[0] == context for pair in pairs)
        return max(pairs.get(context + symbol, 0) - discount, 0) / total + discount * kinds / total * one(symbol)

    expected = [two("|", "b"), two("b", "a"), two("a", "c"), one("|")]  # nothing was seen after c
    assert np.exp(model.log_probabilities(coded("bac"))) == pytest.approx(expected)
    bits = bits_per_symbol(model, [coded("bac")])
    assert bits == pytest.approx(-sum(map(math.log2, expected)) / 3)


def test_grams_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="no 64-bit numbers"):
        KneserNey([coded("a")], symbols=256, order=8)
