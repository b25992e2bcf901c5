import pytest

from homespun.training.config import Budget, Limits, Progress


def limits(**budget):
    return Limits.of(Budget(**budget), steps_per_epoch=8)


def test_the_share_is_that_of_the_limit_reached_first():
    several = limits(steps=100, tokens=1000, time=50.0)
    assert several.share(Progress(steps=10, tokens=300, seconds=5.0)) == 0.3
    assert several.share(Progress(steps=10, tokens=300, seconds=40.0)) == 0.8
    assert several.share(Progress(steps=100, tokens=300, seconds=40.0)) == 1.0


def test_epochs_are_steps_rounded_up():
    assert limits(epochs=0.3).steps == 3
    assert limits(epochs=2).steps == 16
    assert Limits.of(Budget(epochs=1.1), steps_per_epoch=10).steps == 11
    assert limits(epochs=2, steps=5).steps == 5


def test_steps_are_made_to_the_number():
    exactly = limits(steps=3)
    assert [exactly.is_over(Progress(steps=n)) for n in range(5)] == [False, False, False, True, True]


def test_rates_are_read_at_the_middle_of_steps():
    assert limits(steps=10).share_at_mid_step(Progress(steps=9)) == pytest.approx(0.95)
    assert limits(tokens=1000).share_at_mid_step(Progress(steps=9, tokens=900)) == pytest.approx(0.95)
    assert limits(time=10.0).share_at_mid_step(Progress(steps=4, seconds=4.0, step_seconds=2.0)) == pytest.approx(0.5)


def test_a_step_that_lies_mostly_outside_is_not_made():
    timed = limits(time=10.0)
    assert not timed.is_over(Progress(steps=9, seconds=8.9, step_seconds=2.0))
    assert timed.is_over(Progress(steps=9, seconds=9.1, step_seconds=2.0))


def test_time_for_the_last_validation_is_set_aside_but_never_most_of_it():
    timed = limits(time=10.0)
    assert timed.share(Progress(steps=1, seconds=4.0, closing_seconds=2.0)) == pytest.approx(0.5)
    assert timed.share(Progress(steps=1, seconds=4.0, closing_seconds=90.0)) == pytest.approx(0.8)


def test_time_left():
    timed = limits(time=10.0)
    assert timed.seconds_left(Progress()) is None
    assert timed.seconds_left(Progress(steps=1, seconds=4.0)) == pytest.approx(6.0)
    assert limits(steps=40).seconds_left(Progress(steps=10, seconds=5.0)) == pytest.approx(15.0)
