"""The benchmark of tasks: its page and its files."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import pair_contests, tasks
from benchmarks.peer_loop import fit
from torch import nn

pytestmark = pytest.mark.slow


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
    given = tasks.summary(both(ours, peer))
    assert given["mrpc"]["reached"] is reached
    assert given["mrpc"]["difference"] == pytest.approx(sum(ours) / 2 - sum(peer) / 2)
    assert f"| 2 and 2 | {'yes' if reached else 'no'} | 80.00 |" in tasks.page(both(ours, peer))


def test_one_seed_is_no_result_and_a_missing_side_is_skipped() -> None:
    assert "unknown with one seed" in tasks.page(both([0.9], [0.9]))
    assert "unknown with one seed" in tasks.page(both([0.9, 0.91], [0.95]))
    assert tasks.summary({"mrpc-ours-0": trial(0.9)}) == {}


def test_the_time_of_a_stopped_trial_is_none(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"test": {"f1": 0.9}}', encoding="utf-8")
    found = tasks._ours(tmp_path, tmp_path, tasks.CONTESTS["mrpc"], {}, tasks.Training())
    assert found == {"score": 0.9, "baselines": {}, "processor_seconds": None}
    made = both([0.9, 0.91], [0.9, 0.91])
    made["mrpc-ours-0"] |= found
    assert "a trial, ours: 30 to 30." in tasks.page(made)


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


@pytest.mark.parametrize(("precision", "kind"), [("float32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_peer_loop_trains_in_the_given_precision(precision: str, kind: torch.dtype) -> None:
    pytest.importorskip("transformers")
    network, seen = nn.Linear(3, 1), []

    def loss(rows: Sequence[torch.Tensor]) -> torch.Tensor:
        found = network(torch.stack(list(rows)))
        seen.append(found.dtype)
        return (found.float() - 1.0).square().mean()

    before = network.weight.detach().clone()
    fit(network, list(torch.randn(8, 3)), loss, tasks.Training(batch_size=4, epochs=2.0, precision=precision))
    assert seen == [kind] * 4
    assert not torch.equal(before, network.weight)
