"""Dropout: share of zeros, scale, gradient and random numbers."""

import math

import pytest
import torch

from homespun.nn.layers import Dropout

COUNT = 400_000
LEVELS = 2**16


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
def test_drops_its_share_and_scales_the_rest(p: float) -> None:
    torch.manual_seed(1)
    dropped = Dropout(p)(torch.ones(COUNT))
    zeros = int((dropped == 0).sum())
    deviation = math.sqrt(COUNT * p * (1 - p))
    assert abs(zeros - COUNT * p) < 4.5 * deviation + COUNT / LEVELS
    # every survivor has the one scale, which makes up for the rounded share exactly
    scale = LEVELS / (LEVELS - round(p * LEVELS))
    torch.testing.assert_close(dropped[dropped != 0], torch.full((COUNT - zeros,), scale))
    assert abs(float(dropped.mean()) - 1) < 4.5 * scale * deviation / COUNT


def test_four_values_of_one_draw_are_independent() -> None:
    torch.manual_seed(1)
    kept = (Dropout(0.5)(torch.ones(COUNT)) != 0).view(-1, 4).double()
    correlation = torch.corrcoef(torch.cat([kept[:-1], kept[1:]], dim=1).T)  # also with those of the next draw
    assert (correlation - torch.eye(8, dtype=torch.float64)).abs().max() < 4.5 / math.sqrt(COUNT / 4)


def test_gradient_has_the_mask_of_the_forward_pass() -> None:
    values = torch.randn(7, 11, 13, requires_grad=True)
    dropped = Dropout(0.3)(values)
    dropped.backward(torch.ones_like(dropped))
    torch.testing.assert_close(values.grad * values, dropped)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (5, 7), (2, 3, 5)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    assert Dropout(0.1)(torch.ones(shape)).shape == shape


def test_values_that_are_not_contiguous() -> None:
    values = torch.randn(5, 7, 11).transpose(0, 2)
    dropped = Dropout(0.5)(values)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], 2 * values[kept])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_precision_stays(dtype: torch.dtype) -> None:
    values = torch.ones(1009, dtype=dtype, requires_grad=True)
    dropped = Dropout(0.5)(values)
    assert dropped.dtype == dtype
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    dropped.sum().backward()
    assert values.grad.dtype == dtype


def test_zero_and_evaluation_change_nothing_and_draw_nothing() -> None:
    values = torch.randn(17)
    state = torch.get_rng_state()
    assert Dropout(0.0)(values) is values
    assert Dropout(0.9).eval()(values) is values
    assert torch.equal(torch.get_rng_state(), state)


def test_almost_one_is_finite() -> None:
    assert Dropout(1 - 1e-9)(torch.ones(1009)).isfinite().all()


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_share_out_of_range(p: float) -> None:
    with pytest.raises(ValueError, match=r"dropout must be in \[0, 1\)"):
        Dropout(p)
