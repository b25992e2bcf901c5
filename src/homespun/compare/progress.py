"""How far a training is, from the end of what it writes, and how long a comparison has still to go."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from homespun.compare.folder import Record
from homespun.compare.trials import Stage
from homespun.config import read_yaml

_TAIL = 8192  # bytes, some lines
_ENOUGH = 0.02  # of a stage; what begins it, such as reading its data, says little of how long it takes


def seconds_left(records: Sequence[Record], *, slots: int, to_come: int = 0) -> tuple[float | None, list[str]]:
    """The time that a comparison has still to go, less measuring.

    A stage that is under way takes as much longer as it took so far; one that waits takes as long as those of its name
    take in other trials.

    Args:
        records: its trials.
        slots: trials under way at a time.
        to_come: trials that will be added to them.

    Returns:
        The seconds, None where no stage tells, and the names of the stages that are not in them: none of that name has
        come far enough to tell.
    """
    takes, rest = _times(records)
    mean = {name: fmean(every) for name, every in takes.items()}
    unknown: dict[str, None] = {}
    waits: list[float] = []
    for record in records:
        if record.status in ("done", "failed"):
            continue
        waits.append(0.0)
        for stage in record.trial.stages:
            known = record.stage(stage.name)
            if known["finished"] or "shared_with" in known:
                continue
            left = rest.get((record.folder, stage.name))
            if left is None and stage.name in mean:
                left = max(0.0, mean[stage.name] - known["seconds"])
            if left is None:
                unknown[stage.name] = None
            waits[-1] += left or 0.0
    waits += [sum(mean.values())] * to_come
    return max(sum(waits) / slots, max(waits, default=0.0)) if mean else None, list(unknown)


def _times(records: Sequence[Record]) -> tuple[dict[str, list[float]], dict[tuple[Path, str], float]]:
    """By stage what it takes from its beginning to its end, in every trial that tells; what is left of those that
    were begun."""
    takes: dict[str, list[float]] = defaultdict(list)
    rest: dict[tuple[Path, str], float] = {}
    for record in records:
        for stage in record.trial.stages:
            known = record.stage(stage.name)
            share = _share_of_stage(record, stage)
            if share >= _ENOUGH and "shared_with" not in known:
                takes[stage.name].append(known["seconds"] / share)
                rest[record.folder, stage.name] = known["seconds"] * (1 / share - 1)
    return takes, rest


def share_of_trial(record: Record) -> float:
    """How far a trial is, 0 to 1, every stage counted alike."""
    if record.status in ("done", "failed"):
        return 1.0
    return min(0.99, fmean(_share_of_stage(record, stage) for stage in record.trial.stages))


def _share_of_stage(record: Record, stage: Stage) -> float:
    known = record.stage(stage.name)
    if known["finished"] or not known["seconds"]:
        return float(known["finished"])
    return share_of_run(record.path_of(stage.name))


def share_of_run(run: Path) -> float:
    """The used share of a run's budget, 0 to 1, as its last step tells; 0 before the first.

    Of a run of several trainings (seeds, folds, numbers of examples) that of all of them.
    """
    started = list(run.glob("trials/*"))
    if not started:
        return _share_of_training(run)
    done = sum(1.0 if (trial / "result.json").is_file() else _share_of_training(trial) for trial in started)
    return done / max(len(started), _trainings(run / "config.yaml"))


def _trainings(config: Path) -> int:
    recipe = read_yaml(config)
    return int(recipe.get("seeds") or 1) * int(recipe.get("folds") or 1) * len(recipe.get("train_sizes") or [None])


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
        except ValueError:  # cut off at its beginning
            continue
        if isinstance(event, dict) and event.get("event") == "step":
            return float(event.get("share") or 0.0)
    return 0.0
