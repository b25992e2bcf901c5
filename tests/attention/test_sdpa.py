"""Plain products of half precision on a CPU equal SDPA and are used where `sdpa` selects them."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from homespun.attention.full import attend

BATCH, HEADS, QUERIES, KEYS, HEAD_DIM = 3, 2, 13, 31, 8


def inputs(dtype: torch.dtype, keys: int = KEYS, queries: int = QUERIES) -> list[Tensor]:
    torch.manual_seed(5)
    sizes = (queries, keys, keys)
    # as in a model: heads cut out of (batch, seq, hidden)
    drawn = [torch.randn(BATCH, size, HEADS, HEAD_DIM).to(dtype).transpose(1, 2) for size in sizes]
    return [part.detach().requires_grad_() for part in drawn]


def tables() -> dict[str, dict[str, Any]]:
    torch.manual_seed(7)
    padded = torch.rand(BATCH, 1, 1, KEYS) < 0.7
    padded[..., 0] = True
    return {
        "all": {},
        "padding": {"table": padded},
        "pattern": {"table": padded & (torch.arange(KEYS) <= torch.arange(QUERIES)[:, None] + 5)},
        "bias": {"table": torch.randn(1, HEADS, QUERIES, KEYS)},
        "unscaled": {"scale": 1.0},
        "causal": {"causal": True},
    }


@pytest.fixture
def fused_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of keys that PyTorch's own was called with."""
    called: list[int] = []
    fused = F.scaled_dot_product_attention

    def counted(query: Tensor, key: Tensor, *rest: Any, **options: Any) -> Tensor:
        called.append(key.shape[-2])
        return fused(query, key, *rest, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    return called


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", tables())
def test_the_products_are_the_same_attention(name: str, dtype: torch.dtype, fused_calls: list[int]) -> None:
    options = tables()[name]
    if name == "bias":
        options["table"] = options["table"].to(dtype)
    queries = KEYS if name == "causal" else QUERIES
    found = inputs(dtype, queries=queries)
    values = attend(*found, **options)
    assert fused_calls == []
    assert values.dtype == dtype
    exact = [part.detach().double().requires_grad_() for part in found]
    table = options.get("table")
    truth = F.scaled_dot_product_attention(
        *exact,
        attn_mask=table.double() if name == "bias" else table,
        is_causal=name == "causal",
        scale=options.get("scale"),
    )
    upstream = torch.randn(values.shape).to(dtype)
    pairs = [(values, truth)]
    pairs += zip(
        torch.autograd.grad(values, found, upstream), torch.autograd.grad(truth, exact, upstream.double()), strict=True
    )
    rounding = torch.finfo(dtype).eps
    for ours, theirs in pairs:
        assert (ours.double() - theirs).norm() < 2 * rounding * theirs.norm()


def test_a_query_that_sees_nothing_spoils_no_gradient() -> None:
    found = inputs(torch.bfloat16)
    table = torch.ones(BATCH, 1, QUERIES, KEYS, dtype=torch.bool)
    table[1, :, 4] = False
    values = attend(*found, table=table)
    assert values.isfinite().all()
    torch.where(table.any(-1, keepdim=True), values, 0.0).sum().backward()
    assert all(part.grad is not None and part.grad.isfinite().all() for part in found)


@pytest.mark.parametrize(
    ("case", "fused"),
    [
        ({}, False),
        ({"keys": 4 * HEAD_DIM}, False),
        ({"keys": 4 * HEAD_DIM + 1}, True),
        ({"keys": 4 * HEAD_DIM + 1, "dropout": 0.1}, False),
        ({"dtype": torch.float32}, True),
        ({"dtype": torch.float32, "dropout": 0.1}, True),
        ({"grad": False}, False),
        ({"dtype": torch.float32, "autocast": True}, False),
    ],
    ids=str,
)
def test_the_products_are_taken_where_they_cost_less(case: dict[str, Any], fused: bool, fused_calls: list[int]) -> None:
    found = inputs(case.get("dtype", torch.bfloat16), keys=case.get("keys", KEYS))
    with torch.set_grad_enabled(case.get("grad", True)), torch.autocast("cpu", enabled=case.get("autocast", False)):
        values = attend(*found, dropout=case.get("dropout", 0.0))
    assert bool(fused_calls) is fused
    assert values.dtype == (torch.bfloat16 if case.get("autocast") else found[0].dtype)


def test_dropped_probabilities_are_drawn_anew_and_right_on_average() -> None:
    found = inputs(torch.bfloat16)
    torch.manual_seed(11)
    draws = torch.stack([attend(*found, dropout=0.25).detach().float() for _ in range(400)])
    torch.manual_seed(11)
    assert torch.equal(draws[0], attend(*found, dropout=0.25).detach().float())
    assert not torch.equal(draws[0], draws[1])
    kept = attend(*found).detach().float()
    deviations = (draws.mean(0) - kept) / (draws.std(0) / 20)
    assert deviations.abs().max() < 5.5
    # a share p of the probabilities w falls away: the variance is p / (1 - p) sum of w^2 v^2
    weights = (found[0].float() @ found[1].float().mT / HEAD_DIM**0.5).softmax(-1)
    expected = (1 / 3 * weights.square() @ found[2].float().square()).sqrt()
    torch.testing.assert_close(draws.std(0).mean(), expected.mean(), rtol=0.03, atol=0)
