"""Forecasts from measured curves."""

import dataclasses

import pytest

from homespun.commands.recipe import load_recipe
from homespun.models.config import BackboneConfig
from homespun.planning.budget import CURVES, THRESHOLD, BudgetForecast, LearningCurve, LossForecast, forecast_loss

CURVE = CURVES[0]


def backbone(name: str = "spun-decoder", *changes: str) -> BackboneConfig:
    size = ["model.size=mini", "model.vocab_size=8000"] if name.startswith("spun-") else []
    recipe = load_recipe(name, [*size, *changes])
    return recipe.backbone


def predicted(tokens: int, *, model: BackboneConfig | None = None, **changes: object) -> LossForecast:
    rate = changes.pop("tokens_per_second", 1000.0)
    reach = BudgetForecast(
        changes.pop("limit", "tokens"), 7, tokens, tokens / rate if rate else 0.0, changes.pop("epochs", None)
    )
    given = {"objective": "clm", "optimizer": "soap", "parameters": 5_193_728} | changes
    return forecast_loss(model or backbone(), reach=reach, **given)


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: curve.family)
def test_curves_go_through_their_runs(curve: LearningCurve) -> None:
    for run in curve.runs:
        assert curve.law.loss(run.parameters, run.tokens) == pytest.approx(run.loss, abs=0.05)
        assert run.loss < curve.unigram


def test_a_curve_predicts_a_run_that_it_has_not_seen() -> None:
    first, *others = CURVE.runs
    unseen = dataclasses.replace(CURVE, runs=tuple(others))
    assert unseen.law.loss(first.parameters, first.tokens) == pytest.approx(first.loss, abs=0.05)


def test_more_tokens_have_a_lower_loss() -> None:
    losses = [CURVE.law.loss(5e6, tokens) for tokens in (3e5, 1e6, 3e6, 1e7)]
    assert losses == sorted(losses, reverse=True)


def test_a_forecast_is_of_the_curve_of_its_model() -> None:
    found = predicted(1_200_000)
    assert found.loss == pytest.approx(3.65, abs=0.1)
    assert found.curve is CURVE
    assert found.to_dict()["unigram"] == CURVE.unigram
    assert f"{found.loss:.1f}" in str(found.summary())
    assert predicted(1_200_000, epochs=20.0).loss > found.loss + 0.2


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": "mlm"},
        {"optimizer": "adamw"},
        {"parameters": 50_000_000},
        {"model": backbone("causal-mini")},
        {"tokens": 10**10},
        {"model": backbone("spun-decoder", "model.vocab_size=261")},
    ],
)
def test_what_was_not_measured_has_no_loss(changes: dict[str, object]) -> None:
    found = predicted(**{"tokens": 1_200_000} | changes)
    assert found.loss is None
    assert found.summary() is None


def test_fewer_tokens_than_the_threshold_are_a_warning() -> None:
    tokens = THRESHOLD.tokens
    assert THRESHOLD.accuracy > THRESHOLD.tfidf
    below, above = predicted(tokens - 1), predicted(tokens)
    assert below.below_threshold
    assert not above.below_threshold
    assert above.warning() is None
    assert below.to_dict()["threshold_tokens"] == tokens
    assert below.seconds_to_threshold == pytest.approx(tokens / 1000)
    assert "train.budget.time=4h" in str(predicted(7, tokens_per_second=tokens / (3.5 * 3600)).warning())
    assert "train.budget.time=90m" in str(predicted(7, tokens_per_second=tokens / (90 * 60)).warning())
    assert "tokens" in str(predicted(7, tokens_per_second=None).warning())
    assert "--texts" in str(predicted(7, limit="epochs").warning())
    assert "--time" not in str(predicted(7, limit="epochs").warning())
