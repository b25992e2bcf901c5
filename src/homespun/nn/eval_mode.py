"""Evaluation mode for a block of code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def eval_mode(*parts: nn.Module) -> Iterator[None]:
    """Context of evaluation mode without gradients; restores the mode of every module."""
    modes = [(module, module.training) for part in parts for module in part.modules() if module.training]
    for part in parts:
        part.eval()
    try:
        # not inference_mode, whose cached tensors could not be used in training
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
