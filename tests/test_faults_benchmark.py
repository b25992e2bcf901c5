"""Crash points of commands: the repeated command ends with the files of a run that was not stopped."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def _faults(*options: str) -> dict[str, Any]:
    """Result of the benchmark in a new process, which has no threads and can fork."""
    command = [sys.executable, "-m", "benchmarks", "faults", *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1])
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    assert [each["failures"] for each in found["commands"].values()] == [[]] * len(found["commands"])
    assert found["total"]["identical"] == found["total"]["one_line"] == found["total"]["points"]
    return found


@pytest.mark.parametrize(
    ("command", "stride"), [("corpus", 2), pytest.param("pretrain mlm", 16, marks=pytest.mark.slow)]
)
def test_a_killed_command_is_repeated(command: str, stride: int) -> None:
    assert _faults("--commands", command, "--stride", str(stride))["total"]["states"] >= 9


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["full", "exit", "read-only", "sigterm", "sigint"])
def test_corpus_and_pretraining_resume_after(fault: str) -> None:
    assert _faults("--commands", "corpus,pretrain mlm", "--fault", fault, "--stride", "31")["total"]["points"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "commands", ["tokenizer,corpus,convert,predict,export,fit", "pretrain mlm", "finetune classify"]
)
def test_every_command_resumes_after_a_kill(commands: str) -> None:
    stride = "1" if "tokenizer" in commands else "7"
    assert _faults("--commands", commands, "--stride", stride)["total"]["points"]
