"""The size of a model from its budget: the tokens that each of its parameters sees."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from homespun.planning.outlook import Outlook, Text, in_millions

TOKENS_PER_PARAMETER = 10.5
"""Tokens a parameter at which an amount of compute C is spent best (nanochat, dev/LOG.md), so that N = sqrt(C / 63).

Measured on spun-decoder: after 3 minutes of one core tiny is 0.58 nats ahead of mini, and the curve through runs of
three sizes (`homespun.planning.forecast`) changes from tiny to mini where this does (results/efficiency.md).
"""

PASSES = 4.0
"""Passes over the text that count: repeated text is worth less and less from the fifth on (Muennighoff et al. 2023)."""


@dataclass(frozen=True)
class Candidate:
    """A size of a model, and how far the budget reaches with it.

    Args:
        name: such as ``mini``.
        shape: such as ``4 layers of 256``.
        parameters: of what is trained, word embeddings among them.
        reach: of the budget.
        text: what there is to train on.
    """

    name: str
    shape: str
    parameters: int
    reach: Outlook
    text: Text

    @property
    def tokens(self) -> float:
        """Tokens that count: those of the budget, of at most `PASSES` passes over the text."""
        return min(self.reach.tokens, PASSES * (self.text.tokens or math.inf))

    @property
    def tokens_per_parameter(self) -> float:
        """Tokens that count / parameters."""
        return self.tokens / self.parameters


@dataclass(frozen=True)
class SizeChoice:
    """A chosen size; ``larger`` is the next one, which was left."""

    chosen: Candidate
    larger: Candidate | None = None

    def reason(self) -> str:
        """What was chosen and why, in one line."""
        size, reach, corpus = self.chosen, self.chosen.reach, self.chosen.text.tokens
        seen = f"{in_millions(reach.tokens)} tokens"
        if reach.limit == "time":
            seen = f"{_time(reach.seconds)} at {reach.tokens / reach.seconds:,.0f} tokens/s are {seen}"
        if size.tokens < reach.tokens and corpus:
            seen += f", of which {PASSES:.0f} passes over the text's {in_millions(corpus)} count"
        others = "" if self.larger is None else f"; {self.larger.name}: {self.larger.tokens_per_parameter:.2g}"
        return (
            f"size {size.name}: {size.shape}, {in_millions(size.parameters)} parameters: {seen}, "
            f"{size.tokens_per_parameter:.2g} a parameter (best: {TOKENS_PER_PARAMETER}{others})"
        )


def choose_size(candidates: Iterable[Candidate]) -> SizeChoice:
    """The size whose tokens a parameter are nearest to `TOKENS_PER_PARAMETER`, in proportion.

    Args:
        candidates: at least one, smallest first. None is asked for after the first that is further off.
    """
    best: Candidate | None = None
    for candidate in candidates:
        if best is not None and _distance(candidate) > _distance(best):
            return SizeChoice(best, candidate)
        best = candidate
    assert best is not None
    return SizeChoice(best)


def _distance(candidate: Candidate) -> float:
    return abs(math.log(candidate.tokens_per_parameter / TOKENS_PER_PARAMETER))


def _time(seconds: float) -> str:
    return f"{seconds / 60:.2g} minutes" if seconds < 5400 else f"{seconds / 3600:.2g} hours"
