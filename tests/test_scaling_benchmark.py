"""The simulated store: sparse shards, and rows that are drawn by arithmetic. A sharded checkpoint."""

from pathlib import Path

import pytest
from benchmarks.scaling import saving, simulation


def test_a_simulated_store_takes_no_disk_and_gives_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TOKENS": 200_000, "DOCUMENTS": 100, "LINKS": 3, "LENGTH": 128, "ROWS": 20}.items():
        monkeypatch.setattr(simulation, name, value)
    on_disk = simulation.write_corpus(tmp_path / "store", 7)
    assert on_disk < 3 * 2 * 200_000 / 10  # of three files with two bytes a token
    found = simulation.draw(tmp_path / "store")
    assert found["rows"] == 6 * -(-(200_000 + 2 * 100) // 128)
    assert found["row_ms"] > 0


@pytest.mark.slow
def test_saving_of_shards_is_measured() -> None:
    found = saving.measure(8)
    assert [len(found[name]) for name in ("copy", "thread", "copy, processor", "thread, processor")] == [3] * 4
