"""Default device for training and prediction."""

from __future__ import annotations

import os

import torch


def best_device() -> torch.device:
    """Return the accelerator of this machine, or the CPU without one or with ``ACCELERATE_USE_CPU=true``."""
    forced = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
    accelerator = None if forced else torch.accelerator.current_accelerator(check_available=True)
    return accelerator or torch.device("cpu")
