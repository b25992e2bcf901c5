"""Linear layers with packed weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from homespun.nn.packed import pack_linear, packed_product, rounded
from homespun.nn.torch_private import packed_linear_ops

pytestmark = pytest.mark.skipif(packed_linear_ops() is None, reason="this build of torch cannot pack weights")


@pytest.mark.parametrize(
    "shape", [(64,), (0, 64), (1, 64), (9, 64), (1, 33, 64), (3, 43, 64), (2, 3, 5, 64), (300, 64)]
)
def test_equals_linear(shape: tuple[int, ...]) -> None:
    values, weight, bias = torch.randn(shape), torch.randn(48, 64), torch.randn(48)
    for offset in (bias, None):
        product = packed_product(weight, offset, min_numbers=0)
        assert product is not None
        with torch.no_grad():
            torch.testing.assert_close(product(values), F.linear(values, weight, offset))


def test_few_numbers_of_rows() -> None:
    """oneDNN keeps the code of each number of rows, so that a server's memory grows with them."""
    sizes = [rounded(rows) for rows in range(1, 1025)]
    assert all(rows <= size < rows + 32 and size <= max(8, 1.25 * rows) for rows, size in enumerate(sizes, start=1))
    assert len(set(sizes)) <= 60


def test_rounds_before_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    operations = packed_linear_ops()
    assert operations is not None
    pack, multiply = operations
    seen: list[tuple[int, ...]] = []

    def record(values: torch.Tensor, *others: object) -> torch.Tensor:
        seen.append(tuple(values.shape))
        return multiply(values, *others)

    monkeypatch.setattr("homespun.nn.packed.packed_linear_ops", lambda: (pack, record))
    layer = nn.Linear(16, 8)
    pack_linear(layer, min_numbers=0)
    with torch.no_grad():
        for rows in range(130, 160):
            layer(torch.randn(2, rows, 16))
    assert set(seen) == {(288, 16), (320, 16)}
