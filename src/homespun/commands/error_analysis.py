"""What to look at before a figure is believed: test examples that were learned by heart, and the greatest mistakes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from homespun.commands.trials import PREDICTIONS, Trial
from homespun.data.near_duplicates import THRESHOLD, NearDuplicatePairs, find_near_duplicates
from homespun.tasks.protocol import Task

_SHOWN = 20  # mistakes
_PAIRS = 5  # of near-duplicates
_CHARACTERS = 320  # of a text that is shown
_KEPT = ("truth", "predicted", "loss", "score")


def find_leakage(task: Task[Any, Any], trials: Sequence[Trial]) -> dict[int, NearDuplicatePairs]:
    """Which measured examples are in the training too, by fold; of the trials with the most examples."""
    found: dict[int, NearDuplicatePairs] = {}
    for trial in trials:
        if trial.fold not in found:
            measured = trial.validation if trial.test is None else trial.test
            found[trial.fold] = find_near_duplicates(task.texts(trial.training), task.texts(measured))
    return found


def describe_leakage(found: Mapping[int, NearDuplicatePairs]) -> str:
    """One sentence about them; empty where there are none."""
    near, same = sum(len(one.rows) for one in found.values()), sum(one.same for one in found.values())
    compared = sum(one.compared for one in found.values())
    if not near:
        return ""
    return (
        f"{near:,} of the {compared:,} examples that are measured ({near / compared:.1%}) are in the training examples "
        f"too, or nearly ({same:,} word for word): the figures may be better than those of new examples"
    )


def summarize_leakage(
    found: Mapping[int, NearDuplicatePairs], task: Task[Any, Any], trials: Sequence[Trial], folders: Sequence[Path]
) -> dict[str, Any]:
    """``overlap`` of the result: how many, a few of them, and how good the models are at ``all`` and the ``unseen``.

    Args:
        found: as `find_leakage` gives it.
        task: the task.
        trials: as given to `find_leakage`; ``folders`` are their runs.
    """
    summary: dict[str, Any] = {
        "threshold": THRESHOLD,
        "rows": sum(one.compared for one in found.values()),
        "near": sum(len(one.rows) for one in found.values()),
        "same": sum(one.same for one in found.values()),
    }
    pairs: list[dict[str, Any]] = []
    good: list[NDArray[np.float64]] = []
    seen: list[NDArray[np.bool_]] = []
    for fold, one in found.items():
        runs = [(trial, folder) for trial, folder in zip(trials, folders, strict=True) if trial.fold == fold]
        trial, _ = runs[0]
        measured = trial.validation if trial.test is None else trial.test
        for row, other, similarity in zip(one.rows, one.of, one.similarity, strict=True):
            if len(pairs) < _PAIRS:
                text, training = task.texts([measured[row]])[0], task.texts([trial.training[other]])[0]
                pair = {"text": shorten(text), "training": shorten(training), "similarity": round(similarity, 3)}
                pairs.append({"row": int(trial.measured_rows[row])} | pair)
        for seed, folder in runs:
            # each seed draws its own of fewer examples than there are, and only the first one's were compared
            if seed.training == trial.training:
                good.append(_example_scores(folder / PREDICTIONS / "model.jsonl"))
                seen.append(np.isin(np.arange(len(good[-1])), one.rows))
    values, known = np.concatenate(good), np.concatenate(seen)
    there = np.isfinite(values)
    if summary["near"] and (there & ~known).any():
        summary |= {"all": float(values[there].mean()), "unseen": float(values[there & ~known].mean())}
    return summary | {"pairs": pairs}


def _example_scores(file: Path) -> NDArray[np.float64]:
    """(examples,) scores, or 1 for those that are right; NaN where there was no truth."""
    with file.open(encoding="utf-8") as stream:
        lines = [json.loads(line) for line in stream]
    values = [line.get("score", line["predicted"] == line["truth"]) for line in lines]
    nothing = [line["truth"] is None or value is None for line, value in zip(lines, values, strict=True)]
    return np.array([np.nan if none else float(v) for v, none in zip(values, nothing, strict=True)])


def top_errors(task: Task[Any, Any], trial: Trial, predictions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The examples of which the prediction has the greatest loss, or the lowest score; the worst first.

    Those that are as good as can be are left out. Where predictions have neither, all that are not right are alike, and
    the first ones are shown.
    """
    measured = trial.validation if trial.test is None else trial.test
    wrong = [
        index
        for index, prediction in enumerate(predictions)
        if prediction["truth"] is not None and not _right(prediction)
    ]
    worst = sorted(wrong, key=lambda index: _sort_key(predictions[index]))[:_SHOWN]
    texts = task.texts([measured[index] for index in worst])
    return [
        {"row": int(trial.measured_rows[index]), "text": shorten(text)}
        | {name: predictions[index][name] for name in _KEPT if name in predictions[index]}
        for index, text in zip(worst, texts, strict=True)
    ]


def _right(prediction: Mapping[str, Any]) -> bool:
    return bool(prediction["predicted"] == prediction["truth"]) or prediction.get("score") == 1.0


def _sort_key(prediction: Mapping[str, Any]) -> float:
    if "loss" in prediction:
        return -float(prediction["loss"])
    score = prediction.get("score")
    return 0.0 if score is None else float(score)


def shorten(text: str) -> str:
    """What is shown of a text."""
    plain = " ".join(text.split())
    return plain if len(plain) <= _CHARACTERS else f"{plain[: _CHARACTERS - 1]}…"
