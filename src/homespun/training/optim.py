"""Optimizers: parameter groups, AdamW, SOAP."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw as adamw_update

from homespun.errors import UserError

Group = dict[str, Any]

_BACKBONE = re.compile(r"(?P<backbone>(?:^|.*?\.)backbone)\.(?P<rest>.+)")
_FUSED = ("cpu", "cuda", "mps", "xpu")
_LAYER = re.compile(r"layers\.(?P<number>\d+)\.")


def layer_scales(names: Sequence[str], layer_decay: float) -> dict[str, float]:
    """Factors of the learning rate: ``layer_decay ** depth`` (Howard and Ruder 2018; Clark et al. 2020).

    Depth is 0 for heads and the ``final_norm`` of a ``backbone``, 1 for its last layer, and n + 1 for embeddings and
    other parameters before its n layers.
    """
    parts: dict[str, tuple[str, str]] = {}
    layers: dict[str, int] = {}
    for name in names:
        if match := _BACKBONE.fullmatch(name):
            backbone, rest = match["backbone"], match["rest"]
            parts[name] = backbone, rest
            layer = _LAYER.match(rest)
            layers[backbone] = max(layers.get(backbone, 0), int(layer["number"]) + 1 if layer else 0)
    scales = {}
    for name in names:
        depth = 0
        if name in parts:
            backbone, rest = parts[name]
            if layer := _LAYER.match(rest):
                depth = layers[backbone] - int(layer["number"])
            elif not rest.startswith("final_norm."):
                depth = layers[backbone] + 1
        scales[name] = layer_decay**depth
    return scales


def parameter_groups(
    module: nn.Module, *, weight_decay: float, layer_decay: float = 1.0, others: float = 1.0, widest: int = 0
) -> list[Group]:
    """Groups of named parameters, each with its ``weight_decay`` and its ``scale`` of the learning rate.

    Weight decay applies to matrices, embeddings included, but not to vectors (biases, weights of norms). Frozen
    parameters are skipped, tied ones counted once.

    Args:
        module: model to train.
        weight_decay: of matrices.
        layer_decay: see `layer_scales`.
        others: scale of the learning rate of parameters without ``rotate``.
        widest: maximum smaller side of matrices in groups with ``rotate``, see `OneSidedSoap`.

    Raises:
        UserError: every parameter is frozen.
    """
    named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    if not named:
        raise UserError("nothing to train: every parameter is frozen")
    scales = layer_scales([name for name, _ in named], layer_decay)
    groups: dict[tuple[bool, bool, float], Group] = {}
    for name, parameter in named:
        decays = parameter.ndim > 1
        rotate = parameter.ndim == 2 and min(parameter.shape) <= widest
        scale = scales[name] * (1.0 if rotate else others)
        new = {"params": [], "weight_decay": weight_decay if decays else 0.0, "scale": scale, "rotate": rotate}
        groups.setdefault((decays, rotate, scale), new)["params"].append((name, parameter))
    return list(groups.values())


def adamw(
    groups: list[Group], *, learning_rate: float, betas: tuple[float, float], eps: float
) -> torch.optim.Optimizer:
    """AdamW over `parameter_groups`, fused if the device has a kernel."""
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, eps=eps, fused=has_fused(groups))


def has_fused(groups: list[Group]) -> bool:
    """True if AdamW has a fused kernel for these parameters."""
    return all(parameter.device.type in _FUSED for group in groups for _, parameter in group["params"])


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate of every group to its ``scale`` of ``learning_rate``."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group.get("scale", 1.0)


MAX_SIDE = 1024
"""Maximum smaller side of a matrix that SOAP trains; AdamW trains larger ones."""
_EARLY_STEPS = frozenset({1, 2, 4, 8, 16})  # further steps at which the basis is computed
LAST_EARLY_STEP = max(_EARLY_STEPS)
"""Step after which the basis is computed only every ``frequency`` steps."""


class OneSidedSoap(torch.optim.AdamW):
    """One-sided SOAP for groups with ``rotate: True``, AdamW for the others.

    For an m x n matrix with m <= n and gradient ``G``, the update is ``Q adam(Q^T G)``, where ``Q`` holds the
    eigenvectors of an exponential average of ``G G^T`` (Vyas et al. 2025, algorithm 3, with the identity as the basis
    of the other side). When ``Q`` changes, the first moment is rotated with it, and the second moment is kept. The
    state of Adam grows by two m x m matrices. Matrix products follow `torch.autocast`.

    Args:
        groups: with ``rotate``, see `homespun.training.optim.parameter_groups`.
        learning_rate, betas, eps: as in AdamW.
        frequency: steps between two eigendecompositions.
        shampoo_beta: decay of the average of ``G G^T``.
        fused: use the fused kernel of AdamW.
    """

    def __init__(
        self,
        groups: list[Group],
        *,
        learning_rate: float,
        betas: tuple[float, float],
        eps: float,
        shampoo_beta: float,
        frequency: int,
        fused: bool,
    ) -> None:
        super().__init__(groups, lr=learning_rate, betas=betas, eps=eps, fused=fused)
        self.shampoo_beta, self.frequency = shampoo_beta, frequency
        # not a tensor of the state, because reading it would wait for the device, and fake tensors have no values
        self._steps: dict[Tensor, int] = {}

    def load_state_dict(self, state_dict: Group) -> None:
        """Load the state, and the number of steps of each matrix."""
        super().load_state_dict(state_dict)
        self._steps = {parameter: int(state["step"]) for parameter, state in self.state.items() if "basis" in state}

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update all parameters that have a gradient."""
        gradients: list[tuple[Tensor, Tensor]] = []
        for group in self.param_groups:
            if group["rotate"]:
                trained = [parameter for parameter in group["params"] if parameter.grad is not None]
                gradients += [(parameter, parameter.grad) for parameter in trained]
                self._update_rotated(trained, group)
        for parameter, _ in gradients:  # AdamW skips parameters without a gradient
            parameter.grad = None
        result: float | None = super().step(closure)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        return result

    def _update_rotated(self, parameters: list[Tensor], group: Group) -> None:
        if not parameters:
            return
        states, rotated = [], []
        for parameter in parameters:
            gradient = parameter.grad
            assert gradient is not None
            state = self._update_state(parameter, gradient)
            product = gradient @ state["basis"] if is_tall(gradient) else state["basis"].T @ gradient
            states.append(state)
            rotated.append(product.to(gradient.dtype))
        updates = [torch.zeros_like(gradient) for gradient in rotated]
        adamw_update(
            updates,
            rotated,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            foreach=False,
            fused=group["fused"],
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=0.0,
            eps=group["eps"],
            maximize=False,
        )
        for parameter, state, update in zip(parameters, states, updates, strict=True):
            back = update @ state["basis"].T if is_tall(parameter) else state["basis"] @ update
            parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(back)

    def _update_state(self, parameter: Tensor, gradient: Tensor) -> dict[str, Tensor]:
        """Update the covariance of a matrix, and its basis if due; returns its state."""
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            side = min(gradient.shape)
            state["step"] = torch.zeros((), dtype=torch.float32)
            # contiguous, as products are: the fused kernel reads all of them in one order
            state["exp_avg"], state["exp_avg_sq"] = (gradient.new_zeros(gradient.shape) for _ in range(2))
            state["covariance"] = gradient.new_zeros(side, side)
            state["basis"] = torch.eye(side, dtype=gradient.dtype, device=gradient.device)
        tall = is_tall(gradient)
        product = gradient.T @ gradient if tall else gradient @ gradient.T
        state["covariance"].lerp_(product.to(gradient.dtype), 1 - self.shampoo_beta)
        self._steps[parameter] = step = self._steps.get(parameter, 0) + 1
        if step in _EARLY_STEPS or step % self.frequency == 0:
            basis = _eigenvectors(state["covariance"])
            change = basis.T @ state["basis"]
            state["exp_avg"].copy_(state["exp_avg"] @ change.T if tall else change @ state["exp_avg"])
            state["basis"].copy_(basis)
        return state


def is_tall(matrix: Tensor) -> bool:
    """True if the matrix has more rows than columns, and the columns are rotated."""
    return matrix.shape[0] > matrix.shape[1]


def _eigenvectors(covariance: Tensor) -> Tensor:
    """(m, m) positive semidefinite -> (m, m) eigenvectors in columns."""
    scale = covariance.diagonal().amax().clamp(min=torch.finfo(covariance.dtype).tiny)
    vectors: Tensor = torch.linalg.eigh(covariance / scale)[1]
    return vectors
