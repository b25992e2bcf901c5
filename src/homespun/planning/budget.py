"""Forecasts for a training budget: steps, tokens, epochs, a suitable model size, and the held-out loss.

The loss forecast is fitted to measured runs; add new runs to `CURVES`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from homespun.models.config import BackboneConfig, is_of_family
from homespun.training.config import Budget, Limits

TOKENS_PER_PARAMETER = 10.5
"""Compute-optimal tokens per parameter (nanochat, dev/LOG.md): N = sqrt(C / 63) for a compute of C FLOPs.

Measured for spun-decoder: after 3 minutes of one core tiny is 0.58 nats ahead of mini, and the `CURVES` of
both sizes cross where this rule changes from tiny to mini (results/efficiency.md).
"""

MAX_EPOCHS = 4.0
"""Epochs that count: repeated text is worth less from the fifth epoch on (Muennighoff et al. 2023)."""

SIZE_EXPONENT, TOKEN_EXPONENT = 0.34, 0.28
"""Exponents of the loss in parameters and in tokens (Hoffmann et al. 2022, approach 3)."""

_MAX_TOKENS_RATIO = 10.0  # maximum ratio to the largest measured number of tokens
_MAX_SIZE_RATIO = 2.0  # maximum ratio of parameters or vocabulary to measured ones


@dataclass(frozen=True)
class DatasetSize:
    """Numbers of rows and tokens of an epoch; None if unknown, as for synthetic text."""

    rows: int | None
    tokens: int | None

    def scaled(self, share: float) -> DatasetSize:
        """Return the size of a share of the dataset."""
        return DatasetSize(*(None if n is None else max(1, round(share * n)) for n in (self.rows, self.tokens)))

    def with_row_tokens(self, row_tokens: float) -> DatasetSize:
        """Return the size with ``row_tokens`` tokens per row, source and target together."""
        return DatasetSize(self.rows, None if self.rows is None else round(self.rows * row_tokens))


@dataclass(frozen=True)
class BudgetForecast:
    """Totals at the end of a budget; ``limit`` names the setting that ends it."""

    limit: str
    steps: int
    tokens: int
    seconds: float
    epochs: float | None


def forecast_budget(
    budget: Budget, dataset: DatasetSize, *, batch_size: int, row_tokens: float, step_seconds: float | None
) -> BudgetForecast:
    """Forecast the totals at the end of ``budget``, without its validations.

    If ``step_seconds`` is None, the steps of a time budget are unknown and the steps of other budgets take 0 seconds.
    """
    seconds = step_seconds or 0.0
    per_epoch = None if dataset.rows is None else -(-dataset.rows // batch_size)
    limits = Limits.of(budget, steps_per_epoch=per_epoch or 1)
    # the last step of an epoch is smaller
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


def step_warning(budget: Budget, forecast: BudgetForecast) -> str | None:
    """Return a warning if a single step exceeds the budget."""
    if forecast.steps == 1 and budget.tokens is not None and forecast.tokens > budget.tokens:
        size, limit = f"{forecast.tokens:,} tokens", f"{budget.tokens:,}"
    elif forecast.steps == 1 and budget.time is not None and forecast.seconds > budget.time:
        size, limit = f"{forecast.seconds:.2g} s", f"{budget.time:g} s"
    else:
        return None
    return f"one step takes {size}, more than the budget of {limit}; lower train.batch_size or raise the budget"


def epochs_warning(budget: Budget, dataset: DatasetSize) -> str | None:
    """Return a warning if the budget has more tokens than the dataset."""
    if budget.tokens is None or not dataset.tokens or budget.tokens <= dataset.tokens:
        return None
    return (
        f"train.budget.tokens={budget.tokens:,} of a corpus with {dataset.tokens:,} training tokens means "
        f"{budget.tokens / dataset.tokens:,.1f} epochs; add text, or lower train.budget.tokens"
    )


def in_millions(count: float) -> str:
    """Format as ``1.2 M``, or as ``51,234`` below 100,000."""
    return f"{count / 1e6:,.1f} M" if count >= 1e5 else f"{count:,.0f}"


@dataclass(frozen=True)
class SizeCandidate:
    """Model size with the forecast of the budget."""

    name: str  # for example `mini`
    shape: str  # for example `4 layers of 256`
    parameters: int  # trained, word embeddings included
    reach: BudgetForecast
    dataset: DatasetSize

    @property
    def tokens(self) -> float:
        """Tokens of the budget, at most `MAX_EPOCHS` epochs of the dataset."""
        return min(self.reach.tokens, MAX_EPOCHS * (self.dataset.tokens or math.inf))

    @property
    def tokens_per_parameter(self) -> float:
        """``tokens / parameters``."""
        return self.tokens / self.parameters


@dataclass(frozen=True)
class SizeChoice:
    """The chosen size, and the next larger candidate."""

    chosen: SizeCandidate
    larger: SizeCandidate | None = None

    def reason(self) -> str:
        """Describe the size, the tokens of the budget and the tokens per parameter in one line."""
        size, reach, corpus = self.chosen, self.chosen.reach, self.chosen.dataset.tokens
        tokens = f"{in_millions(reach.tokens)} tokens"
        if reach.limit == "time":
            seconds, minutes, hours = reach.seconds, reach.seconds / 60, reach.seconds / 3600
            long = f"{minutes:.2g} minutes" if minutes < 90 else f"{hours:.2g} hours"
            duration = f"{seconds:.2g} seconds" if seconds < 90 else long
            tokens = f"{duration} at {reach.tokens / reach.seconds:,.0f} tokens/s are {tokens}"
        if size.tokens < reach.tokens and corpus:
            tokens += f", limited to {MAX_EPOCHS:.0f} epochs of {in_millions(corpus)}"
        larger = "" if self.larger is None else f"; {self.larger.name}: {self.larger.tokens_per_parameter:.2g}"
        return (
            f"size {size.name}: {size.shape}, {in_millions(size.parameters)} parameters: {tokens}, "
            f"{size.tokens_per_parameter:.2g} per parameter (optimal: {TOKENS_PER_PARAMETER}{larger})"
        )


def choose_size(candidates: Iterable[SizeCandidate]) -> SizeChoice:
    """Choose the size whose tokens per parameter are nearest to `TOKENS_PER_PARAMETER`, as a ratio.

    ``candidates`` has at least one size, the smallest first. It is read up to the first size with a worse ratio than
    its predecessor.
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


class PretrainingRun(NamedTuple):
    """Run whose learning rate decayed to the end."""

    parameters: int
    tokens: int
    loss: float  # held-out, nats a predicted token


@dataclass(frozen=True)
class LearningCurve:
    """Runs of one family on one text."""

    family: str  # family of presets
    objective: str  # kind
    optimizer: str  # kind
    text: str
    vocabulary: int
    unigram: float  # loss of the unigram baseline
    runs: tuple[PretrainingRun, ...]  # runs of several sizes and numbers of tokens
    source: str

    def loss(self, parameters: float, tokens: float) -> float:
        """Evaluate ``E + A N^-0.34 + B D^-0.28`` for N parameters and D tokens, with least squares coefficients."""
        sizes, seen, losses = np.array(self.runs, dtype=float).T
        terms = np.stack([np.ones_like(sizes), sizes**-SIZE_EXPONENT, seen**-TOKEN_EXPONENT], axis=1)
        weights = np.linalg.lstsq(terms, losses, rcond=None)[0]
        return float(weights @ [1.0, parameters**-SIZE_EXPONENT, tokens**-TOKEN_EXPONENT])

    def covers(self, parameters: float, vocabulary: int, tokens: float) -> bool:
        """True if model, vocabulary and tokens are close enough to the measured values."""
        sizes = [run.parameters for run in self.runs]
        return (
            min(sizes) / _MAX_SIZE_RATIO <= parameters <= max(sizes) * _MAX_SIZE_RATIO
            and self.vocabulary / _MAX_SIZE_RATIO <= vocabulary <= self.vocabulary * _MAX_SIZE_RATIO
            and tokens <= _MAX_TOKENS_RATIO * max(run.tokens for run in self.runs)
        )


class ClassifierRun(NamedTuple):
    """Accuracy of a classifier pretrained from scratch, and of TF-IDF with a linear model on the same examples."""

    task: str
    model: str
    tokens: int  # tokens of pretraining
    accuracy: float  # percent of the test examples
    tfidf: float
    source: str


_TINY, _MINI = 1_417_216, 5_193_728  # parameters of spun-decoder with a vocabulary of 8,000

CURVES = (
    LearningCurve(
        family="spun-decoder",
        objective="clm",
        optimizer="soap",
        text="annual reports and earnings calls",
        vocabulary=8_000,
        unigram=6.44,
        runs=(
            PretrainingRun(_TINY, 274_365, 4.678),
            PretrainingRun(_TINY, 1_099_560, 3.868),
            PretrainingRun(_TINY, 4_000_000, 3.370),
            PretrainingRun(_TINY, 20_120_000, 3.003),
            PretrainingRun(_MINI, 411_556, 4.177),
            PretrainingRun(_MINI, 1_200_000, 3.531),
        ),
        source="results/efficiency.md",
    ),
)

THRESHOLD = ClassifierRun("AG News", "causal-mini", 11_500_000, 92.18, 91.70, "results/agnews.md")
"""Fewest tokens after which a classifier beat TF-IDF; after 1 M, 1.4 M and 5.4 M none did (results/efficiency.md,
quickstart.md, agnews.md)."""


@dataclass(frozen=True)
class LossForecast:
    """Expected result of a pretraining from scratch."""

    tokens: int  # tokens that the budget allows
    loss: float | None  # held-out, on the curve's text; None if no curve covers the model
    curve: LearningCurve | None
    seconds_to_threshold: float | None  # time of the tokens of `THRESHOLD`; None if the rate is unknown

    @property
    def below_threshold(self) -> bool:
        """True if no measured classifier beat TF-IDF after as few tokens of pretraining."""
        return self.tokens < THRESHOLD.tokens

    def summary(self) -> str | None:
        """Describe the expected loss in one line; None if no curve covers the model."""
        if self.curve is None:
            return None
        most = max(run.tokens for run in self.curve.runs)
        beyond = f", extrapolated from at most {in_millions(most)}" if self.tokens > most else ""
        return (
            f"{in_millions(self.tokens)} tokens: held-out loss of about {self.loss:.1f} nats on {self.curve.text}, "
            f"unigram baseline {self.curve.unigram:.1f} ({self.curve.family}, {len(self.curve.runs)} runs{beyond}); "
            f"the loss on other text differs"
        )

    def warning(self) -> str | None:
        """Return a warning if the budget is below the threshold."""
        if not self.below_threshold:
            return None
        best = THRESHOLD
        budget = f"train.budget.tokens={best.tokens / 1e6:g}M"
        if self.seconds_to_threshold is not None:
            minutes = math.ceil(self.seconds_to_threshold / 60)
            budget = f"train.budget.time={f'{minutes}m' if minutes < 180 else f'{math.ceil(minutes / 60)}h'}"
        return (
            f"{in_millions(self.tokens)} tokens: measured classifiers beat TF-IDF only after "
            f"{in_millions(best.tokens)} tokens of pretraining from scratch ({best.model}, {best.task}; {best.source})"
            f"; set {budget} (homespun fit: raise --time), or start from a checkpoint (--from)"
        )

    def to_dict(self) -> dict[str, str | float | None]:
        """Return values for result files."""
        return {
            "summary": self.summary(),
            "tokens": self.tokens,
            "loss": self.loss,
            **{name: getattr(self.curve, name, None) for name in ("unigram", "text", "source")},
            "threshold_tokens": THRESHOLD.tokens,
            "threshold_source": THRESHOLD.source,
            "below_threshold": self.below_threshold,
            "seconds_to_threshold": self.seconds_to_threshold,
        }


def forecast_loss(
    backbone: BackboneConfig,
    *,
    objective: str,
    optimizer: str,
    parameters: int,
    tokens: int,
    tokens_per_second: float | None,
) -> LossForecast:
    """Forecast the result of pretraining ``backbone`` from scratch on the ``tokens`` of a budget.

    ``objective`` and ``optimizer`` are kinds; ``parameters`` are the trained ones; the rate is None if unknown.
    """
    curves = (
        curve
        for curve in CURVES
        if (curve.objective, curve.optimizer) == (objective, optimizer)
        and curve.covers(parameters, backbone.vocab_size, tokens)
        and is_of_family(backbone, curve.family)
    )
    curve = next(curves, None)
    loss = None if curve is None else curve.loss(parameters, tokens)
    seconds = THRESHOLD.tokens / tokens_per_second if tokens_per_second else None
    return LossForecast(tokens, loss, curve, seconds)
