"""The rates of a machine are its own, also where two share a home folder."""

import dataclasses
import time
from pathlib import Path

import pytest
import torch

from homespun.planning import rates
from homespun.planning.rates import Rates, clock_of, machine_rates, save_rates

CPU = torch.device("cpu")


@pytest.fixture
def processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """``cpu`` may be set; each measurement is one faster than the one before."""
    here = {"cpu": "a swift one"}
    speeds = iter(range(1, 100))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(rates, "processor_name", lambda: here["cpu"])
    names = [field.name for field in dataclasses.fields(Rates) if field.name != "base"]
    monkeypatch.setattr(rates, "_measure", lambda _: Rates(**dict.fromkeys(names, float(next(speeds)))))
    return here


@pytest.mark.slow
def test_are_measured_once_a_processor(processor: dict[str, str]) -> None:
    assert machine_rates(CPU).products == machine_rates(CPU).products == 1.0
    processor["cpu"] = "a slow one"
    assert machine_rates(CPU).products == 2.0
    save_rates(CPU, dataclasses.replace(machine_rates(CPU), base=5.0))
    processor["cpu"] = "a swift one"
    assert (machine_rates(CPU).products, machine_rates(CPU).base) == (1.0, 0.0)


def test_time_that_other_programs_take_is_not_counted() -> None:
    clock, wall = clock_of(CPU), time.perf_counter
    start, began = clock(), wall()
    time.sleep(0.2)
    assert wall() - began >= 0.2
    assert clock() - start < 0.1


@pytest.mark.slow
def test_fresh_rates_keep_the_memory_of_the_process(processor: dict[str, str]) -> None:
    save_rates(CPU, dataclasses.replace(machine_rates(CPU), base=5.0))
    fresh = machine_rates(CPU, remeasure=True)
    assert (fresh.products, fresh.base) == (2.0, 5.0)
    assert machine_rates(CPU) == fresh
