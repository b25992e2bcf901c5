"""Progress shown while a run trains."""

import io
from dataclasses import replace
from typing import cast

from homespun.commands.result import watch
from homespun.report import console
from homespun.report.console import Display
from homespun.training.config import TrainConfig
from homespun.training.precision import Precision
from homespun.training.step_log import StepResult
from homespun.training.trainer import Trainer

STEP = StepResult(
    number=61,
    epoch=1.0,
    tokens=61_000,
    share=0.61,
    learning_rate=1e-3,
    seconds=1.0,
    loss=2.5,
    losses={},
    gradient_norm=1.0,
    validation=None,
    tokens_per_second=1000.0,
    eta_seconds=39.0,
)


class Steps(list[StepResult]):
    """What `watch` needs of a trainer."""

    config = TrainConfig()
    precision = Precision("bf16", "measured")


def trainer_of(steps: list[StepResult]) -> Trainer:
    return cast(Trainer, Steps(steps))


def test_the_precision_is_shown_where_it_was_chosen(monkeypatch):
    out = io.StringIO()
    watch(trainer_of([]), Display(stream=out), "pretrain")
    assert out.getvalue() == "precision: bf16: measured\n"
    monkeypatch.setattr(Steps, "config", TrainConfig(precision="bf16"))
    watch(trainer_of([]), Display(stream=out), "pretrain")
    assert out.getvalue().count("\n") == 1


def test_a_resumed_run_has_the_time_left_that_its_budget_has(monkeypatch):
    monkeypatch.setattr(console, "_EVERY", 0.0)
    monkeypatch.setattr(Steps, "config", TrainConfig(precision="float32"))
    out = io.StringIO()
    steps = [STEP, replace(STEP, number=62, share=0.62, eta_seconds=38.0)]
    watch(trainer_of(steps), Display(stream=out), "pretrain")
    assert [line.split(", ")[-3] for line in out.getvalue().replace("\u00a0", " ").splitlines()] == [
        "39.0 s left",
        "38.0 s left",
    ]
