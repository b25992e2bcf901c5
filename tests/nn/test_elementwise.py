"""RMS norm and squared ReLU equal PyTorch's, with their gradients, in any layout."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.nn.layers import ReLUSquared, RMSNorm


def _heads() -> Tensor:
    """(2, 3, 5, 8), strided as heads are."""
    return torch.randn(2, 5, 24, dtype=torch.float64).reshape(2, 5, 3, 8).transpose(1, 2)


@pytest.mark.parametrize("values", [torch.randn(3, 5, 8, dtype=torch.float64), _heads()])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("eps", [None, 0.1])
def test_rms_norm(values: Tensor, weighted: bool, eps: float | None) -> None:
    ours, theirs = (
        make(8, eps=eps, elementwise_affine=weighted, dtype=torch.float64) for make in (RMSNorm, nn.RMSNorm)
    )
    if weighted:
        weight = torch.randn(8, dtype=torch.float64)
        for norm in (ours, theirs):
            norm.load_state_dict({"weight": weight})
    values = values.requires_grad_()
    torch.testing.assert_close(ours(values), theirs(values))
    upstream = torch.randn(values.shape, dtype=values.dtype)
    found, wanted = (
        torch.autograd.grad(norm(values), [values, *norm.parameters()], upstream) for norm in (ours, theirs)
    )
    torch.testing.assert_close(found, wanted)
    assert torch.autograd.gradcheck(ours, (values,))


def test_forward_is_pytorchs_to_the_bit() -> None:
    values = torch.randn(7, 129) * 13
    torch.testing.assert_close(RMSNorm(129, eps=1e-6)(values), nn.RMSNorm(129, eps=1e-6)(values), rtol=0, atol=0)


def test_a_zero_vector_stays_zero() -> None:
    values = torch.zeros(2, 8, requires_grad=True)
    normalised = RMSNorm(8, eps=1e-6, elementwise_affine=False)(values)
    normalised.sum().backward()
    assert normalised.abs().max() == 0
    torch.testing.assert_close(values.grad, torch.full((2, 8), 1e3))


def test_relu_squared() -> None:
    values = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(ReLUSquared()(values), F.relu(values).square())
    assert torch.autograd.gradcheck(ReLUSquared(), (values,))


@pytest.mark.parametrize("module", [RMSNorm(8, elementwise_affine=False), ReLUSquared()])
def test_half_precision_uses_pytorch(module: nn.Module) -> None:
    values = torch.randn(4, 8).bfloat16()
    wanted = module(values.float())
    torch.testing.assert_close(module(values).float(), wanted, rtol=0.02, atol=0.02)
