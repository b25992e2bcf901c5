"""Long Range Arena (Tay et al. 2021): training of several attentions on one task from scratch with one budget.

Every model is a separate run, ``OUT/trials/MODEL``. The same command resumes: finished models are not trained again,
and with a larger ``train.budget`` all continue. See ``docs/lra.md``.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import Any

from benchmarks.lra.settings import MODELS, TASKS
from benchmarks.lra.train import lra, scoreboard
from homespun.report.console import Display, print_tables


def run(arguments: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks lra", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("task", help=", ".join(TASKS))
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="changes to the settings of the task")
    parser.add_argument("--models", default=",".join(MODELS), help="(default: %(default)s)")
    parser.add_argument("--data", type=Path, help="folder with train and test; listops needs none")
    parser.add_argument("--out", type=Path, default=Path("runs/lra"), help="(default: %(default)s)")
    options = parser.parse_intermixed_args(arguments)
    models = [name.strip() for name in options.models.split(",")]
    with Display() as display:
        result = lra(
            options.task, options.out, models=models, data=options.data, overrides=options.settings, display=display
        )
    with contextlib.redirect_stdout(sys.stderr):
        print_tables(*scoreboard(result))
    return result
