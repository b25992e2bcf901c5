"""TensorBoard log of a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from homespun.errors import UserError
from homespun.training.validation import by_term

if TYPE_CHECKING:
    from homespun.training.trainer import StepResult


class TensorBoard:
    """Writer of steps and validations into ``folder``; hides entries from ``step`` on, which are repeated.

    Raises:
        UserError: TensorBoard is not installed.
    """

    def __init__(self, folder: Path, *, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UserError(
                "train.tensorboard needs TensorBoard: pip install 'homespun[track]', or set it to false"
            ) from error
        self._writer: Any = SummaryWriter(str(folder), purge_step=step + 1)

    def write(self, step: StepResult) -> None:
        """Write a step, with its validation if any."""
        figures: dict[str, object] = {
            "train/learning_rate": step.learning_rate,
            "train/gradient_norm": step.gradient_norm,
            "train/tokens_per_second": step.tokens_per_second,
        }
        figures |= {f"train/{name}": value for name, value in by_term(step.loss, step.losses).items()}
        if step.validation is not None:
            losses = by_term(step.validation.loss, step.validation.losses)
            figures |= {f"validation/{name}": value for name, value in losses.items()}
            figures |= {f"validation/metrics/{name}": value for name, value in step.validation.metrics.items()}
        for name, value in figures.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                self._writer.add_scalar(name, value, step.number)

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()
