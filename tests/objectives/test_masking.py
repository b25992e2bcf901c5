"""Corruption: how many, which, with what; and nothing but what the generator says."""

import math

import numpy as np
import pytest
import torch

from homespun.objectives.mlm import TokenReplacement, choose_positions

VOCAB, SPECIALS, MASK = 53, 5, 4
SPECIAL = np.arange(VOCAB) < SPECIALS
ORDINARY = np.flatnonzero(~SPECIAL)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some_ids(length: int, seed: int = 1, lowest: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(lowest, VOCAB, length)


@pytest.mark.parametrize("probability", [0.01, 0.15, 0.5, 0.99])
@pytest.mark.parametrize("length", [1, 2, 7, 13, 128])
def test_the_count_is_exact_and_specials_are_never_chosen(length: int, probability: float) -> None:
    for seed in range(20):
        ids = some_ids(length, seed)
        ordinary = int((ids >= SPECIALS).sum())
        chosen = choose_positions(ids, SPECIAL, generator(seed), probability=probability)
        assert len(chosen) == (max(1, round(probability * ordinary)) if ordinary else 0)
        assert len(set(chosen.tolist())) == len(chosen)
        assert sorted(chosen) == chosen.tolist()
        assert not SPECIAL[ids[chosen]].any()


@pytest.mark.parametrize("whole_words", [False, True])
def test_nothing_but_specials(whole_words: bool) -> None:
    starts = np.ones(VOCAB, dtype=bool) if whole_words else None
    ids = np.arange(SPECIALS)
    chosen = choose_positions(ids, SPECIAL, generator(1), probability=0.5, word_starts=starts)
    assert chosen.tolist() == []
    corrupted = TokenReplacement(MASK, ORDINARY, 0.8, 0.1)(ids, chosen, generator(1))
    assert corrupted.tolist() == ids.tolist()


@pytest.mark.parametrize("whole_words", [False, True])
def test_every_token_is_chosen_as_often(whole_words: bool) -> None:
    starts = np.ones(VOCAB, dtype=bool) if whole_words else None
    ids, times = some_ids(20, lowest=SPECIALS), 4000
    counts = np.zeros(20)
    for seed in range(times):
        counts[choose_positions(ids, SPECIAL, generator(seed), probability=0.15, word_starts=starts)] += 1
    assert counts.sum() == 3 * times
    assert np.abs(counts - 0.15 * times).max() < 4.5 * math.sqrt(times * 0.15 * 0.85)


# words begin at even ids: "[CLS] AAA B CC DDDD [SEP] d e [SEP]", where a special token cuts a word in two
STARTS = np.arange(VOCAB) % 2 == 0
TEXT = np.array([2, 10, 11, 13, 20, 30, 31, 40, 41, 43, 45, 3, 51, 12, 3])
PIECES = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10], [12], [13]]


@pytest.mark.parametrize("probability", [0.05, 0.15, 0.3, 0.6, 0.99])
def test_whole_words_are_chosen_together(probability: float) -> None:
    target = max(1, round(probability * sum(map(len, PIECES))))
    seen = set()
    for seed in range(200):
        chosen = choose_positions(TEXT, SPECIAL, generator(seed), probability=probability, word_starts=STARTS)
        assert sorted(chosen) == chosen.tolist()
        words = [piece for piece in PIECES if piece[0] in chosen]
        assert sorted(place for word in words for place in word) == chosen.tolist()
        # the count is never passed, but by a single long word that came first
        assert len(chosen) <= target or len(words) == 1
        seen |= {piece[0] for piece in words}
    assert seen == {piece[0] for piece in PIECES}


def test_whole_words_reach_the_count_where_words_fit() -> None:
    starts = np.ones(VOCAB, dtype=bool)
    ids = some_ids(40, lowest=SPECIALS)
    for seed in range(20):
        assert len(choose_positions(ids, SPECIAL, generator(seed), probability=0.3, word_starts=starts)) == 12


@pytest.mark.parametrize(("mask_share", "random_share"), [(0.8, 0.1), (0.85, 0.0), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)])
def test_shares(mask_share: float, random_share: float) -> None:
    length = 40_000
    ids = some_ids(length, lowest=SPECIALS)
    positions = np.arange(0, length, 2)
    corrupted = TokenReplacement(MASK, ORDINARY, mask_share, random_share)(ids, positions, generator(1))
    assert np.array_equal(corrupted[1::2], ids[1::2])
    before, after = ids[positions], corrupted[positions]
    masked = after == MASK
    assert not SPECIAL[after[~masked]].any()
    # a random token is the old one once in a vocabulary
    differs = random_share * (1 - 1 / len(ORDINARY))
    for found, share in ((masked, mask_share), (~masked & (after != before), differs)):
        assert abs(found.sum() - share * len(positions)) <= 4.5 * math.sqrt(len(positions) * share * (1 - share))
    if random_share:
        counts = np.bincount(after[~masked & (after != before)], minlength=VOCAB)[SPECIALS:]
        expected = counts.sum() / len(ORDINARY)
        assert np.abs(counts - expected).max() < 4.5 * math.sqrt(expected)


@pytest.mark.parametrize("whole_words", [False, True])
def test_same_generator_same_corruption_and_the_row_stays(whole_words: bool) -> None:
    ids = some_ids(101)
    ids.setflags(write=False)  # as a memory-mapped corpus gives them

    def corrupt(seed: int) -> tuple[np.ndarray, np.ndarray]:
        random = generator(seed)
        starts = STARTS if whole_words else None
        chosen = choose_positions(ids, SPECIAL, random, probability=0.15, word_starts=starts)
        return chosen, TokenReplacement(MASK, ORDINARY, 0.5, 0.5)(ids, chosen, random)

    for one, other in zip(corrupt(1), corrupt(1), strict=True):
        assert np.array_equal(one, other)
    assert not np.array_equal(corrupt(1)[1], corrupt(2)[1])
