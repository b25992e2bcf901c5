from typing import Any

import pytest

from homespun.errors import UserError
from homespun.planning.choose import choose
from homespun.planning.outlook import Text, outlook, short_of_step, short_of_text
from homespun.planning.predict import Memory, Prediction, Workload
from homespun.planning.probe import Line, probe_sizes
from homespun.training.config import Budget, TrainConfig


def workload(**train: Any) -> Workload:
    config = TrainConfig(budget=Budget(steps=1), batch_size=12, **train)
    return Workload(build=lambda: pytest.fail("not built"), batches=lambda rows, count: [], train=config)


def predict(work: Workload, rows: int, accumulate: bool) -> Prediction:
    """100 bytes and 10 a row; half of that and a third more time where layers are computed again."""
    again = work.train.gradient_checkpointing
    peak = 100 + (5 if again else 10) * rows
    memory = Memory(0, 0, 0, 0, {}, 0, peak)
    return Prediction(rows, {}, memory, 7.0, 0.0, 0.0, (1.3 if again else 1.0) * rows + 0.5, 0.0)


def test_the_whole_step_at_once_where_it_fits() -> None:
    choice = choose(workload(), memory=220, predict=predict)
    assert (choice.rows, choice.accumulation) == (12, 1)
    assert not choice.workload.train.gradient_checkpointing


def test_equal_parts_where_it_does_not() -> None:
    choice = choose(workload(), memory=165, predict=predict)
    assert (choice.rows, choice.accumulation) == (6, 2)
    assert choice.prediction.memory.peak <= 165


def test_layers_are_computed_again_where_nothing_else_fits() -> None:
    choice = choose(workload(), memory=108, predict=predict)
    assert choice.workload.train.gradient_checkpointing
    assert choice.rows == 1


def test_a_given_micro_batch_is_kept() -> None:
    assert choose(workload(micro_batch_size=3), memory=None, predict=predict).rows == 3
    assert choose(workload(micro_batch_size=3), memory=116, predict=predict).workload.train.gradient_checkpointing


def test_what_nothing_fits_says_the_least_that_would() -> None:
    with pytest.raises(UserError, match=r"nothing fits into 90 bytes.*at least 105 bytes"):
        choose(workload(), memory=90, predict=predict)


def test_the_first_limit_reached_is_named() -> None:
    found = outlook(Budget(time=100.0, steps=7), Text(1000, 5000), batch_size=10, row_tokens=5.0, step_seconds=2.0)
    assert (found.limit, found.steps, found.tokens, found.seconds) == ("steps", 7, 350, 14.0)
    assert found.epochs == pytest.approx(0.07)
    assert outlook(Budget(time=6.0), Text(None, None), batch_size=2, row_tokens=3.0, step_seconds=2.0).steps == 3


@pytest.mark.parametrize(("rows", "row_tokens"), [(33, 7.0), (145, 127.5), (5, 11.0), (64, 3.0)])
def test_a_plan_has_one_number_of_epochs(rows: int, row_tokens: float) -> None:
    """Where the last steps of an epoch are small ones too; and of tokens counted on two sides."""
    budget, text = Budget(tokens=10**7), Text(rows, 17)
    found = outlook(budget, text, batch_size=32, row_tokens=row_tokens, step_seconds=1.0)
    told = short_of_text(budget, text.counted(row_tokens))
    assert told is not None
    epochs = 10**7 / (rows * row_tokens)
    assert f"means {epochs:,.1f} epochs" in told
    assert found.epochs == pytest.approx(epochs, abs=0.5 * 32 / rows)  # to the nearest step
    assert found.tokens == pytest.approx(10**7, abs=0.5 * 32 * row_tokens)


def test_more_tokens_than_there_are_mean_epochs() -> None:
    message = short_of_text(Budget(tokens=1000), Text(10, 400))
    assert message is not None
    assert "2.5 epochs" in message
    assert short_of_text(Budget(tokens=400), Text(10, 400)) is None
    assert short_of_text(Budget(steps=10**9), Text(10, 400)) is None


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        (Budget(tokens=1), "a step alone takes 84 tokens, more than the 1 of the budget"),
        (Budget(time=1.5), "a step alone takes 2 s, more than the 1.5 s of the budget"),
        (Budget(tokens=84), None),
        (Budget(steps=1), None),
    ],
)
def test_a_step_that_is_more_than_was_asked_for(budget: Budget, said: str | None) -> None:
    found = outlook(budget, Text(None, None), batch_size=12, row_tokens=7.0, step_seconds=2.0)
    assert found.steps == 1
    assert str(short_of_step(budget, found)).startswith(str(said))


def test_a_share_of_a_text() -> None:
    assert Text(10, 400).share(0.25) == Text(2, 100)
    assert Text(10, 400).share(0.001) == Text(1, 1)
    assert Text(None, None).share(0.5) == Text(None, None)


def test_a_line_is_never_below_zero() -> None:
    assert Line.through([2, 4], [30.0, 50.0]).at(8) == pytest.approx(90.0)
    assert Line.through([2, 4], [10.0, 40.0]).at(8) == pytest.approx(80.0)
    assert Line.through([1], [7.0]).at(3) == pytest.approx(21.0)
    assert [probe_sizes(rows) for rows in (1, 2, 3, 8, 32)] == [[1], [1, 2], [1, 2], [2, 4], [8, 16]]
