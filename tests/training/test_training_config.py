import math

import pytest
import torch
from pydantic import ValidationError

from homespun.config import override, validate
from homespun.errors import UserError
from homespun.training import batch_size
from homespun.training.config import (
    Adafactor,
    AdamW,
    ConstantSchedule,
    CosineSchedule,
    InverseSquareRootSchedule,
    LinearSchedule,
    TrainConfig,
)

SCHEDULES = [LinearSchedule(), LinearSchedule(min_lr_ratio=0.1), CosineSchedule(), CosineSchedule(warmup=0.0)]


@pytest.mark.parametrize("schedule", [*SCHEDULES, ConstantSchedule()], ids=repr)
def test_schedules_rise_to_one_and_never_rise_again(schedule):
    values = [schedule.multiplier(i / 1000) for i in range(1001)]
    top = round(schedule.warmup * 1000)
    assert values[: top + 1] == sorted(values[: top + 1])
    assert values[top] == pytest.approx(1.0)
    assert values[top:] == sorted(values[top:], reverse=True)
    if schedule.warmup:
        assert values[0] == 0.0


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_schedules_are_annealed_at_the_end_of_the_budget(schedule):
    assert schedule.multiplier(1.0) == pytest.approx(schedule.min_lr_ratio)


def test_the_rate_of_t5_in_its_pretraining():
    schedule = InverseSquareRootSchedule(level=10_000 / 524_288)
    for step in (1, 9_999, 10_000, 40_000, 524_288):
        assert 0.01 * schedule.multiplier(step / 524_288) == pytest.approx(max(step, 10_000) ** -0.5)


def test_an_optimizer_without_a_kind_is_adamw():
    config = validate(TrainConfig, {"optimizer": {"learning_rate": 0.3}}, source="test")
    assert config.optimizer == AdamW(learning_rate=0.3)
    assert validate(TrainConfig, {"optimizer": {"kind": "adafactor"}}, source="test").optimizer == Adafactor()


def test_budgets_are_written_as_people_write_them():
    budget = validate(TrainConfig, {"budget": {"time": "1h30m", "tokens": "1.5M"}}, source="test").budget
    assert (budget.time, budget.tokens, budget.steps) == (5400.0, 1_500_000, None)


@pytest.mark.parametrize(
    ("given", "compiled"),
    [("auto", "auto"), ("on", True), ("off", False), ("true", True), ("false", False), ("'off'", False)],
)
def test_compiling_is_given_as_people_write_it(given, compiled):
    assert validate(TrainConfig, override({}, [f"compile={given}"]), source="test").compile == compiled


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"budget": {}}, "time, tokens, steps, epochs"),
        ({"budget": {"steps": -1}}, "budget.steps"),
        ({"budget": {"time": "soon"}}, "is not a duration"),
        ({"budget": {"minutes": 3}}, "unknown key 'budget.minutes'"),
        ({"schedule": {"kind": "linaer"}}, "schedule"),
        ({"schedule": {"kind": "linear", "warmup": 1.0}}, "schedule.warmup"),
        ({"optimizer": {"learning_rate": -1}}, "optimizer.learning_rate"),
        ({"optimizer": {"learning_rate": math.inf}}, "optimizer.learning_rate"),
        ({"optimizer": {"betas": [0.9, 1.0]}}, "optimizer.betas.1"),
        ({"optimizer": {"kind": "adafactr"}}, "did you mean 'adafactor'?"),
        ({"optimizer": {"kind": "adafactor", "eps": [1e-30, 0]}}, "1e-18"),
        ({"optimizer": {"kind": "adafactor", "eps": [math.nan, 0]}}, "optimizer.eps.0"),
        ({"optimizer": {"kind": "adafactor", "betas": [0.9, 0.9]}}, "unknown key 'optimizer.betas'"),
        ({"precision": "int8"}, "precision"),
        ({"learning_rate": 1}, "unknown key 'learning_rate'"),
        ({"validate_every": 0}, "validate_every"),
    ],
)
def test_bad_configs_are_one_line_that_names_the_key(tree, message):
    with pytest.raises(UserError) as caught:
        validate(TrainConfig, tree, source="test")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rows_of_a_step_by_device(monkeypatch):
    assert TrainConfig(batch_size="auto").batch_size == 16
    monkeypatch.setattr(batch_size, "best_device", lambda: torch.device("cuda"))
    assert TrainConfig(batch_size="auto").batch_size == 64
    assert TrainConfig(batch_size=3).batch_size == 3
    with pytest.raises(ValidationError):
        TrainConfig(batch_size="many")
