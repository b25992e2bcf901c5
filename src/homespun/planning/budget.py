"""Forecasts for a training budget: steps, tokens, epochs, a suitable model size, and the held-out loss.

The loss forecast is fitted to measured runs; add new runs to `CURVES`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from homespun.models.config import BackboneConfig, is_of_family
from homespun.training.config import Budget, Limits, steps_of_epochs

SIZE_EXPONENT, TOKEN_EXPONENT = 0.34, 0.28
"""Exponents of the loss in parameters and in tokens (Hoffmann et al. 2022, approach 3)."""

REPETITION_SCALE, EXCESS_SCALE = 15.387756, 5.309743
"""Epochs, and sizes above the optimal one, after which more are worth little (Muennighoff et al. 2023, appendix A)."""

MIN_GAIN = 0.01
"""Nats by which the expected loss of a larger size must be lower."""

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
        ends["epochs"] = float(steps_of_epochs(budget.epochs, per_epoch))
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


class PretrainingRun(NamedTuple):
    """Run whose learning rate decayed to the end."""

    parameters: int
    tokens: int
    loss: float  # held-out, nats a predicted token


class ScalingLaw(NamedTuple):
    """Loss ``E + A N^-0.34 + B D^-0.28`` of N parameters after D tokens (Hoffmann et al. 2022), also of repeated text.

    Repeated tokens, and parameters beyond the compute-optimal number for the text, count for less (Muennighoff et al.
    2023, equations 5 and 6).
    """

    constant: float  # E, nats
    size: float  # A
    data: float  # B

    def loss(self, parameters: float, tokens: float, epochs: float | None = None) -> float:
        """Expected loss in nats after ``tokens``, which are ``epochs`` of the text; None if it does not repeat."""
        if epochs is not None:
            unique = tokens / epochs
            optimal = self.parameters_for_tokens(unique)
            parameters = optimal * _diminished(parameters / optimal, EXCESS_SCALE)
            tokens = unique * _diminished(epochs, REPETITION_SCALE)
        return self.constant + self.size * parameters**-SIZE_EXPONENT + self.data * tokens**-TOKEN_EXPONENT

    def parameters_for_tokens(self, tokens: float) -> float:
        """Compute-optimal number of parameters of a training on ``tokens``, without repeated text."""
        return float((self._ratio * tokens**TOKEN_EXPONENT) ** (1 / SIZE_EXPONENT))

    def parameters_for_compute(self, compute: float) -> float:
        """Compute-optimal number of parameters, where parameters times tokens are ``compute``."""
        return float((self._ratio * compute**TOKEN_EXPONENT) ** (1 / (SIZE_EXPONENT + TOKEN_EXPONENT)))

    @property
    def _ratio(self) -> float:
        return SIZE_EXPONENT * self.size / (TOKEN_EXPONENT * self.data)


def _diminished(multiple: float, scale: float) -> float:
    """Effective multiple: above 1, further ones lose their value exponentially."""
    return multiple if multiple <= 1 else 1 - scale * math.expm1((1 - multiple) / scale)


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

    @cached_property
    def law(self) -> ScalingLaw:
        """The law with the least squares coefficients of the runs."""
        sizes, seen, losses = np.array(self.runs, dtype=float).T
        terms = np.stack([np.ones_like(sizes), sizes**-SIZE_EXPONENT, seen**-TOKEN_EXPONENT], axis=1)
        return ScalingLaw(*map(float, np.linalg.lstsq(terms, losses, rcond=None)[0]))

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


@dataclass(frozen=True)
class SizeCandidate:
    """Model size with the forecast of the budget."""

    name: str  # for example `mini`
    shape: str  # for example `4 layers of 256`
    parameters: int  # trained, word embeddings included
    reach: BudgetForecast

    @property
    def loss(self) -> float:
        """Expected loss on the text of the first of `CURVES`, in nats; only differences apply to other text."""
        return CURVES[0].law.loss(self.parameters, self.reach.tokens, self.reach.epochs)

    @property
    def optimal_parameters(self) -> float:
        """Compute-optimal number of parameters for the tokens of the budget, of one epoch at most."""
        return CURVES[0].law.parameters_for_tokens(self.reach.tokens / max(1.0, self.reach.epochs or 1.0))


@dataclass(frozen=True)
class SizeChoice:
    """The chosen size, and the next larger candidate."""

    chosen: SizeCandidate
    larger: SizeCandidate | None
    timed: bool  # the budget has a limit of time

    def reason(self) -> str:
        """Describe the size, the tokens of the budget, and the difference to the next larger size in one line."""
        size, reach = self.chosen, self.chosen.reach
        tokens = f"{in_millions(reach.tokens)} tokens"
        if reach.limit == "time":
            seconds, minutes, hours = reach.seconds, reach.seconds / 60, reach.seconds / 3600
            long = f"{minutes:.2g} minutes" if minutes < 90 else f"{hours:.2g} hours"
            duration = f"{seconds:.2g} seconds" if seconds < 90 else long
            tokens = f"{duration} at {reach.tokens / reach.seconds:,.0f} tokens/s are {tokens}"
        epochs = f", {reach.epochs:.1f} epochs" if (reach.epochs or 0) > 1 else ""
        shape = f"size {size.name}: {size.shape}, {in_millions(size.parameters)} parameters"
        return f"{shape}: {tokens}{epochs}; {self._rule()}"

    def _rule(self) -> str:
        if not self.timed:
            return f"compute-optimal: {in_millions(self.chosen.optimal_parameters)} parameters"
        if self.larger is None:
            return "the largest that fits"
        difference = self.larger.loss - self.chosen.loss
        return f"expected loss of {self.larger.name}: {difference:+.2f} nats"


def choose_size(candidates: Iterable[SizeCandidate], *, timed: bool) -> SizeChoice:
    """Choose the size with the lowest expected loss in a time, or else the size that suits the number of tokens.

    A larger model is always better after the same number of tokens. Without a limit of time (``timed``) the size
    nearest to the compute-optimal one is chosen, as a ratio; with it a size that is not better by `MIN_GAIN` than the
    next smaller one is not chosen.

    Args:
        candidates: at least one size, the smallest first; read up to the first that is not better than its predecessor.
        timed: the budget has a limit of time.
    """

    def cost(size: SizeCandidate) -> float:
        return size.loss if timed else abs(math.log(size.parameters / size.optimal_parameters))

    sizes = iter(candidates)
    chosen = next(sizes)
    for candidate in sizes:
        if cost(candidate) > cost(chosen) - (MIN_GAIN if timed else 0.0):
            return SizeChoice(chosen, candidate, timed)
        chosen = candidate
    return SizeChoice(chosen, None, timed)


THRESHOLD = ClassifierRun("financial topics", "spun-encoder", 4_200_000, 85.4, 85.1, "results/efficiency.md")
"""Fewest tokens after which a classifier was above TF-IDF with each of three seeds, by less than a standard error."""


@dataclass(frozen=True)
class LossForecast:
    """Expected result of a pretraining from scratch."""

    tokens: int  # tokens that the budget allows
    loss: float | None  # held-out, on the curve's text; None if no curve covers the model
    curve: LearningCurve | None
    seconds_to_threshold: float | None  # time of the tokens of `THRESHOLD`; None if the rate is unknown
    limit: str  # setting that ends the budget

    @property
    def below_threshold(self) -> bool:
        """True if no classifier was above TF-IDF with each seed after as few tokens of pretraining."""
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
        remedy = f"set {self._sufficient_budget()} (homespun fit: raise --time)"
        if self.limit == "epochs":
            remedy = "add text (homespun fit: --texts)"
        return (
            f"{in_millions(self.tokens)} tokens: measured classifiers were above TF-IDF with each of three seeds only "
            f"after {in_millions(best.tokens)} tokens of pretraining from scratch ({best.model}, {best.task}; "
            f"{best.source}); {remedy}, or start from a checkpoint (--from)"
        )

    def _sufficient_budget(self) -> str:
        if self.seconds_to_threshold is None:
            return f"train.budget.tokens={THRESHOLD.tokens / 1e6:g}M"
        minutes = math.ceil(self.seconds_to_threshold / 60)
        return f"train.budget.time={f'{minutes}m' if minutes < 180 else f'{math.ceil(minutes / 60)}h'}"

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
    reach: BudgetForecast,
) -> LossForecast:
    """Forecast the result of pretraining ``backbone`` from scratch for the steps and tokens of a budget.

    ``objective`` and ``optimizer`` are kinds; ``parameters`` are the trained ones.
    """
    curves = (
        curve
        for curve in CURVES
        if (curve.objective, curve.optimizer) == (objective, optimizer)
        and curve.covers(parameters, backbone.vocab_size, reach.tokens)
        and is_of_family(backbone, curve.family)
    )
    curve = next(curves, None)
    loss = None if curve is None else curve.law.loss(parameters, reach.tokens, reach.epochs)
    seconds = THRESHOLD.tokens * reach.seconds / reach.tokens if reach.seconds else None
    return LossForecast(reach.tokens, loss, curve, seconds, reach.limit)
