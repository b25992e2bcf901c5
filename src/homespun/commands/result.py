"""Progress display and result fields of trainings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from homespun.config import Tree
from homespun.report import formats
from homespun.report.console import Display
from homespun.report.page import write_report
from homespun.report.records import final_losses, read_run
from homespun.results import VERSION
from homespun.training.precision import Precision
from homespun.training.run import Run
from homespun.training.trainer import Trainer

_INTEGERS = ("steps", "tokens", "peak_bytes")
_MEASURED = ("seconds", "seconds_per_step", "tokens_per_second")


def watch(trainer: Trainer, display: Display, description: str) -> None:
    """Run ``trainer`` to its end, and show share of the budget, rate, remaining time and loss of each step."""
    if trainer.config.precision == "auto":
        display.line(f"precision: {trainer.precision.name}: {trainer.precision.reason}")
    task = display.task(description, total=1.0)
    validated = ""
    for step in trainer:
        if step.validation is not None:
            validated = f", validation {formats.loss(step.validation.loss)}"
        note = f"step {step.number:,}, loss {formats.loss(step.loss)}{validated}"
        rate = f"{formats.count(round(step.tokens_per_second))} tokens/s"
        task.update(step.share, rate=rate, left=step.eta_seconds, note=note)


def write_results(run: Run, result: Mapping[str, object], *, title: str) -> Tree:
    """Write ``result.json`` and the report, and return the content of ``result.json``."""
    written = run.write_result(result)
    write_report([run.path], run.path / "report", title=f"{title}: {run.path.name}")
    return written


def summarise(
    path: Path, *, kind: str, parameters: int, precision: Precision | None = None, flops_per_token: float | None = None
) -> Tree:
    """Return the fields of ``result.json`` that all runs have; ``flops_per_token``: of forward and backward pass."""
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
