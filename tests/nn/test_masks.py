"""Masks: each part masks its keys, parts are combined by *and*, and the table is built once."""

import itertools

import pytest
import torch

from homespun.nn.masks import Mask
from homespun.nn.patterns import FULL, Sparse, Window

CPU = torch.device("cpu")
BATCH, QUERIES, KEYS, START = 2, 5, 12, 7
KEEP = torch.arange(KEYS) < torch.tensor([[KEYS], [4]])
DOCUMENTS = torch.tensor([[0] * 3 + [1] * 6 + [2] * 3, [0] * 8 + [-1] * 4])


def expected(mask: Mask, pattern: Sparse, row: int, query: int, key: int) -> bool:
    """The definition, a pair at a time."""
    place = mask.start + query
    near = not pattern.patterns or abs(place - key) <= 2
    past = not mask.causal or key <= place
    real = mask.keep is None or bool(mask.keep[row, key])
    same = mask.documents is None or bool(mask.documents[row, place] == mask.documents[row, key])
    return near and past and real and same


@pytest.mark.parametrize("pattern", [FULL, Sparse((Window(2),))], ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("start", [0, START])
@pytest.mark.parametrize("keep", [None, KEEP], ids=["whole", "padded"])
@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["one", "packed"])
def test_table_is_the_definition(
    pattern: Sparse, causal: bool, start: int, keep: torch.Tensor | None, documents: torch.Tensor | None
) -> None:
    mask = Mask(keep, causal=causal, start=start, documents=documents)
    table = mask.dense(pattern, QUERIES, KEYS, CPU)
    plain = not pattern.patterns and not causal and keep is None and documents is None
    assert (table is None) == plain
    complete = torch.ones(BATCH, 1, QUERIES, KEYS, dtype=torch.bool) if table is None else table
    complete = complete.expand(BATCH, 1, QUERIES, KEYS)
    for row, query, key in itertools.product(range(BATCH), range(QUERIES), range(KEYS)):
        assert complete[row, 0, query, key] == expected(mask, pattern, row, query, key)


def test_table_is_built_once_for_all_layers() -> None:
    mask = Mask(KEEP)
    first = mask.dense(Sparse((Window(2),)), KEYS, KEYS, CPU)
    assert mask.dense(Sparse((Window(2),)), KEYS, KEYS, CPU) is first  # an equal pattern, not the same object
    assert mask.dense(Sparse((Window(3),)), KEYS, KEYS, CPU) is not first
    assert mask.dense(Sparse((Window(2),)), QUERIES, KEYS, CPU) is not first
