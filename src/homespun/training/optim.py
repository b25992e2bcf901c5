"""Optimizers: parameter groups, AdamW, SOAP."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw as adamw_update

from homespun.errors import UserError

Group = dict[str, Any]

_STACK = re.compile(
    r"((?:^|.*?\.)backbone(?:\.(?:encoder|decoder))?)\.(?:layers\.(?P<layer>\d+)\.|(?P<final>final_norm\.))?.+"
)
_FUSED = ("cpu", "cuda", "mps", "xpu")


def layer_scales(names: Sequence[str], layer_decay: float) -> dict[str, float]:
    """Compute learning-rate factors ``layer_decay ** depth`` (Howard and Ruder 2018; Clark et al. 2020).

    Depth is 0 for heads and the ``final_norm`` of a stack, 1 for its last layer, and n + 1 for embeddings and other
    parameters before its n layers. Layers that share weights (``num_hidden_groups``) count as the first of them, and
    those of the last group as the last layer. The encoder and the decoder of a ``backbone`` are two stacks.
    """
    in_stack = {name: match for name in names if (match := _STACK.fullmatch(name))}
    layers: Counter[str] = Counter()  # number of layers of each stack
    for match in in_stack.values():
        if match["layer"]:
            layers[match[1]] = max(layers[match[1]], int(match["layer"]) + 1)
    depths = dict.fromkeys(names, 0)
    for name, match in in_stack.items():
        if match["layer"]:
            depths[name] = layers[match[1]] - int(match["layer"])
        elif not match["final"]:  # next to the encoder and the decoder: before both
            depths[name] = 1 + max((n for stack, n in layers.items() if stack.startswith(match[1])), default=0)
    return {name: layer_decay**depth for name, depth in depths.items()}


def parameter_groups(
    module: nn.Module, *, weight_decay: float, layer_decay: float = 1.0, others: float = 1.0, widest: int = 0
) -> list[Group]:
    """Group named parameters by ``weight_decay`` and by ``scale`` of the learning rate.

    Weight decay applies to matrices, embeddings included, but not to vectors (biases, weights of norms). Frozen
    parameters are skipped, tied parameters are counted once.

    Args:
        module: model to train.
        weight_decay: weight decay of matrices.
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
    """Build AdamW over `parameter_groups`, fused if the device has a kernel."""
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
    optimizer state is larger than Adam's by two m x m matrices. Matrix products follow `torch.autocast`.

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
        # the fused kernel skips a step with infinite gradients itself; the covariance needs `GradScaler` to skip it
        self._step_supports_amp_scaling = False
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
        stacks = self._stacks(parameters)
        bases, rotated, updates = [], [], []
        for matrices in stacks:
            gradient = _join([matrix.grad for matrix in matrices if matrix.grad is not None])
            basis = self._update_states(matrices, gradient)
            product = gradient @ basis if is_tall(gradient) else basis.mT @ gradient
            bases.append(basis)
            rotated.append(product.to(gradient.dtype))
            updates.append(torch.zeros_like(rotated[-1]))
        states = [self.state[matrix] for matrices in stacks for matrix in matrices]
        adamw_update(
            [update for stack in updates for update in _split(stack)],
            [gradient for stack in rotated for gradient in _split(stack)],
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
        for matrices, basis, update in zip(stacks, bases, updates, strict=True):
            back = update @ basis.mT if is_tall(update) else basis @ update
            for matrix, change in zip(matrices, _split(back), strict=True):
                matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(change)

    def _stacks(self, matrices: list[Tensor]) -> list[list[Tensor]]:
        """Group matrices of equal shape for which `is_stacked`; the others form groups of one."""
        groups: dict[object, list[Tensor]] = {}
        for matrix in matrices:
            key = (matrix.shape, self._steps.get(matrix)) if is_stacked(matrix.device) else id(matrix)
            groups.setdefault(key, []).append(matrix)
        return list(groups.values())

    def _update_states(self, matrices: list[Tensor], gradient: Tensor) -> Tensor:
        """Update the covariance of each matrix, and its basis if due; returns the bases, joined like ``gradient``."""
        states: list[dict[str, Tensor]] = [self.state[matrix] for matrix in matrices]
        side, tall = min(gradient.shape[-2:]), is_tall(gradient)
        for state, part in zip(states, _split(gradient), strict=True):
            if not state:
                # on the device of the matrix, as the fused kernel requires
                state["step"] = torch.zeros((), dtype=torch.float32, device=part.device)
                # contiguous, as products are: the fused kernel reads all of them in one order
                state["exp_avg"], state["exp_avg_sq"] = (part.new_zeros(part.shape) for _ in range(2))
                state["covariance"] = part.new_zeros(side, side)
                state["basis"] = torch.eye(side, dtype=part.dtype, device=part.device)
        product = gradient.mT @ gradient if tall else gradient @ gradient.mT
        for state, part in zip(states, _split(product.to(gradient.dtype)), strict=True):
            state["covariance"].lerp_(part, 1 - self.shampoo_beta)
        for matrix in matrices:
            self._steps[matrix] = self._steps.get(matrix, 0) + 1
        basis = _join([state["basis"] for state in states])
        step = self._steps[matrices[0]]
        if step not in _EARLY_STEPS and step % self.frequency:
            return basis
        covariance = _join([state["covariance"] for state in states])
        refined = is_stacked(basis.device) and step not in _EARLY_STEPS
        changed = _refine(basis, covariance) if refined else _eigenvectors(covariance)
        change = changed.mT @ basis
        mean = _join([state["exp_avg"] for state in states])
        mean = mean @ change.mT if tall else change @ mean
        for state, new_basis, new_mean in zip(states, _split(changed), _split(mean), strict=True):
            state["basis"].copy_(new_basis)
            state["exp_avg"].copy_(new_mean)
        return changed


def is_stacked(device: torch.device) -> bool:
    """True on a GPU, where launching a product of small matrices takes longer than computing it.

    With stacked matrices `_refine` replaces most eigendecompositions: on an H200, decomposing 16 matrices of 256 x 256
    takes 80 ms, and a step without decompositions 25 ms.
    """
    return device.type != "cpu"


def _join(matrices: list[Tensor]) -> Tensor:
    """Stack matrices to (matrices, rows, columns); a single matrix is returned unchanged."""
    return matrices[0] if len(matrices) == 1 else torch.stack(matrices)


def _split(joined: Tensor) -> list[Tensor]:
    """Undo `_join`, as views."""
    return [joined] if joined.ndim == 2 else list(joined.unbind())


def is_tall(matrix: Tensor) -> bool:
    """True if the matrix has more rows than columns; the columns are then rotated."""
    return matrix.shape[-2] > matrix.shape[-1]


def _eigenvectors(covariance: Tensor) -> Tensor:
    """Compute the (..., m, m) eigenvectors, in columns, of (..., m, m) positive semidefinite matrices."""
    scale = (
        covariance.diagonal(dim1=-2, dim2=-1).amax(-1).clamp(min=torch.finfo(covariance.dtype).tiny)[..., None, None]
    )
    return torch.linalg.eigh(covariance / scale)[1]


_DAMPING = 0.3  # pairs of eigenvalues that differ by less than this share rotate less
_ROUNDS = 3  # 1: 0.03 nats more than with eigendecompositions after 1.1 M tokens; 3: 0.01, less than seeds differ by


def _refine(basis: Tensor, covariance: Tensor) -> Tensor:
    """Update the (..., m, m) eigenvectors of an earlier covariance by first-order perturbation theory.

    Eigenvector j gains ``d_ij / (d_j - d_i)`` of eigenvector i, where d is the covariance in the earlier basis, damped
    where the eigenvalues are close. A Cholesky decomposition makes the columns orthogonal again. A GPU computes this
    for many matrices at once. The order of the columns is preserved; a basis for which the decomposition fails is kept.
    """
    refined = basis
    with torch.autocast(basis.device.type, enabled=False):
        for _ in range(_ROUNDS):
            rotated = refined.mT @ covariance @ refined
            values = rotated.diagonal(dim1=-2, dim2=-1).clamp(min=torch.finfo(basis.dtype).tiny)
            right, left = values[..., None, :], values[..., None]
            scale = right + left
            gaps = (right - left) / scale
            damping = _DAMPING**2 * right * left / scale**2
            columns = refined + refined @ (rotated / scale * gaps / (gaps.square() + damping))
            factor = torch.linalg.cholesky_ex(columns.mT @ columns).L
            refined = torch.linalg.solve_triangular(factor.mT, columns, upper=True, left=False)
    works = refined.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    return torch.where(works, refined, basis)
