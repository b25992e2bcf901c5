"""Expected time of the classifier on a frozen encoder."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from homespun.fitting.inspection import inspect
from homespun.fitting.ladder import Ladder
from homespun.fitting.networks import layer_seconds
from homespun.fitting.results import FitSettings
from homespun.report.console import Display


def source(path: Path, hidden: int = 384, *, causal: bool = False) -> Any:
    backbone = SimpleNamespace(hidden_size=hidden, causal=causal)
    stored = SimpleNamespace(config=SimpleNamespace(backbone=backbone))
    return SimpleNamespace(path=str(path), stored=stored, texts_per_second=100.0)


def table(path: Path, rows: int, classes: int) -> str:
    lines = [f"word{number} of text {number},class{number % classes}\n" for number in range(rows)]
    path.write_text("text,label\n" + "".join(lines), encoding="utf-8")
    return str(path)


def test_it_grows_with_examples_numbers_and_classes(tmp_path: Path) -> None:
    few, many = (inspect([table(tmp_path / f"{n}.csv", 400, n)]) for n in (4, 40))
    one, ten = (layer_seconds(source(tmp_path), found) / len(found.train) for found in (few, many))
    assert ten == pytest.approx(10 * one)
    assert layer_seconds(source(tmp_path, 768), many) == pytest.approx(2 * layer_seconds(source(tmp_path), many))
    one_pooling = layer_seconds(source(tmp_path, causal=True), many)
    assert one_pooling == pytest.approx(layer_seconds(source(tmp_path), many) / 2)


def test_the_time_of_a_frozen_encoder_contains_it(tmp_path: Path) -> None:
    found = inspect([table(tmp_path / "t.csv", 400, 4)])
    settings = FitSettings(train=[str(tmp_path / "t.csv")])
    ladder = Ladder(found, tmp_path / "run", settings, [], Display(json=True), 0.0)
    small, large = (source(tmp_path, hidden) for hidden in (384, 38_400))
    expected = layer_seconds(large, found) - layer_seconds(small, found)
    assert ladder._embedding(large) - ladder._embedding(small) == pytest.approx(expected)
