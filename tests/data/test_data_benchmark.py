"""The benchmark of corpus building, run as its user does."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300
    )


@pytest.mark.slow
def test_the_last_line_is_the_result():
    done = benchmark("corpus", "--megabytes", "0.3", "--vocab-size", "700", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["benchmark"] == "corpus"
    assert result["ours"]["bytes_per_second"] > 0
    assert result["ratios"]["throughput"] > 0
    assert 2 * result["bytes"] / 10 < result["ours"]["store_bytes"] < result["bytes"]
    assert set(result["machine"]) == {"cpu", "cores", "gpu", "platform", "python", "torch"}


def test_benchmarks_are_listed_and_named():
    listed = benchmark()
    assert listed.returncode == 0
    assert any(line.startswith("corpus ") for line in listed.stdout.splitlines())
    unknown = benchmark("corpsu")
    assert unknown.returncode == 2
    assert "no benchmark 'corpsu'; there are:" in unknown.stderr
