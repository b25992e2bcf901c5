"""Reach of a training budget, and the model size that suits it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from homespun.training.config import Budget, Limits

TOKENS_PER_PARAMETER = 10.5
"""Compute-optimal tokens a parameter (nanochat, dev/LOG.md), so that N = sqrt(C / 63) for a compute of C FLOPs.

spun-decoder: after 3 minutes of one core tiny is 0.58 nats ahead of mini, and the learning curves
(`homespun.planning.forecast`) cross where this rule changes from tiny to mini (results/efficiency.md).
"""

PASSES = 4.0
"""Epochs that count: repeated text is worth less and less from the fifth on (Muennighoff et al. 2023)."""


@dataclass(frozen=True)
class DatasetSize:
    """Rows and tokens of an epoch; None: not known, as of made-up text."""

    rows: int | None
    tokens: int | None

    def scaled(self, share: float) -> DatasetSize:
        """A share of the dataset."""
        return DatasetSize(*(None if n is None else max(1, round(share * n)) for n in (self.rows, self.tokens)))

    def with_row_tokens(self, row_tokens: float) -> DatasetSize:
        """The same rows with ``row_tokens`` tokens each, of input and target."""
        return DatasetSize(self.rows, None if self.rows is None else round(self.rows * row_tokens))


@dataclass(frozen=True)
class BudgetForecast:
    """Reach of a budget; ``limit`` names the setting that ends it."""

    limit: str
    steps: int
    tokens: int
    seconds: float
    epochs: float | None


def forecast_budget(
    budget: Budget, dataset: DatasetSize, *, batch_size: int, row_tokens: float, step_seconds: float | None
) -> BudgetForecast:
    """Reach of ``budget``, without its validations.

    With ``step_seconds`` None a budget of time reaches an unknown number of steps, and others take 0 seconds.
    """
    seconds = step_seconds or 0.0
    per_epoch = None if dataset.rows is None else -(-dataset.rows // batch_size)
    limits = Limits.of(budget, steps_per_epoch=per_epoch or 1)
    # the last steps of an epoch are smaller
    step_tokens = row_tokens * (batch_size if dataset.rows is None or per_epoch is None else dataset.rows / per_epoch)
    ends = {"time": limits.seconds / seconds if seconds else math.inf, "tokens": limits.tokens / step_tokens}
    if budget.steps is not None:
        ends["steps"] = float(budget.steps)
    if budget.epochs is not None and per_epoch is not None:
        ends["epochs"] = float(math.ceil(budget.epochs * per_epoch))
    limit = min(ends, key=lambda name: ends[name])
    if math.isinf(ends[limit]) or (step_seconds is None and budget.time is not None):
        return BudgetForecast("unknown", 0, 0, 0.0, None)
    steps = max(1, round(ends[limit]))
    epochs = None if per_epoch is None else steps / per_epoch
    return BudgetForecast(limit, steps, round(steps * step_tokens), steps * seconds, epochs)


def step_warning(budget: Budget, reach: BudgetForecast) -> str | None:
    """A warning if a single step exceeds the budget."""
    if reach.steps == 1 and budget.tokens is not None and reach.tokens > budget.tokens:
        taken, limit = f"{reach.tokens:,} tokens", f"{budget.tokens:,}"
    elif reach.steps == 1 and budget.time is not None and reach.seconds > budget.time:
        taken, limit = f"{reach.seconds:.2g} s", f"{budget.time:g} s"
    else:
        return None
    return f"one step takes {taken}, more than the budget of {limit}; lower train.batch_size, or raise the budget"


def epochs_warning(budget: Budget, dataset: DatasetSize) -> str | None:
    """A warning if the budget has more tokens than the dataset."""
    if budget.tokens is None or not dataset.tokens or budget.tokens <= dataset.tokens:
        return None
    return (
        f"train.budget.tokens={budget.tokens:,} of a corpus with {dataset.tokens:,} training tokens means "
        f"{budget.tokens / dataset.tokens:,.1f} epochs; add text, or lower train.budget.tokens"
    )


def in_millions(count: float) -> str:
    """``1.2 M``, below 100,000 ``51,234``."""
    return f"{count / 1e6:,.1f} M" if count >= 1e5 else f"{count:,.0f}"


@dataclass(frozen=True)
class SizeCandidate:
    """A model size, and how far the budget reaches with it."""

    name: str  # such as `mini`
    shape: str  # such as `4 layers of 256`
    parameters: int  # trained, word embeddings among them
    reach: BudgetForecast
    dataset: DatasetSize

    @property
    def tokens(self) -> float:
        """Tokens of the budget, at most `PASSES` passes over the dataset."""
        return min(self.reach.tokens, PASSES * (self.dataset.tokens or math.inf))

    @property
    def tokens_per_parameter(self) -> float:
        """``tokens / parameters``."""
        return self.tokens / self.parameters


@dataclass(frozen=True)
class SizeChoice:
    """A chosen size, and the next larger one that was tried."""

    chosen: SizeCandidate
    larger: SizeCandidate | None = None

    def reason(self) -> str:
        """One line: the size, the tokens of the budget, and the tokens a parameter."""
        size, reach, corpus = self.chosen, self.chosen.reach, self.chosen.dataset.tokens
        seen = f"{in_millions(reach.tokens)} tokens"
        if reach.limit == "time":
            minutes = reach.seconds / 60
            duration = f"{minutes:.2g} minutes" if minutes < 90 else f"{minutes / 60:.2g} hours"
            seen = f"{duration} at {reach.tokens / reach.seconds:,.0f} tokens/s are {seen}"
        if size.tokens < reach.tokens and corpus:
            seen += f", of which {PASSES:.0f} passes over the text's {in_millions(corpus)} count"
        others = "" if self.larger is None else f"; {self.larger.name}: {self.larger.tokens_per_parameter:.2g}"
        return (
            f"size {size.name}: {size.shape}, {in_millions(size.parameters)} parameters: {seen}, "
            f"{size.tokens_per_parameter:.2g} a parameter (best: {TOKENS_PER_PARAMETER}{others})"
        )


def choose_size(candidates: Iterable[SizeCandidate]) -> SizeChoice:
    """The size whose tokens a parameter are nearest to `TOKENS_PER_PARAMETER`, in proportion.

    ``candidates``: at least one, smallest first; not read beyond the first that is further off than the one before.
    """

    def distance(size: SizeCandidate) -> float:
        return abs(math.log(size.tokens_per_parameter / TOKENS_PER_PARAMETER))

    sizes = iter(candidates)
    chosen = next(sizes)
    for candidate in sizes:
        if distance(candidate) > distance(chosen):
            return SizeChoice(chosen, candidate)
        chosen = candidate
    return SizeChoice(chosen)
