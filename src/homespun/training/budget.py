"""Progress of a training within its budget."""

from __future__ import annotations

import math
from dataclasses import dataclass

from homespun.training.config import Budget


@dataclass(frozen=True)
class Progress:
    """Totals of a run, over all resumes."""

    steps: int = 0
    tokens: int = 0  # padding excluded
    seconds: float = 0.0  # wall clock of training
    step_seconds: float = 0.0  # recent time of a step; 0 before the first
    closing_seconds: float = 0.0  # expected time of the last validation; 0 before the first


@dataclass(frozen=True)
class Limits:
    """A budget in the units of `Progress`."""

    seconds: float = math.inf
    tokens: float = math.inf
    steps: float = math.inf

    @classmethod
    def of(cls, budget: Budget, *, steps_per_epoch: int) -> Limits:
        """Epochs become steps, rounded up."""
        steps = math.inf if budget.steps is None else budget.steps
        if budget.epochs is not None:
            steps = min(steps, math.ceil(budget.epochs * steps_per_epoch))
        return cls(budget.time or math.inf, budget.tokens or math.inf, steps)

    def share(self, progress: Progress) -> float:
        """Used share of the budget, 0 to 1: the largest over its limits."""
        return min(1.0, self._share(progress, ahead=0.0))

    def share_at_mid_step(self, progress: Progress) -> float:
        """Share at the middle of the next step, at which its learning rate is read.

        So the first step of a warmup has a rate above zero, and the last is as near to the end as possible.
        """
        return min(1.0, self._share(progress, ahead=0.5))

    def is_over(self, progress: Progress) -> bool:
        """True if the middle of the next step is outside the budget: a run ends at most half a step off."""
        return self._share(progress, ahead=0.5) >= 1.0

    def seconds_left(self, progress: Progress) -> float | None:
        """Remaining time at the pace so far; ``None`` before the first step."""
        share = self.share(progress)
        return progress.seconds * (1.0 - share) / share if share and progress.steps else None

    def _share(self, progress: Progress, *, ahead: float) -> float:
        if not self.steps:
            return 1.0
        tokens_per_step = progress.tokens / progress.steps if progress.steps else 0.0
        # time for the last validation is set aside; at most half, so that a slow validation leaves time to train
        seconds = self.seconds - min(progress.closing_seconds, 0.5 * self.seconds)
        return max(
            (progress.steps + ahead) / self.steps,
            (progress.tokens + ahead * tokens_per_step) / self.tokens,
            (progress.seconds + ahead * progress.step_seconds) / seconds,
        )
