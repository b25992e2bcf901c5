"""What was said of single examples, as the lines of ``predictions/NAME.jsonl`` of a run have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from homespun.report.formats import number


def scores(lines: Sequence[Mapping[str, object]], measure: str) -> list[float | None]:
    """(lines,) what the ``measure`` is the mean of, which a line has under its name; 1 or 0 for ``accuracy`` where all
    lines are right or wrong and no more.

    ``None`` where a line does not have it: no single example has a correlation, or an F1 over all entities. Its
    ``score`` is another quantity, by which two models may stand in another order.
    """
    if measure == "accuracy" and not any(measure in line or "score" in line for line in lines):
        return [float(line.get("truth") == line.get("predicted")) for line in lines]
    return [number(line.get(measure)) for line in lines]
