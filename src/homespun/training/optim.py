"""Optimizers over named parameter groups: by role (matrices, embeddings, vectors) and by depth."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from homespun.errors import UserError

Group = dict[str, Any]

_BACKBONE = re.compile(r"(?P<backbone>(?:^|.*?\.)backbone)\.(?P<rest>.+)")
_FUSED = ("cpu", "cuda", "mps", "xpu")
_LAYER = re.compile(r"layers\.(?P<number>\d+)\.")


def layer_scales(names: Sequence[str], layer_decay: float) -> dict[str, float]:
    """By what the rate of each named parameter is multiplied: ``layer_decay ** (layers above it)``.

    What is outside a ``backbone`` (heads) and its ``final_norm`` are at the top and learn at the full rate; the last of
    its ``layers.<i>`` comes one below, and the embeddings with all else of the backbone below the first (Clark et al.
    2020; Howard and Ruder 2018).
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
        above = 0
        if name in parts:
            backbone, rest = parts[name]
            if layer := _LAYER.match(rest):
                above = layers[backbone] - int(layer["number"])
            elif not rest.startswith("final_norm."):
                above = layers[backbone] + 1
        scales[name] = layer_decay**above
    return scales


def parameter_groups(
    module: nn.Module, *, weight_decay: float, layer_decay: float = 1.0, others: float = 1.0, widest: int = 0
) -> list[Group]:
    """Groups of named parameters, each with its ``weight_decay`` and its ``scale`` of the learning rate.

    Vectors (biases, and the weights of norms) do not decay; matrices, embeddings among them, do. Frozen parameters are
    left out, and a tied one is there once.

    Args:
        module: what is trained.
        weight_decay: of matrices.
        layer_decay: see `layer_scales`.
        others: scale of the learning rate of parameters that are not rotated.
        widest: matrices whose smaller side is at most this are in groups with ``rotate``, see
            `homespun.training.soap.OneSidedSoap`.

    Raises:
        UserError: nothing in ``module`` learns.
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
        empty = {"params": [], "weight_decay": weight_decay if decays else 0.0, "scale": scale, "rotate": rotate}
        groups.setdefault((decays, rotate, scale), empty)["params"].append((name, parameter))
    return list(groups.values())


def adamw(
    groups: list[Group], *, learning_rate: float, betas: tuple[float, float], eps: float
) -> torch.optim.Optimizer:
    """AdamW over `parameter_groups`, fused where the device has a kernel for it."""
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, eps=eps, fused=has_fused(groups))


def has_fused(groups: list[Group]) -> bool:
    """Whether AdamW has a fused kernel for these parameters."""
    return all(parameter.device.type in _FUSED for group in groups for _, parameter in group["params"])


def adafactor(
    groups: list[Group], *, learning_rate: float, beta2_decay: float, clip_threshold: float, eps: tuple[float, float]
) -> torch.optim.Optimizer:
    """Adafactor (Shazeer and Stern 2018) over `parameter_groups`: of a matrix it keeps only sums of rows and columns.

    Its rate is relative, to the size of what it changes, and never above ``1 / sqrt(step)``.
    """
    return torch.optim.Adafactor(groups, lr=learning_rate, beta2_decay=beta2_decay, eps=eps, d=clip_threshold)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Give every group its ``scale`` of ``learning_rate``."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group.get("scale", 1.0)
