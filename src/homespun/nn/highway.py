"""Highway layers: a gate decides, feature by feature, how much of what came in goes on as it is."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

_CARRIED = -2.0  # of the gate's bias: at first most goes on as it came in (Srivastava et al. 2015, section 3.1)


class Highway(nn.Module):
    """``g relu(W x + b) + (1 - g) x`` with ``g = sigmoid(V x + c)`` (Srivastava et al. 2015)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.transform, self.gate = nn.Linear(size, size), nn.Linear(size, size)
        for linear, bias in ((self.transform, 0.0), (self.gate, _CARRIED)):
            nn.init.normal_(linear.weight, std=1 / math.sqrt(size))
            nn.init.constant_(linear.bias, bias)

    def forward(self, features: Tensor) -> Tensor:
        """(..., size) -> (..., size)."""
        return torch.lerp(features, self.transform(features).relu(), self.gate(features).sigmoid())
