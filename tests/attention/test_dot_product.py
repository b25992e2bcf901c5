"""The dense kernel against a softmax written out by hand, in float64, under every kind of mask."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from homespun.attention.disentangled import AddedScores
from homespun.attention.full import DotProduct
from homespun.nn.masks import Mask
from homespun.nn.patterns import FULL, Sparse, Window

BATCH, HEADS, HEAD_DIM, QUERIES, START = 3, 2, 5, 11, 7


def reference(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor) -> Tensor:
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    weights = torch.where(allowed, scores.exp(), 0.0)
    total = weights.sum(-1, keepdim=True)
    return weights @ value / torch.where(total > 0, total, 1.0)


def random_tensor(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("pattern", [FULL, Sparse((Window(2),))], ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("start", [0, START])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_equals_softmax_by_hand(pattern: Sparse, causal: bool, start: int, padded: bool, packed: bool) -> None:
    torch.manual_seed(1)
    keys = start + QUERIES
    query, key, value = (
        random_tensor(BATCH, HEADS, QUERIES, HEAD_DIM),
        random_tensor(BATCH, HEADS, keys, HEAD_DIM),
        random_tensor(BATCH, HEADS, keys, HEAD_DIM),
    )
    # the last row has nothing to see at all
    keep = torch.arange(keys) < torch.tensor([[keys], [keys - 4], [0]]) if padded else None
    documents = (torch.arange(keys) // 5).expand(BATCH, -1) if packed else None
    mask = Mask(keep, causal=causal, start=start, documents=documents)
    table = mask.dense(pattern, QUERIES, keys, query.device)
    allowed = torch.ones(1, 1, 1, 1, dtype=torch.bool) if table is None else table

    ours = DotProduct(pattern)(query, key, value, mask)
    theirs = reference(query, key, value, allowed)
    torch.testing.assert_close(ours, theirs)
    upstream = torch.randn_like(ours)
    for gradient, truth in zip(
        torch.autograd.grad(ours, (query, key, value), upstream),
        torch.autograd.grad(theirs, (query, key, value), upstream),
        strict=True,
    ):
        torch.testing.assert_close(gradient, truth)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_that_sees_nothing_gives_zeros(dtype: torch.dtype) -> None:
    query, key, value = (
        torch.randn(2, 1, 17, 8, dtype=dtype, requires_grad=True) for _ in range(3)
    )  # (batch, heads, seq, head_dim)
    mask = Mask(torch.tensor([[True], [False]]).expand(2, 17))
    values = DotProduct()(query, key, value, mask)
    assert torch.equal(values[1], torch.zeros_like(values[1]))
    values.sum().backward()
    for tensor in (query, key, value):
        assert tensor.grad.isfinite().all()
        assert not tensor.grad[1].any()


@pytest.mark.parametrize("added", [False, True])
def test_float16_has_gradients_if_a_row_sees_nothing(added: bool) -> None:
    """The sum of the least finite number and a negative score is -inf, and the softmax of such a row is NaN."""
    query, key, value = (torch.full((1, 1, 4, 8), x, dtype=torch.float16, requires_grad=True) for x in (9, -9, 1))
    mask = Mask(torch.zeros(1, 4, dtype=torch.bool))
    if added:
        scores = torch.zeros(1, 1, 4, 4, dtype=torch.float16, requires_grad=True)
        values = AddedScores(scale=1.0, dropout=0.0)(query, key, scores, value, mask)
    else:
        values = DotProduct()(query, key, value, mask)
    assert not values.any()
    assert all(part.isfinite().all() for part in torch.autograd.grad(values.sum(), (query, key, value)))


def test_zeros_whatever_the_fused_path_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = torch.nn.functional.scaled_dot_product_attention

    def careless(query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Tensor, **options: Any) -> Tensor:
        values = fused(query, key, value, attn_mask=attn_mask, **options)
        return values.masked_fill(~attn_mask.any(-1, keepdim=True), float("nan"))

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", careless)
    query, key, value = torch.randn(3, 2, HEADS, QUERIES, HEAD_DIM)
    values = DotProduct()(query, key, value, Mask(torch.tensor([[True], [False]]).expand(2, QUERIES)))
    assert values[0].isfinite().all()
    assert torch.equal(values[1], torch.zeros_like(values[1]))


def test_causal_counts_from_the_start_also_where_queries_are_as_many_as_keys() -> None:
    query, key, value = torch.randn(3, BATCH, HEADS, QUERIES, HEAD_DIM)
    mask = Mask(causal=True, start=START)
    allowed = mask.dense(FULL, QUERIES, QUERIES, query.device)
    torch.testing.assert_close(DotProduct()(query, key, value, mask), reference(query, key, value, allowed))
