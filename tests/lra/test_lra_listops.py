"""ListOps against an evaluator of its own, and against the rules of the Long Range Arena's generator."""

import gzip
import math
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from benchmarks.lra.listops import ListOps, value

from homespun.errors import UserError

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "listops" / "d20s.tsv.gz"

Tree = int | tuple[str, list["Tree"]]


def parse(tokens: Iterator[str]) -> Tree | None:
    """One expression off the stream, recursively; None at a closing bracket."""
    token = next(tokens)
    if token == "]":
        return None
    if not token.startswith("["):
        return int(token)
    arguments = []
    while (argument := parse(tokens)) is not None:
        arguments.append(argument)
    return token, arguments


def worth(tree: Tree) -> int:
    if isinstance(tree, int):
        return tree
    name, arguments = tree
    values = np.array([worth(argument) for argument in arguments])
    if name == "[MED":
        return int(np.median(values))
    return int({"[MAX": values.max(), "[MIN": values.min(), "[SM": values.sum() % 10}[name])


def depth(tree: Tree) -> int:
    return 1 if isinstance(tree, int) else 1 + max(map(depth, tree[1]))


def lists(tree: Tree) -> Iterator[tuple[str, int]]:
    if not isinstance(tree, int):
        yield tree[0], len(tree[1])
        for argument in tree[1]:
            yield from lists(argument)


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ({}, 7),  # the arena's own
        ({"max_depth": 5, "max_arguments": 3, "min_length": 0, "max_length": 97}, 211),
        ({"max_depth": 3, "max_arguments": 7, "min_length": 11, "max_length": 41}, 101),
    ],
)
def test_values_and_rules(sizes: dict[str, int], count: int) -> None:
    limits = {"max_depth": 10, "max_arguments": 10, "min_length": 500, "max_length": 2000} | sizes
    names: Counter[str] = Counter()
    widths: Counter[int] = Counter()
    deepest = 0
    for text, result in islice(ListOps(seed=3, **sizes).distinct(), count):
        tokens = text.split(" ")
        assert limits["min_length"] < len(tokens) < limits["max_length"]
        stream = iter(tokens)
        tree = parse(stream)
        assert next(stream, None) is None
        assert worth(tree) == result == value(tokens)
        deepest = max(deepest, depth(tree))
        for name, width in lists(tree):
            names[name] += 1
            widths[width] += 1
    assert deepest == limits["max_depth"]
    assert set(names) == {"[MAX", "[MIN", "[MED", "[SM"}
    assert set(widths) == set(range(2, limits["max_arguments"] + 1))
    # each of four operators as often as the others: five standard deviations
    total = sum(names.values())
    assert all(abs(n / total - 0.25) < 5 * math.sqrt(0.25 * 0.75 / total) for n in names.values())


def test_a_quarter_of_the_arguments_are_lists() -> None:
    expressions = ListOps(seed=0, max_depth=2, max_arguments=2, min_length=0, max_length=10)
    count = 4001
    single = sum(len(expressions.expression(i)) == 1 for i in range(count))
    assert abs(single / count - 0.75) < 4 * math.sqrt(0.75 * 0.25 / count)


def test_an_expression_is_a_function_of_seed_and_index() -> None:
    small = {"max_depth": 4, "max_arguments": 5, "min_length": 7, "max_length": 61}
    first, again, other = ListOps(seed=5, **small), ListOps(seed=5, **small), ListOps(seed=6, **small)
    expected = [first.expression(i) for i in range(13)]
    assert [again.expression(i) for i in reversed(range(13))] == expected[::-1]
    assert [other.expression(i) for i in range(13)] != expected


def test_no_expression_comes_twice() -> None:
    stream = ListOps(seed=0, max_depth=2, max_arguments=2, min_length=0, max_length=5).distinct()
    texts = [text for text, _ in islice(stream, 211)]  # of 410 that there are
    assert len(set(texts)) == 211


def test_an_exhausted_stream_is_an_error() -> None:
    stream = ListOps(seed=0, max_depth=2, max_arguments=2, min_length=0, max_length=3).distinct()  # ten digits
    with pytest.raises(UserError, match="after 10 expressions"):
        list(islice(stream, 11))


@pytest.mark.parametrize("text", ["", "1 2", "[MAX 1 2", "1 ]", "[MAX ]", "[FIRST 1 2 ]", "[MAX 12 3 ]"])
def test_what_is_no_expression(text: str) -> None:
    with pytest.raises(UserError):
        value(text.split())


@pytest.mark.parametrize(
    "sizes",
    [
        {"max_depth": 1},
        {"max_arguments": 1},
        {"min_length": 500, "max_length": 501},
        {"max_depth": 2, "max_arguments": 10, "min_length": 12},  # the longest has twelve tokens
        {"min_length": -1},
    ],
)
def test_sizes_without_an_expression(sizes: dict[str, int]) -> None:
    with pytest.raises(UserError, match="max_"):
        ListOps(seed=0, **sizes)


@pytest.mark.data
def test_the_original_data_has_our_values() -> None:
    if not SHARED.is_file():
        pytest.skip("the shared data sets are not beside the checkout")
    with gzip.open(SHARED, "rt", encoding="utf-8") as lines:
        for line in islice(lines, 2000):
            label, expression = line.rstrip("\n").split("\t")
            assert value([token for token in expression.split() if token not in "()"]) == int(label)
