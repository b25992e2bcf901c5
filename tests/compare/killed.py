"""The real runner in a process of its own, which is killed at a moment asked for."""

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from comparing import comparison

from homespun.compare import comparison as comparison_module
from homespun.compare.executor import LocalExecutor
from homespun.compare.folder import Record
from homespun.report import comparison as report
from homespun.report.document import Document

START = (sys.executable, str(Path(__file__).with_name("fake_training.py")))


def run_comparison(out: Path) -> dict[str, Any]:
    """A comparison of two variations with two seeds, from its beginning or from where it stopped."""
    recipe = comparison(
        pretrain={"recipe": "any", "settings": {"train.batch_size": 7}},
        finetune={"topics": {"recipe": "classify"}},
        variations={"good": {}, "poor": {"finetune": {"train.batch_size": 5}, "pretrain": {"train.batch_size": 11}}},
        budget={"steps": 30},
        seeds=2,
        benchmark={"lengths": [17, 19]},
    )
    comparison_module.LocalExecutor = partial(LocalExecutor, start=START)
    comparison_module.check = lambda *_: []  # of data that there is not
    return comparison_module.run_comparison(recipe, out)


def until_done(out: Path, subfolder: str) -> None:
    """Killed right when a trial is done, before the next begins."""
    update = Record.update

    def last(record: Record, **values: Any) -> None:
        update(record, **values)
        if record.trial.subfolder == subfolder and values.get("status") == "done":
            os.kill(os.getpid(), signal.SIGKILL)

    Record.update = last
    run_comparison(out)


def until_page(out: Path) -> None:
    """Killed when the last page is written, and not what stands beside it."""
    write = report.write_document

    def last(document: Document, folder: Path) -> Path:
        page = write(document, folder)
        if all('"done"' in path.read_text() for path in out.glob("trials/*/*/trial.json")):
            os.kill(os.getpid(), signal.SIGKILL)
        return page

    report.write_document = last
    run_comparison(out)
