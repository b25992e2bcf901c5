"""Orders without a table."""

import numpy as np
import pytest

from homespun.data.corpus import random_keys
from homespun.data.loader import feistel_shuffle
from homespun.text.hashing import splitmix64


def test_a_part_of_an_order_is_that_part():
    order = feistel_shuffle(np.arange(1009), 1009, key=(3, 1))
    np.testing.assert_array_equal(feistel_shuffle(np.array([1008, 0, 17]), 1009, key=(3, 1)), order[[1008, 0, 17]])


@pytest.mark.parametrize("count", [3, 7, 13])
def test_every_position_is_equally_likely(count):
    """Chi-squared of what stands first, and of what stands last, over many seeds: below its 0.9999 quantile."""
    trials = 3000
    orders = np.stack([feistel_shuffle(np.arange(count), count, key=(seed, 0)) for seed in range(trials)])
    quantile = {3: 18.4, 7: 27.9, 13: 39.1}[count]
    for place in (0, count - 1):
        seen = np.bincount(orders[:, place], minlength=count)
        assert ((seen - trials / count) ** 2 / (trials / count)).sum() < quantile


def test_neighbours_do_not_stay_neighbours():
    order = feistel_shuffle(np.arange(10_007), 10_007, key=(5, 2))
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.05
    assert abs(np.corrcoef(order, np.arange(10_007))[0, 1]) < 0.05


def test_the_numbers_are_the_same_on_every_machine():
    assert random_keys(7, count=2).tolist() == [2703953890892319460, 18363962536174695017]
    assert splitmix64(np.arange(2, dtype=np.uint64) ^ np.uint64(1)).tolist() == [6238072747940578789, 0]
    assert feistel_shuffle(np.arange(7), 7, key=(7, 0)).tolist() == [0, 1, 3, 2, 5, 6, 4]
