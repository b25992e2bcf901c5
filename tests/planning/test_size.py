"""The size that suits a budget."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from homespun.planning.forecast import CURVES
from homespun.planning.outlook import Outlook, Text
from homespun.planning.size import TOKENS_PER_PARAMETER, Candidate, SizeChoice, choose_size

# spun-decoder with a vocabulary of 8,000, float32, one core of an AMD EPYC without bf16 (results/efficiency.md)
MEASURED = {"tiny": (1_417_216, 6108), "mini": (5_193_728, 1608)}
PLENTY = Text(rows=10**9, tokens=10**11)


def candidate(name: str, parameters: int, tokens: int, text: Text = PLENTY) -> Candidate:
    return Candidate(name, "2 layers of 64", parameters, Outlook("tokens", 7, tokens, 0.0, None), text)


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

    def sizes() -> Iterator[Candidate]:
        for number in range(5):
            asked.append(number)
            yield candidate(str(number), 10**6 * 3**number, round(TOKENS_PER_PARAMETER * 3 * 10**6))

    choice = choose_size(sizes())
    assert (choice.chosen.name, choice.larger and choice.larger.name) == ("1", "2")
    assert asked == [0, 1, 2]


def test_four_passes_over_a_small_text_count() -> None:
    small = Text(rows=100, tokens=50_000)
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
