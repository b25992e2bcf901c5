"""A selection of the inputs of `benchmarks.fuzz`, in this process; the campaign is in results/faults.md."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.fuzz import handle
from benchmarks.fuzz_inputs import FORMATS
from benchmarks.fuzz_seeds import write_seeds

QUICK = ("recipe", "json", "jsonl", "csv", "parquet", "zip", "tar", "compressed", "tokenizer.json", "corpus")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("fuzz")
    write_seeds(path / "seeds", models=False)
    before = Path.cwd()
    yield path
    os.chdir(before)


@pytest.mark.parametrize("name", QUICK)
def test_malformed_inputs_end_in_one_line(name: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with capfd.disabled():
        outcomes = {seed: handle(name, seed, folder) for seed in range(8)}
    assert not {seed: outcome for seed, outcome in outcomes.items() if outcome["problems"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*FORMATS} - {*QUICK}))
def test_malformed_models_end_in_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_seeds(tmp_path / "seeds")
    monkeypatch.chdir(tmp_path)
    with capfd.disabled():
        outcomes = [handle(name, seed, tmp_path) for seed in range(8)]
    assert not [outcome for outcome in outcomes if outcome["problems"]]
