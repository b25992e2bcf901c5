"""How far a budget reaches: steps, tokens and passes over the data by its end."""

from __future__ import annotations

import math
from dataclasses import dataclass

from homespun.training.budget import Limits
from homespun.training.config import Budget


@dataclass(frozen=True)
class Text:
    """What there is to train on: rows of an epoch, and its tokens. Of made-up text nothing is known: ``None``."""

    rows: int | None
    tokens: int | None

    def share(self, part: float) -> Text:
        """So much of it."""
        return Text(*(None if whole is None else max(1, round(part * whole)) for whole in (self.rows, self.tokens)))

    def counted(self, row_tokens: float) -> Text:
        """The same rows, of so many tokens each: as a training counts them, in what it reads and in what it writes."""
        return Text(self.rows, None if self.rows is None else round(self.rows * row_tokens))


@dataclass(frozen=True)
class Outlook:
    """What a run comes to; ``limit`` is what ends it."""

    limit: str
    steps: int
    tokens: int
    seconds: float
    epochs: float | None


def outlook(budget: Budget, text: Text, *, batch_size: int, row_tokens: float, step_seconds: float | None) -> Outlook:
    """What ``budget`` ends in, at this pace; of its validations nothing is counted.

    Where ``step_seconds`` is None, a budget of time ends in what is unknown, and any other after 0 seconds.
    """
    if step_seconds is None and budget.time is not None:
        return Outlook("unknown", 0, 0, 0.0, None)
    pace = step_seconds or 0.0
    per_epoch = None if text.rows is None else -(-text.rows // batch_size)
    limits = Limits.of(budget, steps_per_epoch=per_epoch or 1)
    # the last steps of an epoch share what is left
    step_tokens = row_tokens * (batch_size if text.rows is None or per_epoch is None else text.rows / per_epoch)
    ends = {"time": limits.seconds / pace if pace else math.inf, "tokens": limits.tokens / step_tokens}
    if budget.steps is not None:
        ends["steps"] = float(budget.steps)
    if budget.epochs is not None and per_epoch is not None:
        ends["epochs"] = float(math.ceil(budget.epochs * per_epoch))
    limit = min(ends, key=lambda name: ends[name])
    if math.isinf(ends[limit]):
        return Outlook("unknown", 0, 0, 0.0, None)
    steps = max(1, round(ends[limit]))
    epochs = None if per_epoch is None else steps / per_epoch
    return Outlook(limit, steps, round(steps * step_tokens), steps * pace, epochs)


def short_of_step(budget: Budget, found: Outlook) -> str | None:
    """That the one step of ``found`` is more than was asked for, in words; ``None`` where it is not."""
    if found.steps == 1 and budget.tokens is not None and found.tokens > budget.tokens:
        return _beyond(f"{found.tokens:,} tokens", f"{budget.tokens:,}")
    if found.steps == 1 and budget.time is not None and found.seconds > budget.time:
        return _beyond(f"{found.seconds:.2g} s", f"{budget.time:g} s")
    return None


def _beyond(taken: str, asked: str) -> str:
    return f"a step alone takes {taken}, more than the {asked} of the budget; lower train.batch_size, or ask for more"


def short_of_text(budget: Budget, text: Text) -> str | None:
    """What it means to ask for more tokens than there are, in words; ``None`` where there are enough."""
    if budget.tokens is None or not text.tokens or budget.tokens <= text.tokens:
        return None
    epochs = budget.tokens / text.tokens
    return (
        f"train.budget.tokens={budget.tokens:,} of a corpus with {text.tokens:,} tokens to train on means "
        f"{epochs:,.1f} epochs: every token is seen that often; give more text, or ask for fewer tokens"
    )


def in_millions(count: float) -> str:
    """A count in words: ``1.2 M``, below 100,000 ``51,234``."""
    return f"{count / 1e6:,.1f} M" if count >= 1e5 else f"{count:,.0f}"
