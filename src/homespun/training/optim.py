"""Parameter groups for optimizers: by role (matrices, embeddings, vectors) and by depth."""

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
    """Factor of the learning rate of each named parameter: ``layer_decay ** (layers above it)``.

    Parameters outside a ``backbone`` (heads) and its ``final_norm`` have the full rate; the last of its ``layers.<i>``
    is one below, and the embeddings with the rest of the backbone are below the first (Clark et al. 2020; Howard and
    Ruder 2018).
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

    Vectors (biases, weights of norms) do not decay; matrices, embeddings included, do. Frozen parameters are left out;
    a tied one is there once.

    Args:
        module: to be trained.
        weight_decay: of matrices.
        layer_decay: see `layer_scales`.
        others: scale of the learning rate of parameters without ``rotate``.
        widest: matrices whose smaller side is at most this are in groups with ``rotate``, see
            `homespun.training.soap.OneSidedSoap`.

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
        empty = {"params": [], "weight_decay": weight_decay if decays else 0.0, "scale": scale, "rotate": rotate}
        groups.setdefault((decays, rotate, scale), empty)["params"].append((name, parameter))
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
