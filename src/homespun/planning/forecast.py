"""Expected held-out loss of a pretraining budget, from measured runs: add new ones to `CURVES` and `CLASSIFIERS`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from homespun.models.config import BackboneConfig, is_of_family
from homespun.planning.budget import in_millions

SIZE_EXPONENT, TOKEN_EXPONENT = 0.34, 0.28
"""Exponents of the loss in parameters and in tokens (Hoffmann et al. 2022, approach 3)."""

_FAR = 10.0  # times the most tokens that were measured
_LARGER = 2.0  # times the largest model or vocabulary that was measured, or the smallest / this


class PretrainingRun(NamedTuple):
    """A finished run: its learning rate came down to its end."""

    parameters: int
    tokens: int
    loss: float  # held out, nats a predicted token


@dataclass(frozen=True)
class LearningCurve:
    """Finished runs of one family on one text."""

    family: str  # of presets
    objective: str  # its kind
    optimizer: str  # its kind
    text: str
    vocabulary: int
    unigram: float  # loss of the unigram baseline on that text
    runs: tuple[PretrainingRun, ...]  # at least two
    source: str

    def loss(self, parameters: float, tokens: float) -> float:
        """``E + A N^-0.34 + B D^-0.28`` of N parameters and D tokens, least squares; A is 0 for runs of one size."""
        sizes, seen, losses = np.array(self.runs, dtype=float).T
        several = float(len({*sizes}) > 1)
        terms = np.stack([np.ones_like(sizes), several * sizes**-SIZE_EXPONENT, seen**-TOKEN_EXPONENT], axis=1)
        weights = np.linalg.lstsq(terms, losses, rcond=None)[0]
        return float(weights @ [1.0, several * parameters**-SIZE_EXPONENT, tokens**-TOKEN_EXPONENT])

    def covers(self, parameters: float, vocabulary: int, tokens: float) -> bool:
        """True if model, vocabulary and tokens are near enough to the measured ones."""
        sizes = [run.parameters for run in self.runs]
        return (
            min(sizes) / _LARGER <= parameters <= max(sizes) * _LARGER
            and self.vocabulary / _LARGER <= vocabulary <= self.vocabulary * _LARGER
            and tokens <= _FAR * max(run.tokens for run in self.runs)
        )


class ClassifierRun(NamedTuple):
    """A classifier fine-tuned from a pretraining from scratch, and TF-IDF with a linear model on the same rows."""

    task: str
    model: str
    tokens: int  # of the pretraining
    accuracy: float  # percent of the test rows
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

CLASSIFIERS = (
    ClassifierRun("financial topics", "spun-decoder-mini", 1_050_000, 83.9, 85.1, "results/efficiency.md"),
    ClassifierRun("packages of Python", "spun-decoder-tiny", 1_420_000, 83.4, 88.1, "results/quickstart.md"),
    ClassifierRun("AG News", "causal-mini", 5_400_000, 90.95, 91.70, "results/agnews.md"),
    ClassifierRun("AG News", "causal-mini", 11_500_000, 92.18, 91.70, "results/agnews.md"),
    ClassifierRun("AG News", "spun-decoder-mini", 13_500_000, 92.54, 91.70, "results/agnews.md"),
    ClassifierRun("financial topics", "causal-mini", 12_500_000, 79.1, 85.1, "results/financial.md"),
    ClassifierRun("financial topics", "causal-mini", 48_600_000, 86.9, 85.1, "results/financial.md"),
    ClassifierRun("Financial PhraseBank", "causal-mini", 48_600_000, 80.7, 79.1, "results/financial.md"),
)


@dataclass(frozen=True)
class LossForecast:
    """Expected result of a pretraining from scratch."""

    tokens: int  # of the budget
    loss: float | None  # held out, on the curve's text; None where no curve covers the model
    curve: LearningCurve | None  # of the model's family
    threshold: ClassifierRun  # the run of fewest tokens whose classifier beat TF-IDF
    seconds_to_threshold: float | None  # time of as many tokens; None where the rate is not known

    @property
    def below_threshold(self) -> bool:
        """True if no pretraining on so few tokens was measured to pay for a classifier."""
        return self.tokens < self.threshold.tokens

    def summary(self) -> str | None:
        """The expected loss in one line; None where no curve covers the model."""
        if self.curve is None:
            return None
        most = max(run.tokens for run in self.curve.runs)
        beyond = f", extrapolated from at most {in_millions(most)}" if self.tokens > most else ""
        return (
            f"{in_millions(self.tokens)} tokens: held-out loss of about {self.loss:.1f} nats on text like "
            f"{self.curve.text}, where the unigram baseline has {self.curve.unigram:.1f} ({self.curve.family}, "
            f"{len(self.curve.runs)} runs{beyond}); other text has another loss"
        )

    def warning(self) -> str | None:
        """A warning if the budget is below the threshold."""
        if not self.below_threshold:
            return None
        best = self.threshold
        give = f"{in_millions(best.tokens)} tokens"
        if self.seconds_to_threshold is not None:
            minutes = math.ceil(self.seconds_to_threshold / 60)
            give = f"train.budget.time={f'{minutes}m' if minutes < 180 else f'{math.ceil(minutes / 60)}h'}"
        return (
            f"{in_millions(self.tokens)} tokens: a classifier has beaten TF-IDF after {in_millions(best.tokens)} "
            f"tokens of pretraining from scratch ({best.model}, {best.task}; {best.source}) and not after fewer; give "
            f"{give}, or start from a checkpoint (--from)"
        )

    def to_dict(self) -> dict[str, str | float | None]:
        """Values for result files."""
        return {
            "summary": self.summary(),
            "tokens": self.tokens,
            "loss": self.loss,
            **{name: getattr(self.curve, name, None) for name in ("unigram", "text", "source")},
            "threshold_tokens": self.threshold.tokens,
            "threshold_source": self.threshold.source,
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
    """Expected result of pretraining ``backbone`` from scratch.

    Args:
        objective, optimizer: their kinds.
        parameters: trained.
        tokens: of the budget.
        tokens_per_second: None: not known.
    """
    curves = (
        curve
        for curve in CURVES
        if (curve.objective, curve.optimizer) == (objective, optimizer)
        and curve.covers(parameters, backbone.vocab_size, tokens)
        and is_of_family(backbone, curve.family)
    )
    curve = next(curves, None)
    threshold = min((run for run in CLASSIFIERS if run.accuracy > run.tfidf), key=lambda run: run.tokens)
    loss = None if curve is None else curve.loss(parameters, tokens)
    seconds = threshold.tokens / tokens_per_second if tokens_per_second else None
    return LossForecast(tokens, loss, curve, threshold, seconds)
