"""Progress display and result summary of trainings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from pydantic_core import to_jsonable_python

from homespun.config import Tree
from homespun.report import formats
from homespun.report.console import Display
from homespun.report.records import final_losses, read_run
from homespun.results import VERSION, RunResult
from homespun.training.precision import Precision
from homespun.training.trainer import Trainer

_INTEGERS = ("steps", "tokens", "peak_bytes")
_MEASURED = ("seconds", "seconds_per_step", "tokens_per_second")


def watch(trainer: Trainer, display: Display, description: str) -> None:
    """Run ``trainer`` to its end, and show each step: share of the budget, rate, time left, loss."""
    if trainer.config.precision == "auto":
        chosen = trainer.precision
        display.line(f"precision: {chosen.name}: {chosen.reason}")
    task = display.task(description, total=1.0)
    validated = ""
    for step in trainer:
        if step.validation is not None:
            validated = f", validation {formats.loss(step.validation.loss)}"
        note = f"step {step.number:,}, loss {formats.loss(step.loss)}{validated}"
        rate = f"{formats.count(round(step.tokens_per_second))} tokens/s"
        task.update(step.share, rate=rate, left=step.eta_seconds, note=note)


def validate_result(result: Mapping[str, object]) -> Tree:
    """Plain values of a result, with the types of `homespun.results.RunResult`."""
    return RunResult.model_validate(to_jsonable_python(result)).to_json()


def summarise(
    path: Path, *, kind: str, parameters: int, precision: Precision | None = None, flops_per_token: float | None = None
) -> Tree:
    """Fields of ``result.json`` that all runs have, from their metrics.

    Args:
        path: the run directory.
        kind: ``pretrain`` or ``finetune``.
        parameters: number of parameters of the model.
        precision: precision of a training that ended.
        flops_per_token: FLOPs of forward and backward pass, if counted.
    """
    record = read_run(path)
    train, validation = final_losses(record)
    return {
        "version": VERSION,
        "kind": kind,
        "name": record.path.name,
        "parameters": parameters,
        "flops_per_token": flops_per_token,
        "precision": None if precision is None else asdict(precision),
        **{name: None if (n := record.summary.get(name)) is None else int(n) for name in _INTEGERS},
        **{name: record.summary.get(name) for name in _MEASURED},
        "end": record.end,
        "train": train,
        "validation": {"loss": validation.get("loss"), "losses": validation},
    }
