from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from homespun.report.error_analysis import calibration_of, calibration_table, reliability_plot
from homespun.report.records import RunRecord, read_run
from homespun.report.summary import leakage

Make = Callable[..., Any]


def notice(path: Path, finetuning: Make, **figures: float) -> str:
    overlap = {"rows": 50, "near": 10, "same": 3, **figures}
    (words,) = leakage([read_run(finetuning(path, overlap=overlap))])
    return words.replace("\u00a0", " ")


def test_near_duplicate_notice_matches_the_numbers(tmp_path: Path, finetuning: Make) -> None:
    better = notice(tmp_path / "a", finetuning, all=0.95, unseen=0.93)
    assert better.startswith("10 of 50 evaluated examples of a (20.0 %)")
    assert "all examples 0.950, without these 0.930." in better
    for unseen in (0.93, 0.90):
        no_better = notice(tmp_path / f"b{unseen}", finetuning, all=0.90, unseen=unseen)
        assert f"all examples 0.900, without these {unseen:.3f}." in no_better
    assert notice(tmp_path / "c", finetuning).endswith("the scores may be too high.")


def off(before: float, after: float) -> dict[str, Any]:
    parts = {"before": before, "after": after}
    return {"calibration": {name: {"ece": ece, "log_loss": 2 * ece, "bins": []} for name, ece in parts.items()}}


def run_with(path: Path, finetuning: Make, tests: list[dict[str, Any]], **result: Any) -> RunRecord:
    trainings = [{"accuracy": 0.9, "rows": 50} | test for test in tests]
    return read_run(finetuning(path, trainings=trainings, decision_rule={"temperature": 1.7}, **result))


@pytest.mark.parametrize("others", [[], [off(0.3, 0.3)]])
def test_temperature_is_shown_with_its_effect(tmp_path: Path, finetuning: Make, others: list[Any]) -> None:
    """Of several trainings beside that of the one it was found for, which need not be the first."""
    kept = off(0.2, 0.1)
    table = calibration_table(run_with(tmp_path / "a", finetuning, [*others, kept], **kept), "calibration")
    assert table.rows == (("as trained", 1.0, 0.2, 0.4), ("with temperature", 1.7, 0.1, 0.2))


def test_result_without_training_has_no_table(tmp_path: Path, finetuning: Make) -> None:
    run = run_with(tmp_path / "a", finetuning, [off(0.3, 0.3), off(0.2, 0.1)])
    assert calibration_table(run, "calibration") is None
    assert reliability_plot(calibration_of(run), "reliability") is None
