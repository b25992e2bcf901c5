"""Test examples that a model is most wrong about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from homespun.commands.trials import Trial
from homespun.tasks.protocol import Task

_SHOWN = 20
_CHARACTERS = 320  # of a text that is shown
_KEPT = ("truth", "predicted", "loss", "score")


def top_errors(task: Task[Any, Any], trial: Trial, predictions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Examples with the largest loss or the lowest score, the worst first.

    Right predictions and those with a perfect score are left out. Without losses and scores the first wrong predictions
    are returned.
    """
    wrong = [
        index
        for index, prediction in enumerate(predictions)
        if prediction["truth"] is not None and not _right(prediction)
    ]
    worst = sorted(wrong, key=lambda index: _sort_key(predictions[index]))[:_SHOWN]
    texts = task.texts([trial.measured[index] for index in worst])
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
    """Text on one line, cut to the characters that are shown."""
    plain = " ".join(text.split())
    return plain if len(plain) <= _CHARACTERS else f"{plain[: _CHARACTERS - 1]}…"
