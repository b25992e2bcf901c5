"""BART's and T5's noises: cases by hand, texts restored from what is left of them, rates over many draws."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from homespun.objectives.denoising import delete_tokens, infill, mask_tokens, permute_sentences, rotate
from homespun.objectives.span_corruption import choose_spans, count_noise_and_spans, cut_out

MASK = 4
lengths = st.integers(0, 67)
seeds = st.integers(0, 10_000)
shares = st.sampled_from([0.0, 0.15, 0.3, 0.5, 1.0])


def drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def text(length: int) -> np.ndarray:
    ids = 100 + np.arange(length)
    ids.setflags(write=False)
    return ids


@settings(max_examples=200, deadline=None)
@given(lengths, seeds, shares)
def test_masked_and_deleted_are_an_exact_share_and_the_rest_stays(length: int, seed: int, share: float) -> None:
    ids = text(length)
    masked = mask_tokens(ids, drawn(seed), probability=share, mask_id=MASK)
    assert (masked == MASK).sum() == round(share * length)
    assert (masked[masked != MASK] == ids[masked != MASK]).all()
    left = delete_tokens(ids, drawn(seed), probability=share)
    assert len(left) == length - round(share * length)
    assert (np.diff(left) > 0).all()
    assert np.isin(left, ids).all()


@settings(max_examples=300, deadline=None)
@given(lengths, seeds, shares, st.sampled_from([0.5, 1.0, 3.0, 10.0]))
def test_infilling_keeps_the_rest_in_order_and_never_grows(length: int, seed: int, share: float, mean: float) -> None:
    ids = text(length)
    filled = infill(ids, drawn(seed), probability=share, mean_span=mean, mask_id=MASK)
    assert len(filled) <= length
    kept = filled[filled != MASK]
    assert len(kept) == length - round(share * length)
    assert (np.diff(kept) > 0).all()
    # what is missing stands where masks are: between two neighbours that are kept, some mask, if anything is missing
    padded = np.concatenate([[99], filled, [100 + length]])
    positions = np.flatnonzero(padded != MASK)
    for first, second in itertools.pairwise(positions):
        assert second > first + 1 or padded[second] == padded[first] + 1


def test_infilling_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans of 2, 0 and 2 (cut from 5) at the second, fourth and last place of a line of six kept and three spans."""
    monkeypatch.setattr(torch, "poisson", lambda rates, generator: torch.tensor([2.0, 0.0, 5.0, 1.0]))
    monkeypatch.setattr(torch, "randperm", lambda size, generator: torch.tensor([8, 1, 3, 0, 2, 4, 5, 6, 7])[:size])
    filled = infill(text(10), drawn(1), probability=0.4, mean_span=3.0, mask_id=MASK)
    assert filled.tolist() == [100, MASK, 103, MASK, 104, 105, 106, 107, MASK]


def test_infilling_draws_poisson_spans_at_all_positions() -> None:
    ids, sizes, hidden, inserted = text(400), Counter[int](), np.zeros(400), 0
    rounds = 400
    for seed in range(rounds):
        filled = infill(ids, drawn(seed), probability=0.3, mean_span=3.0, mask_id=MASK)
        hidden[np.setdiff1d(np.arange(400), filled[filled != MASK] - 100)] += 1
        padded = np.concatenate([[99], filled, [500]])
        positions = np.flatnonzero(padded != MASK)
        for first, second in itertools.pairwise(positions):
            if second == first + 2:  # a mask alone: its length is known
                sizes[int(padded[second] - padded[first]) - 1] += 1
        inserted += int((filled == MASK).sum())
    assert hidden.sum() == rounds * 120
    # away from the ends each place is hidden alike: 0.3 with a deviation of 0.023 at 400 draws, 5 of them allowed
    assert abs(hidden[12:-12] / rounds - 0.3).max() < 0.115
    assert inserted / rounds == pytest.approx(120 / 3, rel=0.03)  # a span for every three tokens
    total = sum(sizes.values())
    for size, expected in enumerate([0.0498, 0.1494, 0.2240, 0.2240, 0.1680, 0.1008, 0.0504]):
        assert sizes[size] / total == pytest.approx(expected, abs=0.015), size


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=11), seeds)
def test_permuted_sentences_are_the_same_sentences(sizes: list[int], seed: int) -> None:
    ends = np.cumsum(sizes)
    ids = text(int(ends[-1]))
    permuted = permute_sentences(ids, ends, drawn(seed))
    assert sorted(permuted) == ids.tolist()
    breaks = np.flatnonzero(np.diff(permuted) != 1) + 1
    assert set(permuted[breaks]) | {int(permuted[0])} <= {100, *(100 + ends[:-1]).tolist()}


def test_every_order_of_sentences_is_equally_likely() -> None:
    ids, ends = text(6), np.array([1, 3, 6])
    found = Counter(tuple(permute_sentences(ids, ends, drawn(seed))) for seed in range(3000))
    assert len(found) == 6
    assert min(found.values()) > 400
    assert (103, 104, 105, 100, 101, 102) in found


def test_a_rotated_text_begins_anywhere() -> None:
    found = Counter(tuple(rotate(text(5), drawn(seed))) for seed in range(2000))
    assert set(found) == {tuple(100 + np.arange(start, start + 5) % 5) for start in range(5)}
    assert min(found.values()) > 320
    assert len(rotate(text(0), drawn(1))) == 0


def test_how_much_is_noise() -> None:
    def of(length: int) -> tuple[int, int]:
        return count_noise_and_spans(length, probability=0.15, mean_span=3.0)

    # 568 tokens are 512 with their sentinels and the end, and write 114: the numbers of the paper's own code
    assert of(568) == (85, 28)
    assert of(100) == (15, 5)
    assert [of(length) for length in (0, 1, 2, 3)] == [(0, 0), (0, 0), (1, 1), (1, 1)]
    assert count_noise_and_spans(10, probability=0.9, mean_span=1.0) == (
        9,
        1,
    )  # no more spans than there is room between


@settings(max_examples=200, deadline=None)
@given(lengths, seeds, st.sampled_from([0.15, 0.5, 0.9]), st.sampled_from([1.0, 3.0]))
def test_spans_are_exact_and_the_text_is_restored_from_both_sides(
    length: int, seed: int, share: float, mean: float
) -> None:
    ids, sentinels = text(length), 1000 - np.arange(60)
    noise = choose_spans(length, drawn(seed), probability=share, mean_span=mean)
    count, spans = count_noise_and_spans(length, probability=share, mean_span=mean)
    begins = noise & ~np.concatenate([[False], noise[:-1]])
    assert (len(noise), noise.sum(), begins.sum()) == (length, count, spans)
    assert not spans or (noise[-1] and not noise[0])
    left, hidden = cut_out(ids, noise, sentinels)
    assert len(left) == length - count + spans
    assert len(hidden) == count + spans
    assert left[left > 900].tolist() == hidden[hidden > 900].tolist() == sentinels[:spans].tolist()
    parts = np.split(hidden, np.flatnonzero(hidden > 900))[1:]
    written = {int(part[0]): part[1:].tolist() for part in parts}
    restored = [token for each in left.tolist() for token in written.get(each, [each])]
    assert restored == ids.tolist()


def test_spans_have_their_mean_and_fall_everywhere() -> None:
    rounds, length = 2000, 100
    masks = np.stack(
        [choose_spans(length, drawn(seed), probability=0.15, mean_span=3.0) for seed in range(rounds)]
    ).astype(int)
    assert masks.sum() == rounds * 15
    sizes = Counter[int]()
    for mask in masks:
        sizes.update(len(list(run)) for value, run in itertools.groupby(mask.tolist()) if value)
    assert sum(sizes.values()) == rounds * 5
    # five parts of fifteen tokens: P(first part is k) is C(14 - k, 3) / C(14, 4)
    assert sizes[1] / sum(sizes.values()) == pytest.approx(286 / 1001, abs=0.015)
    assert sizes[2] / sum(sizes.values()) == pytest.approx(220 / 1001, abs=0.015)
    inner = masks[:, 20:80].mean(0)
    assert abs(inner - 0.15).max() < 0.05
