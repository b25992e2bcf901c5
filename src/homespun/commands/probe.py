"""Measurement of a few training steps in a new process, `homespun.commands.probe_process`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, JsonValue

from homespun.errors import UserError, last_line

_TIMEOUT = 600  # seconds


class ProbeJob(BaseModel):
    """Steps to measure."""

    recipe: dict[str, JsonValue]  # settings of the training
    rows: int  # rows per micro-batch
    start_from: str | None = None  # a run or model to continue from
    changes: dict[str, JsonValue] | None = None  # changes to its backbone
    accumulate: bool = False  # make two micro-batches per step instead of one
    predict: bool = False  # also predict the memory of the tensors


class ProbeResult(BaseModel):
    """Measured peak memory and median times of micro-batches of ``rows`` rows."""

    rows: int
    peak_bytes: int
    seconds: float  # seconds of a micro-batch, forward and backward
    update_seconds: float
    predicted_bytes: int | None = None  # predicted bytes of the tensors


@dataclass(frozen=True)
class LinearFit:
    """Line ``intercept + slope * rows``."""

    intercept: float
    slope: float

    @classmethod
    def through(cls, rows: Sequence[int], values: Sequence[float]) -> LinearFit:
        """Fit a line with coefficients of at least 0 to one value (proportional) or two."""
        if len(values) == 1:
            return cls(0.0, values[0] / rows[0])
        slope = max(0.0, (values[-1] - values[0]) / (rows[-1] - rows[0]))
        intercept = values[-1] - slope * rows[-1]
        return cls(intercept, slope) if intercept >= 0 else cls(0.0, values[-1] / rows[-1])

    def at(self, rows: int) -> float:
        """Evaluate the line for a number of rows."""
        return self.intercept + self.slope * rows


def probe_sizes(rows: int) -> list[int]:
    """Return one or two micro-batch sizes, below ``rows`` so that a probe costs less than a step of the run."""
    return sorted({max(1, rows // 4), max(min(rows, 2), rows // 2)})


def run_probe(job: ProbeJob) -> ProbeResult:
    """Measure a job in a new process.

    Raises:
        UserError: the steps failed or took more than ten minutes.
    """
    command = [sys.executable, "-m", "homespun.commands.probe_process"]
    try:
        done = subprocess.run(
            command, input=job.model_dump_json(), capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(f"the probe took more than {_TIMEOUT} s; plan without --probe") from error
    if done.returncode:
        raise UserError(f"the probe failed: {last_line(done.stderr) or f'exit code {done.returncode}'}")
    return ProbeResult.model_validate_json(last_line(done.stdout))
