"""How far a budget reaches, and the size that suits it."""

import math
from collections.abc import Iterator

import pytest

from homespun.planning.budget import (
    CURVES,
    TOKENS_PER_PARAMETER,
    BudgetForecast,
    DatasetSize,
    SizeCandidate,
    SizeChoice,
    choose_size,
    epochs_warning,
    forecast_budget,
    step_warning,
)
from homespun.training.config import Budget

# spun-decoder with a vocabulary of 8,000, float32, one core of an AMD EPYC without bf16 (results/efficiency.md)
MEASURED = {"tiny": (1_417_216, 6108), "mini": (5_193_728, 1608)}
PLENTY = DatasetSize(rows=10**9, tokens=10**11)


def candidate(name: str, parameters: int, tokens: int, text: DatasetSize = PLENTY) -> SizeCandidate:
    return SizeCandidate(name, "2 layers of 64", parameters, BudgetForecast("tokens", 7, tokens, 0.0, None), text)


def of_minutes(minutes: float) -> SizeChoice:
    sizes = MEASURED.items()
    return choose_size(candidate(name, count, round(60 * minutes * rate)) for name, (count, rate) in sizes)


@pytest.mark.parametrize(("minutes", "name"), [(1, "tiny"), (5, "tiny"), (60, "tiny"), (240, "mini"), (2400, "mini")])
def test_more_time_gives_a_larger_model(minutes: float, name: str) -> None:
    assert of_minutes(minutes).chosen.name == name


@pytest.mark.parametrize("minutes", [3, 10, 30, 60, 120, 240, 480])
def test_the_choice_is_near_the_best_of_the_measured_curve(minutes: float) -> None:
    curve = next(curve for curve in CURVES if curve.family == "spun-decoder")
    losses = {name: curve.loss(count, 60 * minutes * rate) for name, (count, rate) in MEASURED.items()}
    assert losses[of_minutes(minutes).chosen.name] < min(losses.values()) + 0.03


def test_no_size_is_planned_after_one_that_is_further_off() -> None:
    asked = []

    def sizes() -> Iterator[SizeCandidate]:
        for number in range(5):
            asked.append(number)
            yield candidate(str(number), 10**6 * 3**number, round(TOKENS_PER_PARAMETER * 3 * 10**6))

    choice = choose_size(sizes())
    assert (choice.chosen.name, choice.larger and choice.larger.name) == ("1", "2")
    assert asked == [0, 1, 2]


def test_four_passes_over_a_small_text_count() -> None:
    small = DatasetSize(rows=100, tokens=50_000)
    repeated = candidate("tiny", 1_000_000, 10**9, small)
    assert repeated.tokens == 200_000
    assert repeated.tokens_per_parameter == pytest.approx(0.2)
    larger = candidate("mini", 5_000_000, 10**9, small)
    assert choose_size([repeated, larger]).chosen is repeated
    assert choose_size([candidate("tiny", 1_000_000, 10**9), candidate("mini", 5_000_000, 10**9)]).chosen.name == "mini"


def test_the_reason_has_the_figures() -> None:
    reason = of_minutes(5).reason()
    tokens = 300 * MEASURED["tiny"][1]
    assert "tiny" in reason
    assert f"{tokens / 1e6:.1f} M" in reason
    assert f"{tokens / MEASURED['tiny'][0]:.2g}" in reason
    assert math.isclose(of_minutes(5).chosen.tokens, tokens)


def test_the_first_limit_reached_is_named() -> None:
    budget, text = Budget(time=100.0, steps=7), DatasetSize(1000, 5000)
    found = forecast_budget(budget, text, batch_size=10, row_tokens=5.0, step_seconds=2.0)
    assert (found.limit, found.steps, found.tokens, found.seconds) == ("steps", 7, 350, 14.0)
    assert found.epochs == pytest.approx(0.07)
    unknown = DatasetSize(None, None)
    assert forecast_budget(Budget(time=6.0), unknown, batch_size=2, row_tokens=3.0, step_seconds=2.0).steps == 3


@pytest.mark.parametrize(("rows", "row_tokens"), [(33, 7.0), (145, 127.5), (5, 11.0), (64, 3.0)])
def test_a_plan_has_one_number_of_epochs(rows: int, row_tokens: float) -> None:
    """Where the last steps of an epoch are small ones too; and of tokens counted on two sides."""
    budget, text = Budget(tokens=10**7), DatasetSize(rows, 17)
    found = forecast_budget(budget, text, batch_size=32, row_tokens=row_tokens, step_seconds=1.0)
    warning = epochs_warning(budget, text.with_row_tokens(row_tokens))
    assert warning is not None
    epochs = 10**7 / (rows * row_tokens)
    assert f"means {epochs:,.1f} epochs" in warning
    assert found.epochs == pytest.approx(epochs, abs=0.5 * 32 / rows)  # to the nearest step
    assert found.tokens == pytest.approx(10**7, abs=0.5 * 32 * row_tokens)


def test_a_budget_above_the_dataset_warns_of_epochs() -> None:
    message = epochs_warning(Budget(tokens=1000), DatasetSize(10, 400))
    assert message is not None
    assert "2.5 epochs" in message
    assert epochs_warning(Budget(tokens=400), DatasetSize(10, 400)) is None
    assert epochs_warning(Budget(steps=10**9), DatasetSize(10, 400)) is None


@pytest.mark.parametrize(
    ("budget", "expected"),
    [(Budget(tokens=1), "84 tokens"), (Budget(time=1.5), "2 s"), (Budget(tokens=84), ""), (Budget(steps=1), "")],
)
def test_a_step_larger_than_the_budget_is_a_warning(budget: Budget, expected: str) -> None:
    found = forecast_budget(budget, DatasetSize(None, None), batch_size=12, row_tokens=7.0, step_seconds=2.0)
    assert found.steps == 1
    warning = step_warning(budget, found)
    assert warning is None if not expected else expected in str(warning)


def test_a_share_of_a_text() -> None:
    assert DatasetSize(10, 400).scaled(0.25) == DatasetSize(2, 100)
    assert DatasetSize(10, 400).scaled(0.001) == DatasetSize(1, 1)
    assert DatasetSize(None, None).scaled(0.5) == DatasetSize(None, None)
