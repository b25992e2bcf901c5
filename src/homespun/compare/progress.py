"""How far a training is, from the end of what it writes."""

from __future__ import annotations

import json
from pathlib import Path

from homespun.config import read_yaml

_TAIL = 8192  # bytes, some lines


def share_of_run(run: Path) -> float:
    """The used share of a run's budget, 0 to 1, as its last step tells; 0 before the first.

    Of a run of several trainings (seeds, folds, numbers of examples) that of all of them.
    """
    begun = list(run.glob("trials/*"))
    if not begun:
        return _share_of_training(run)
    done = sum(1.0 if (trial / "result.json").is_file() else _share_of_training(trial) for trial in begun)
    return done / max(len(begun), _trainings(run / "config.yaml"))


def _trainings(config: Path) -> int:
    recipe = read_yaml(config)
    return int(recipe.get("seeds") or 1) * int(recipe.get("folds") or 1) * len(recipe.get("examples") or [None])


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
