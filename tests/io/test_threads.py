"""Tests of work in threads."""

import time
from collections.abc import Iterator

import pytest

from homespun.io.threads import in_threads


def test_results_keep_the_order_of_the_items() -> None:
    def double(number: int) -> int:
        time.sleep(0.01 * (number % 3 == 0))
        return 2 * number

    assert list(in_threads(double, range(20), workers=3)) == [(number, 2 * number) for number in range(20)]
    assert not list(in_threads(double, [], workers=3))


def test_few_items_are_taken_ahead_and_none_after_closing() -> None:
    taken = []

    def numbers() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    iterator = in_threads(str, numbers(), workers=2)
    assert next(iterator) == (0, "0")
    assert taken == [0, 1, 2, 3]
    iterator.close()
    assert taken == [0, 1, 2, 3]


def test_errors_of_items_and_of_the_function_are_raised() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("no more items")

    with pytest.raises(ValueError, match="no more items"):
        list(in_threads(str, items(), workers=2))
    with pytest.raises(ZeroDivisionError):
        list(in_threads(lambda number: 1 // number, [1, 0, 2], workers=1))
