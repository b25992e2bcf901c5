"""SOAP: Adam in the eigenbasis of the gradients' second moments, on one side of each matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor

LARGEST = 1024
"""Widest side whose eigenvectors are computed; a matrix whose both sides are wider is trained by Adam."""
_FIRST = frozenset({1, 2, 4, 8, 16})  # steps at which the basis is computed besides every `frequency` steps


class OneSidedSoap(torch.optim.AdamW):
    """One-sided SOAP for groups with ``rotate: True``, AdamW for the others.

    Of a matrix of m x n, m <= n, an average ``L`` of ``G G^T`` is kept, and Adam's update is computed on gradients
    rotated into its eigenvectors: ``Q adam(Q^T G)`` (Vyas et al. 2025, algorithm 3 and section "one-sided"). The
    mean of the gradients is kept unrotated, and enters with Nesterov's correction. Two m x m matrices a parameter are
    kept besides Adam's state. The products follow `torch.autocast`.

    Args:
        groups: with ``rotate``, see `homespun.training.optim.parameter_groups`.
        learning_rate, betas, eps: as in AdamW.
        frequency: steps between two eigendecompositions.
        shampoo_beta: decay of ``L``.
        momentum: decay of the mean of rotated matrices.
        fused: for AdamW.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        learning_rate: float,
        betas: tuple[float, float],
        eps: float,
        momentum: float,
        shampoo_beta: float,
        frequency: int,
        fused: bool,
    ) -> None:
        super().__init__(groups, lr=learning_rate, betas=betas, eps=eps, fused=fused)
        self.momentum, self.shampoo_beta, self.frequency = momentum, shampoo_beta, frequency

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One update of all parameters that have a gradient."""
        for group in self.param_groups:
            if group["rotate"]:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._rotated(parameter, group)
        rotated = [p for group in self.param_groups if group["rotate"] for p in group["params"]]
        gradients = [parameter.grad for parameter in rotated]
        for parameter in rotated:  # AdamW passes over parameters without a gradient
            parameter.grad = None
        result: float | None = super().step(closure)
        for parameter, gradient in zip(rotated, gradients, strict=True):
            parameter.grad = gradient
        return result

    def _rotated(self, parameter: Tensor, group: dict[str, Any]) -> None:
        assert parameter.grad is not None
        tall = parameter.shape[0] > parameter.shape[1]
        gradient = parameter.grad.T if tall else parameter.grad  # (m, n)
        state = self.state[parameter]
        if not state:
            side = gradient.new_zeros(gradient.shape[0], gradient.shape[0])
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["covariance"], state["basis"] = side, torch.zeros_like(side)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(gradient), torch.zeros_like(gradient)
        state["step"] += 1
        step = int(state["step"])
        state["covariance"].lerp_((gradient @ gradient.T).to(gradient.dtype), 1 - self.shampoo_beta)
        if step in _FIRST or step % self.frequency == 0:
            state["basis"].copy_(_eigenvectors(state["covariance"]))
        basis = state["basis"]
        state["exp_avg"].lerp_(gradient, 1 - self.momentum)
        mean = gradient.lerp(state["exp_avg"], self.momentum)
        beta = group["betas"][1]
        turned = (basis.T @ gradient).to(gradient.dtype)
        squares = state["exp_avg_sq"].mul_(beta).addcmul_(turned, turned, value=1 - beta)
        size = (squares / (1 - beta**step)).sqrt_().add_(group["eps"])
        update = basis @ ((basis.T @ mean).to(gradient.dtype) / size)
        update = update.to(gradient.dtype)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(update.T if tall else update, alpha=-group["lr"])


def _eigenvectors(covariance: Tensor) -> Tensor:
    """(m, m) positive semidefinite -> (m, m) eigenvectors in columns; those of zero are any."""
    scale = covariance.diagonal().amax().clamp(min=torch.finfo(covariance.dtype).tiny)
    vectors: Tensor = torch.linalg.eigh(covariance / scale)[1]
    return vectors
