"""The benchmark of attentions, run as its user does, at tiny sizes."""

import importlib
import json
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("transformers")
ROOT = Path(__file__).resolve().parents[2]
TINY = ("--rounds", "1", "--threads", "1", "--hidden", "64", "--layers", "1")


def result_of(*arguments: str) -> dict[str, Any]:
    words = [sys.executable, "-m", "benchmarks", "attention", *arguments, *TINY]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(result, dict)
    return result


@pytest.fixture
def attention(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("benchmarks.attention")


@pytest.mark.slow
def test_ours_and_the_peer_are_measured() -> None:
    result = result_of("--length", "64", "--only", "longformer")
    assert (result["benchmark"], result["length"]) == ("attention", 64)
    for side in ("ours", "peer", "careful_peer"):
        assert result[side]["longformer"]["seconds"] > 0
        assert result[side]["longformer"]["peak_bytes"] > 10**8
    assert result["ratios"]["longformer"].keys() >= {"times_faster", "peak_bytes"}


@pytest.mark.slow
def test_growth_and_crossover_are_reported_and_plotted(tmp_path: Path) -> None:
    plot = tmp_path / "crossover.svg"
    result = result_of("--by-length", "--only", "performer", "--lengths", "64,2048,3001", "--plot", str(plot))
    assert result["lengths"] == [64, 2048, 3001]
    assert result["ours"].keys() == {"full", "performer"}
    assert result["begins_to_beat_full"].keys() == {"performer"}
    assert result["ours"]["performer"]["added_bytes"][-1] > 0
    _, before, after = result["ours"]["performer"]["seconds"]  # a single step each: a busy machine may take any time
    grown = math.log(after / before) / math.log(3001 / 2048)
    assert result["exponents"]["performer"]["seconds"] == pytest.approx(grown, abs=0.05)
    assert b"performer" in plot.read_bytes()


@pytest.mark.slow
def test_the_crossover_is_where_it_wins_from_then_on(attention: ModuleType) -> None:
    found = {
        "full": {"seconds": [1.0, 2.0, 4.0, 8.0], "peak_bytes": [10, 20, 40, 80]},
        "late": {"seconds": [0.9, 2.1, 3.0, 4.0], "peak_bytes": [10, 20, 40, 79]},
    }
    assert attention._crossovers([1, 2, 4, 8], found) == {"late": {"seconds": 4, "peak_bytes": None}}
    growing = {key: [3.0 * length**1.1 for length in (2, 4, 8)] for key in ("seconds", "peak_bytes", "added_bytes")}
    assert set(attention._exponents([2, 4, 8], growing).values()) == {1.1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--alone", "--only", "performer"), "not performer"),
        (("--alone", "--length", "1000"), "multiple of 512"),
        (("--by-length", "--only", "full"), "--by-length"),
        (("--only", "longfromer"), "invalid choice"),
    ],
)
def test_missing_comparisons_are_reported(
    arguments: tuple[str, ...], message: str, attention: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        attention.run([*arguments])
    assert message in capsys.readouterr().err
