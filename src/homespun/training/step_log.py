"""Result of a training step, its log entries and the TensorBoard log."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homespun.errors import UserError
from homespun.training.validation import EvalResult


@dataclass(frozen=True)
class StepResult:
    """Result of an optimizer step, over all its micro-batches and processes."""

    number: int  # 1 for the first
    epoch: float  # epochs so far
    tokens: int  # tokens so far, padding excluded
    share: float  # used share of the budget, 0 to 1
    learning_rate: float
    seconds: float  # seconds of this step, including data loading
    loss: float
    losses: dict[str, float]  # mean of each term
    gradient_norm: float  # before clipping
    validation: EvalResult | None
    tokens_per_second: float
    eta_seconds: float | None  # until the budget is used


def by_term(result: StepResult | EvalResult) -> dict[str, float]:
    """Return log entries: ``loss/total``, the weighted sum, and ``loss/TERM``, the mean of each term."""
    return {"loss/total": result.loss} | {f"loss/{term}": value for term, value in result.losses.items()}


class TensorBoard:
    """Write a TensorBoard log of steps and validations in ``folder``; entries after ``step`` are hidden.

    Raises:
        UserError: TensorBoard is not installed.
    """

    def __init__(self, folder: Path, *, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UserError(
                "train.tensorboard=true needs TensorBoard; pip install 'homespun[track]', or set it to false"
            ) from error
        self._writer: Any = SummaryWriter(str(folder), purge_step=step + 1)

    def write(self, step: StepResult) -> None:
        """Write a step and its validation, if any."""
        scalars: dict[str, object] = {
            "train/learning_rate": step.learning_rate,
            "train/gradient_norm": step.gradient_norm,
            "train/tokens_per_second": step.tokens_per_second,
        }
        scalars |= {f"train/{name}": value for name, value in by_term(step).items()}
        if step.validation is not None:
            scalars |= {f"validation/{name}": value for name, value in by_term(step.validation).items()}
            scalars |= {f"validation/metrics/{name}": value for name, value in step.validation.metrics.items()}
        for name, value in scalars.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                self._writer.add_scalar(name, value, step.number)

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()
