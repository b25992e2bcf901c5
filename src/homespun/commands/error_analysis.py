"""Test examples with the worst and with the most confident predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from homespun.commands.trials import Trial
from homespun.tasks.protocol import Task

_MAX_WRONG, _MAX_CONFIDENT = 20, 5
_CHARACTERS = 320  # of a text that is shown
_KEPT = ("truth", "predicted", "loss", "score")


def notable_predictions(
    task: Task[Any, Any], trial: Trial, predictions: Sequence[Mapping[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Examples to show in a report.

    Returns:
        ``most_wrong``: predictions with the largest loss or the lowest score, the worst first; without losses and
        scores the first wrong ones. ``most_confident``: right predictions with the smallest loss; empty without losses.
    """
    known = [index for index, prediction in enumerate(predictions) if prediction["truth"] is not None]
    wrong = [index for index in known if not _right(predictions[index])]
    right = [index for index in known if _right(predictions[index]) and "loss" in predictions[index]]

    def described(indices: Sequence[int]) -> list[dict[str, Any]]:
        texts = task.texts([trial.measured[index] for index in indices])
        return [
            {"row": int(trial.measured_rows[index]), "text": shorten(text)}
            | {name: predictions[index][name] for name in _KEPT if name in predictions[index]}
            for index, text in zip(indices, texts, strict=True)
        ]

    return {
        "most_wrong": described(sorted(wrong, key=lambda index: _sort_key(predictions[index]))[:_MAX_WRONG]),
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
    """Text on one line, cut to the characters that are shown."""
    plain = " ".join(text.split())
    return plain if len(plain) <= _CHARACTERS else f"{plain[: _CHARACTERS - 1]}…"
