"""How far a budget reaches, and the size that suits it."""

from collections.abc import Iterator

import pytest

from homespun.planning.budget import (
    CURVES,
    MIN_GAIN,
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


def candidate(name: str, parameters: int, tokens: int, text: float | None = None) -> SizeCandidate:
    epochs = None if text is None else tokens / text
    return SizeCandidate(name, "2 layers of 64", parameters, BudgetForecast("tokens", 7, tokens, 0.0, epochs))


def of_minutes(minutes: float, text: float | None = None) -> SizeChoice:
    sizes = MEASURED.items()
    candidates = (candidate(name, count, round(60 * minutes * rate), text) for name, (count, rate) in sizes)
    return choose_size(candidates, timed=True)


@pytest.mark.parametrize(("minutes", "name"), [(1, "tiny"), (5, "tiny"), (60, "tiny"), (240, "mini"), (2400, "mini")])
def test_more_time_gives_a_larger_model(minutes: float, name: str) -> None:
    assert of_minutes(minutes).chosen.name == name


@pytest.mark.parametrize("minutes", [3, 10, 30, 60, 120, 240, 480])
def test_the_choice_has_the_lowest_loss_of_the_measured_curve(minutes: float) -> None:
    curve = next(curve for curve in CURVES if curve.family == "spun-decoder")
    losses = {name: curve.law.loss(count, 60 * minutes * rate) for name, (count, rate) in MEASURED.items()}
    assert losses[of_minutes(minutes).chosen.name] <= min(losses.values()) + MIN_GAIN


def test_sizes_are_planned_until_one_is_worse() -> None:
    asked = []

    def sizes() -> Iterator[SizeCandidate]:
        for number in range(5):
            asked.append(number)
            yield candidate(str(number), 10**6 * 10**number, 10**9 // 20**number)

    choice = choose_size(sizes(), timed=True)
    assert (choice.chosen.name, choice.larger and choice.larger.name) == ("1", "2")
    assert asked == [0, 1, 2]


def test_a_larger_model_is_better_than_many_epochs_of_a_small_one() -> None:
    """The text of AG News has 2.7 M tokens, and rates are those of one core with bf16."""
    rates = {"tiny": (1_417_216, 12_000), "mini": (5_193_728, 3_300)}

    def chosen(hours: int) -> str:
        sizes = (candidate(name, count, hours * 3600 * rate, 2.7e6) for name, (count, rate) in rates.items())
        return choose_size(sizes, timed=True).chosen.name

    assert [chosen(hours) for hours in (1, 3, 12)] == ["tiny", "mini", "mini"]


def test_a_larger_model_of_the_same_loss_is_not_chosen() -> None:
    """With so little text, no further epochs or parameters help."""
    sizes = [candidate(name, count, 5_000_000, 1e5) for name, (count, _) in MEASURED.items()]
    assert 0 < sizes[0].loss - sizes[1].loss < MIN_GAIN
    assert choose_size(sizes, timed=True).chosen.name == "tiny"


@pytest.mark.parametrize(("tokens", "name"), [(10**5, "tiny"), (10**7, "tiny"), (10**8, "mini")])
def test_a_budget_of_tokens_has_the_compute_optimal_size(tokens: int, name: str) -> None:
    def choice(text: float | None) -> SizeChoice:
        sizes = (candidate(size, count, tokens, text) for size, (count, _) in MEASURED.items())
        return choose_size(sizes, timed=False)

    assert choice(None).chosen.name == name
    assert choice(1e5).chosen.name == "tiny"  # the text repeats
    assert "compute-optimal" in choice(None).reason()


def test_repeated_text_counts_for_less() -> None:
    law = CURVES[0].law
    plain = [law.loss(1.4e6, tokens) for tokens in (1e6, 4e6, 4e7)]
    repeated = [law.loss(1.4e6, tokens, tokens / 1e6) for tokens in (1e6, 4e6, 4e7)]
    excess = repeated[0] - plain[0]  # of parameters, for so little text
    differences = [after - before - excess for after, before in zip(repeated, plain, strict=True)]
    assert differences[0] == 0
    assert 0 < differences[1] < 0.1 < differences[2]
    assert law.loss(1.4e6, 1e6, 1e-6) == pytest.approx(plain[0])  # 10^12 tokens of text
    best = law.loss(1.4e6, 1e9, 1e3) - excess
    assert best == pytest.approx(law.loss(1.4e6, 16.39e6), abs=1e-3)  # section 3.1: as 16.4 times the text


def test_the_compute_optimal_size_has_the_lowest_loss() -> None:
    law, compute = CURVES[0].law, 1e13
    best = law.parameters_for_compute(compute)
    losses = [law.loss(best * factor, compute / (best * factor)) for factor in (0.9, 1.0, 1.1)]
    assert losses[1] == min(losses)


def test_the_reason_has_the_figures() -> None:
    reason = of_minutes(5).reason()
    tokens = 300 * MEASURED["tiny"][1]
    assert "tiny" in reason
    assert f"{tokens / 1e6:.1f} M" in reason
    choice = of_minutes(5)
    assert choice.larger is not None
    assert f"expected loss of mini: +{choice.larger.loss - choice.chosen.loss:.2f} nats" in reason
    assert "epochs" not in reason
    assert "18.3 epochs" in of_minutes(5, 1e5).reason()


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
