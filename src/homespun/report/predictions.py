"""Scores of single test examples, read from ``predictions/NAME.jsonl`` of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from homespun.errors import UserError
from homespun.report.formats import number


def scores(lines: Sequence[Mapping[str, object]], measure: str) -> list[float | None]:
    """Score of each line by ``measure``; None if a single example has none, as of a correlation or a corpus F1.

    A line holds its score under the name of the measure. For ``accuracy`` of lines without scores it is 1 if
    ``predicted`` equals ``truth``, else 0. Its ``score`` is another quantity and may rank models differently.
    """
    if measure == "accuracy" and not any(measure in line or "score" in line for line in lines):
        return [float(line.get("truth") == line.get("predicted")) for line in lines]
    return [number(line.get(measure)) for line in lines]


def read_scores(file: Path, measure: str) -> list[tuple[int, str, float | None]]:
    """Row number, true answer as JSON text and score of each prediction.

    Raises:
        UserError: a line is not JSON, or lacks a key.
    """
    rows: list[int] = []
    lines: list[dict[str, object]] = []
    with file.open(encoding="utf-8", errors="replace") as stream:
        for at, line in enumerate(stream, start=1):
            try:
                prediction = json.loads(line)
                row, needed = int(prediction["row"]), {name: prediction[name] for name in ("truth", "predicted")}
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise UserError(f"line {at} of {file.name} has no row, truth and predicted in JSON") from error
            rows.append(row)
            lines.append(needed | {name: prediction[name] for name in (measure, "score") if name in prediction})
    truths = [json.dumps(line["truth"], sort_keys=True) for line in lines]
    return list(zip(rows, truths, scores(lines, measure), strict=True))
