from __future__ import annotations

from pathlib import Path

import pytest

from homespun.compare import energy
from homespun.compare.energy import Meter


def zone(folder: Path, name: str, energy_uj: int) -> Path:
    path = folder / name
    path.mkdir(exist_ok=True)
    (path / "energy_uj").write_text(f"{energy_uj}\n")
    (path / "max_energy_range_uj").write_text("1000000000\n")
    return path


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "_gpu_millijoules", list)


def test_packages_are_added_and_their_parts_are_not(tmp_path: Path) -> None:
    for name in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0", "dtpm"):
        zone(tmp_path, name, 5_000_000)
    meter = Meter(tmp_path)
    zone(tmp_path, "intel-rapl:0", 12_000_000)
    zone(tmp_path, "intel-rapl:1", 18_000_000)
    zone(tmp_path, "intel-rapl:0:0", 900_000_000)
    assert meter.joules() == pytest.approx(7 + 13)


def test_a_counter_that_began_anew(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", 997_000_000)
    meter = Meter(tmp_path)
    zone(tmp_path, "intel-rapl:0", 8_000_000)
    assert meter.joules() == pytest.approx(11)


def test_a_machine_that_does_not_tell(tmp_path: Path) -> None:
    assert Meter(tmp_path / "nowhere").joules() is None
    assert Meter(tmp_path).joules() is None


def test_gpus_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([[1000, 2000], [4000, 7000]])
    monkeypatch.setattr(energy, "_gpu_millijoules", lambda: next(counts))
    zone(tmp_path, "intel-rapl:0", 0)
    meter = Meter(tmp_path)
    zone(tmp_path, "intel-rapl:0", 17_000_000)
    assert meter.joules() == pytest.approx(17 + 3 + 5)


def test_without_a_driver_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert isinstance(energy._gpu_millijoules(), list)
