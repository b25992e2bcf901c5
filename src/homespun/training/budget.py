"""How much of a budget is used, and when it is over: pure arithmetic over what was done so far."""

from __future__ import annotations

import math
from dataclasses import dataclass

from homespun.training.config import Budget


@dataclass(frozen=True)
class Progress:
    """What a run has done, over all resumes."""

    steps: int = 0
    tokens: int = 0  # padding excluded
    seconds: float = 0.0  # wall clock of training
    step_seconds: float = 0.0  # what a step takes of late; 0 before the first
    closing_seconds: float = 0.0  # what the last validation will take; 0 before the first


@dataclass(frozen=True)
class Limits:
    """A budget in figures that compare to `Progress`."""

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
        """The used share of the budget, 0 to 1: the largest over its limits."""
        return min(1.0, self._share(progress, ahead=0.0))

    def share_at_mid_step(self, progress: Progress) -> float:
        """The share at the middle of the next step: where its learning rate is read.

        Read at its middle, the first step of a warmup is not lost to a rate of zero, and the last is as near to the
        end as a step can be.
        """
        return min(1.0, self._share(progress, ahead=0.5))

    def is_over(self, progress: Progress) -> bool:
        """Whether the next step would lie more outside the budget than inside: a run ends at most half a step off."""
        return self._share(progress, ahead=0.5) >= 1.0

    def seconds_left(self, progress: Progress) -> float | None:
        """Time until the end at the pace so far; ``None`` before the first step."""
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
