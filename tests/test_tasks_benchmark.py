"""The benchmark of tasks: what its page says of the trials, and its files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from benchmarks import pair_contests, tasks


def trial(score: float, seed: int = 0, **fields: Any) -> dict[str, Any]:
    machine = {"cpu": "a processor", "threads": "1", "torch": "2"}
    known = {"score": score, "processor_seconds": 30.0, "training": vars(tasks.Training(seed=seed)), "machine": machine}
    return known | fields


def both(ours: list[float], peer: list[float]) -> dict[str, Any]:
    made = {f"mrpc-ours-{seed}": trial(score, seed, baselines={"tfidf": 0.8}) for seed, score in enumerate(ours)}
    return made | {f"mrpc-peer-{seed}": trial(score, seed) for seed, score in enumerate(peer)}


@pytest.mark.parametrize(
    ("ours", "peer", "reached"),
    [([0.90, 0.92], [0.91, 0.93], True), ([0.80, 0.801], [0.9, 0.902], False), ([0.95, 0.96], [0.9, 0.902], True)],
)
def test_a_figure_is_reached_within_a_deviation(ours: list[float], peer: list[float], reached: bool) -> None:
    told = tasks.summary(both(ours, peer))
    assert told["mrpc"]["reached"] is reached
    assert told["mrpc"]["difference"] == pytest.approx(sum(ours) / 2 - sum(peer) / 2)
    assert f"| 2 and 2 | {'yes' if reached else 'no'} | 80.00 |" in tasks.page(both(ours, peer))


def test_one_seed_says_nothing_and_a_missing_side_is_left_out(tmp_path: Path) -> None:
    assert "one seed does not say" in tasks.page(both([0.9], [0.9]))
    assert tasks.summary({"mrpc-ours-0": trial(0.9)}) == {}
    tasks.write(tmp_path / "tasks.json", both([0.9], [0.8]))
    assert tasks.read(tmp_path / "tasks.json") == both([0.9], [0.8])
    assert (tmp_path / "tasks.md").is_file()


def test_files_have_one_form(tmp_path: Path) -> None:
    folder = tmp_path / "mrpc"
    folder.mkdir()
    for part, count in (("train", 31), ("test", 7)):
        lines = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
        lines += [f'{n % 2}\t1\t2\tHe said "no {n}\tHe said, {n}.' for n in range(count)]
        (folder / f"msr_paraphrase_{part}.txt").write_text("\ufeff" + "\n".join(lines) + "\n", encoding="utf-8")
    files = pair_contests.mrpc(tmp_path, tmp_path, None)
    read = {}
    for part, path in files.items():
        with path.open(encoding="utf-8", newline="") as stream:
            read[part] = list(csv.DictReader(stream))
    assert {part: len(rows) for part, rows in read.items()} == {"train": 28, "validation": 3, "test": 7}
    assert read["test"][3] == {"first": 'He said "no 3', "second": "He said, 3.", "label": "1"}
    assert len(pair_contests.mrpc(tmp_path, tmp_path, 5)) == 3
    with pytest.raises(SystemExit, match="give --data FOLDER"):
        pair_contests.stsb(tmp_path, tmp_path, None)


def test_both_sides_are_told_the_same() -> None:
    told = tasks.Training(seed=7, epochs=2.0).settings
    assert "train.seed=7" in told
    assert "train.budget.epochs=2.0" in told
    assert "train.optimizer.layer_decay=1.0" in told
