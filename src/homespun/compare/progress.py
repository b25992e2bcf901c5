"""Progress of trials from their records and the last lines of their metrics, and the remaining time of a comparison."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from homespun.compare.folder import Record
from homespun.compare.trials import Stage
from homespun.config import read_yaml

_TAIL = 8192  # bytes: a few lines
_MIN_SHARE = 0.02  # share of a stage, below which start-up, such as reading data, dominates its time


def seconds_left(records: Sequence[Record], *, slots: int, to_come: int = 0) -> tuple[float | None, list[str]]:
    """Estimate the remaining time of a comparison, without benchmarks.

    A running stage is extrapolated from its share; a waiting stage takes the mean time of that stage in other trials.
    ``slots`` trials run in parallel, and ``to_come`` will be added.

    Returns:
        Seconds, None if no stage has progressed far enough; names of the stages without an estimate, which are left
        out.
    """
    totals: dict[tuple[Path, str], float] = {}  # estimated seconds of stages that have progressed
    by_stage: dict[str, list[float]] = defaultdict(list)
    for record in records:
        for stage in record.trial.stages:
            known, share = record.stage(stage.name), _share_of_stage(record, stage)
            if share >= _MIN_SHARE and known.shared_with is None:
                totals[record.folder, stage.name] = (known.seconds or 0.0) / share
                by_stage[stage.name].append(totals[record.folder, stage.name])
    means = {name: fmean(each) for name, each in by_stage.items()}
    unknown: dict[str, None] = {}
    waits: list[float] = []
    for record in (record for record in records if not record.ended):
        waits.append(0.0)
        for stage in record.trial.stages:
            known = record.stage(stage.name)
            if not known.finished and known.shared_with is None:
                expected = totals.get((record.folder, stage.name), means.get(stage.name))
                if expected is None:
                    unknown[stage.name] = None
                else:
                    waits[-1] += max(0.0, expected - (known.seconds or 0.0))
    waits += [sum(means.values())] * to_come
    return max(sum(waits) / slots, max(waits, default=0.0)) if means else None, list(unknown)


def share_of_trial(record: Record) -> float:
    """Return the finished share of a trial, 0 to 1; all stages have equal weight."""
    if record.ended:
        return 1.0
    return min(0.99, fmean(_share_of_stage(record, stage) for stage in record.trial.stages))


def _share_of_stage(record: Record, stage: Stage) -> float:
    known = record.stage(stage.name)
    if known.finished or not known.seconds:
        return float(known.finished)
    return share_of_run(record.path_of(stage.name))


def share_of_run(run: Path) -> float:
    """Return the used share of a run's budget at its last step, 0 to 1, over all seeds, folds and sizes."""
    started = list(run.glob("trials/*"))
    if not started:
        return _share_of_training(run)
    recipe = read_yaml(run / "config.yaml")
    count = int(recipe.get("seeds") or 1) * int(recipe.get("folds") or 1) * len(recipe.get("train_sizes") or [None])
    done = sum(1.0 if (trial / "result.json").is_file() else _share_of_training(trial) for trial in started)
    return done / max(len(started), count)


def _share_of_training(run: Path) -> float:
    path = run / "metrics.jsonl"
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            lines = file.read().splitlines()
    except OSError:
        return 0.0
    for line in reversed(lines):
        try:
            event = json.loads(line)
        except ValueError:  # the start of the line was cut off
            continue
        if isinstance(event, dict) and event.get("event") == "step":
            return float(event.get("share") or 0.0)
    return 0.0
