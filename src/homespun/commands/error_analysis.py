"""Near-duplicates between training and test examples, and the worst and most confident predictions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from homespun.commands.trials import PREDICTIONS, Trial
from homespun.config import Tree
from homespun.results import DuplicatePair, Leakage
from homespun.tasks.protocol import Task, TaskRows
from homespun.text.duplicates import THRESHOLD, NearDuplicatePairs, find_near_duplicates

_MAX_WRONG, _MAX_CONFIDENT = 20, 5
_MAX_PAIRS = 5  # near-duplicates to list
_MAX_CHARACTERS = 320  # characters of a displayed text
_FIELDS = ("truth", "predicted", "loss", "score")


def notable_predictions(
    task: Task[object, TaskRows], trial: Trial, predictions: Sequence[Mapping[str, Any]]
) -> dict[str, list[Tree]]:
    """Select examples to show in a report.

    Returns:
        ``top_errors``: predictions with the largest loss or the lowest score, the worst first; without losses and
        scores the first wrong ones. ``most_confident``: right predictions with the smallest loss; empty without losses.
    """
    known = [index for index, prediction in enumerate(predictions) if prediction["truth"] is not None]
    wrong = [index for index in known if not _right(predictions[index])]
    right = [index for index in known if _right(predictions[index]) and "loss" in predictions[index]]

    def described(indices: Sequence[int]) -> list[Tree]:
        texts = task.texts([trial.measured[index] for index in indices])
        return [
            {"row": int(trial.measured_rows[index]), "text": shorten(text)}
            | {name: predictions[index][name] for name in _FIELDS if name in predictions[index]}
            for index, text in zip(indices, texts, strict=True)
        ]

    return {
        "top_errors": described(sorted(wrong, key=lambda index: _sort_key(predictions[index]))[:_MAX_WRONG]),
        "most_confident": described(sorted(right, key=lambda index: predictions[index]["loss"])[:_MAX_CONFIDENT]),
    }


def _right(prediction: Mapping[str, Any]) -> bool:
    return bool(prediction["predicted"] == prediction["truth"]) or prediction.get("score") == 1.0


def _sort_key(prediction: Mapping[str, Any]) -> float:
    if "loss" in prediction:
        return -float(prediction["loss"])
    score = prediction.get("score")
    return 0.0 if score is None else float(score)


def shorten(text: str) -> str:
    """Return ``text`` on one line, truncated to 320 characters."""
    plain = " ".join(text.split())
    return plain if len(plain) <= _MAX_CHARACTERS else f"{plain[: _MAX_CHARACTERS - 1]}…"


def find_leakage(task: Task[object, TaskRows], trials: Sequence[Trial]) -> dict[int, NearDuplicatePairs]:
    """Find near-duplicates between training and test examples, by fold; ``trials`` have the most training examples."""
    found: dict[int, NearDuplicatePairs] = {}
    for trial in trials:
        if trial.fold not in found:
            found[trial.fold] = find_near_duplicates(task.texts(trial.training), task.texts(trial.measured))
    return found


def describe_leakage(found: Mapping[int, NearDuplicatePairs], *, tested: bool) -> str:
    """Describe near-duplicates of test (``tested``) or validation examples in one sentence; empty without any."""
    near, same = sum(len(one.rows) for one in found.values()), sum(one.same for one in found.values())
    compared = sum(one.compared for one in found.values())
    if not near:
        return ""
    part = "test" if tested else "validation"
    return (
        f"{near:,} of {compared:,} {part} examples ({near / compared:.1%}) are near-duplicates of training examples "
        f"({same:,} word for word); metrics may be better than on new examples"
    )


def summarize_leakage(
    found: Mapping[int, NearDuplicatePairs],
    task: Task[object, TaskRows],
    trials: Sequence[Trial],
    folders: Sequence[Path],
) -> Leakage:
    """Count near-duplicates, list a few, and compute the mean score on all and on unseen examples.

    ``found`` is the result of `find_leakage` for ``trials``, whose run folders are ``folders``.
    """
    near = sum(len(one.rows) for one in found.values())
    pairs: list[DuplicatePair] = []
    scores: list[NDArray[np.float64]] = []
    seen: list[NDArray[np.bool_]] = []
    for fold, one in found.items():
        runs = [(trial, folder) for trial, folder in zip(trials, folders, strict=True) if trial.fold == fold]
        first, _ = runs[0]
        for row, other, similarity in zip(one.rows, one.of, one.similarity, strict=True):
            if len(pairs) < _MAX_PAIRS:
                pairs.append(
                    DuplicatePair(
                        row=int(first.measured_rows[row]),
                        text=shorten(task.texts([first.measured[row]])[0]),
                        training=shorten(task.texts([first.training[other]])[0]),
                        similarity=round(similarity, 3),
                    )
                )
        for trial, folder in runs:
            # a subset of the examples differs between seeds; only the first seed's was compared
            if trial.training == first.training:
                scores.append(_example_scores(folder / PREDICTIONS / "model.jsonl"))
                seen.append(np.isin(np.arange(len(scores[-1])), one.rows))
    values, known = np.concatenate(scores), np.concatenate(seen)
    scored = np.isfinite(values)
    means = {}
    if near and (scored & ~known).any():
        means = {"all": float(values[scored].mean()), "unseen": float(values[scored & ~known].mean())}
    return Leakage.model_validate(
        {
            "threshold": THRESHOLD,
            "rows": sum(one.compared for one in found.values()),
            "near": near,
            "same": sum(one.same for one in found.values()),
            **means,
            "pairs": pairs,
        }
    )


def _example_scores(file: Path) -> NDArray[np.float64]:
    """Score of each example, (examples,): 1 for right predictions without a score, NaN without a truth."""
    with file.open(encoding="utf-8") as stream:
        lines = [json.loads(line) for line in stream]
    values = [line.get("score", line["predicted"] == line["truth"]) for line in lines]
    missing = [line["truth"] is None or value is None for line, value in zip(lines, values, strict=True)]
    return np.array([np.nan if absent else float(v) for v, absent in zip(values, missing, strict=True)])
