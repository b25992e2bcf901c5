"""The benchmark of what comparing costs: what it makes of the files, and that its comparison is one."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import compare_overhead
from benchmarks.compare_overhead import Took
from comparing import comparison

from homespun.compare.trials import trials


def finished(folder: Path, status: str = "done") -> Path:
    for number, name in enumerate(("masked", "replaced")):
        for seed in (0, 1):
            record: dict[str, Any] = {"name": name, "seed": seed, "status": status, "settings": {}}
            took = 100.0 + 10 * number + seed
            record["stages"] = {
                "pretrain": {"processor_seconds": took, "seconds": 2 * took},
                "packages": {"processor_seconds": 7.0, "seconds": 11.0},
            }
            trial_folder = folder / "trials" / name / f"seed-{seed}"
            trial_folder.mkdir(parents=True)
            (trial_folder / "trial.json").write_text(json.dumps(record))
    (folder / "comparison.json").write_text(json.dumps({"overhead": {"share": 0.03}}))
    return folder


def test_comparison_cost_is_compared_with_trials_by_hand(tmp_path: Path) -> None:
    folder = finished(tmp_path / "out")
    inside = 107.0 + 108 + 117 + 118
    by_hand = [Took(107.0, 211.0), Took(117.0, 231.0), Took(108.0, 213.0), Took(118.0, 233.0)]
    result = compare_overhead.summarize(folder, Took(1.04 * inside, 1.1 * 888), by_hand)
    assert result["ratios"] == {"processor": 1.04, "clock": 1.1, "beside_stages": 1.04}
    assert result["stages_inside"] == pytest.approx({"processor": inside, "clock": 888.0})
    assert result["trials_own"] == pytest.approx({"processor": inside, "clock": 888.0})
    # the others count as in the comparison
    result = compare_overhead.summarize(folder, Took(inside, 888.0), [Took(110.0, 215.0)])
    assert result["trials_own"] == pytest.approx({"processor": inside + 3, "clock": 892.0})
    assert result["ratios"]["processor"] == pytest.approx(inside / (inside + 3), abs=1e-4)
    assert (result["trials"], result["by_hand"]) == (4, 1)


def test_what_is_no_measurement_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_overhead, "prepare", lambda *_: None)
    with pytest.raises(SystemExit, match="not all trials"):
        compare_overhead.summarize(finished(tmp_path / "comparison", "failed"), Took(1, 1), [Took(1, 1)])
    for words in (["--out", str(tmp_path)], ["--out", str(tmp_path / "new"), "--train", "a.csv"]):
        with pytest.raises(SystemExit):
            compare_overhead.run(words)


def test_its_comparison_is_two_variations_with_two_seeds_by_steps(tmp_path: Path) -> None:
    tree = compare_overhead.comparison(tmp_path, (tmp_path / "a.csv", tmp_path / "b.csv"), 31, 0.5)
    made = trials(comparison(**{key: value for key, value in tree.items() if key != "kind"}))
    expected = [f"{name}/seed-{seed}" for seed in (0, 1) for name in ("replaced", "masked")]
    assert [trial.subfolder for trial in made] == expected
    for trial in made:
        assert "train.budget={steps: 31}" in trial.stages[0].settings
        assert f"data.test={tmp_path / 'b.csv'}" in trial.stages[1].settings
