"""Asking a model in the middle of its training, without a trace in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Without dropout or gradients; every part is afterwards in the mode that it was in before."""
    modes = [(module, module.training) for module in model.modules() if module.training]
    model.eval()
    try:
        # not inference_mode: a tensor that some part keeps for later could then never take part in training
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
