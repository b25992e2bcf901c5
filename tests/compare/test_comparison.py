"""A comparison by the commands: real trainings, killed and resumed."""

import contextlib
import csv
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from comparing import records

from homespun.cli import app
from homespun.data.corpus_build import build_corpus
from homespun.errors import UserError
from homespun.text.sources import Document
from homespun.text.tokenizer import Tokenizer

pytestmark = pytest.mark.slow
WORDS = {"sport": "goal match team".split(), "money": "bond share price".split()}  # noqa: SIM905


def recipe(folder: Path) -> Path:
    draw = random.Random(3)
    texts = [(" ".join(draw.choices([*WORDS[label], "the", "a"], k=11)), label) for label in list(WORDS) * 30]
    with (folder / "texts.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *texts])
    tokenizer = Tokenizer.train((text for text, _ in texts), kind="bpe", vocab_size=277)
    build_corpus((Document(text) for text, _ in texts), tokenizer, folder / "corpus", workers=1)
    pretraining = {
        "data": {"corpus": str(folder / "corpus"), "max_length": 16},
        "model": {"hidden_size": 16, "embedding_size": 8, "intermediate_size": 24, "num_hidden_layers": 1},
        "train": {"batch_size": 7, "checkpoint_every": 0.2},
    }
    data = {"train": str(folder / "texts.csv"), "test": str(folder / "texts.csv"), "max_length": 16}
    tree = {
        "kind": "compare",
        "pretrain": {"recipe": "electra-tiny", "settings": pretraining},
        "finetune": {"topics": {"settings": {"data": data, "train.budget": {"epochs": 1}}}},
        "variations": {"tuned": {}, "frozen": {"finetune": {"objective.frozen": True}}},
        "budget": {"steps": 150},
        "seeds": 1,
        "benchmark": {"lengths": [8, 16, 1024]},
    }
    path = folder / "compare.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


def started(out: Path) -> list[psutil.Process]:
    """The processes that work in a folder, but for the runner."""
    lines = {process: " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])}
    return [process for process, line in lines.items() if str(out) in line and "homespun.compare.worker" in line]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison whose runner was killed in the middle of pretraining, and that was then started again."""
    folder = tmp_path_factory.mktemp("compared")
    path, out = recipe(folder), folder / "out"
    command = [sys.executable, "-m", "homespun", "compare", str(path), "--out", str(out), "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    first = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    checkpoints = out / "trials/tuned/seed-0/pretrain/checkpoints"
    deadline = time.monotonic() + 120
    while not list(checkpoints.glob("step-*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    left = started(out)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert len(left) == 1
    psutil.wait_procs(left, timeout=30)
    assert not started(out)  # nobody is left who would write where the next runner works
    assert records(out)["tuned/seed-0"]["status"] == "running"
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    (folder / "said.json").write_text(again.stdout)
    return out


def test_killed_comparison_is_complete_after_restart(compared: Path) -> None:
    output = json.loads((compared.parent / "said.json").read_text())
    assert (output["trials"], output["done"], output["failed"]) == (2, 2, [])
    metrics = (compared / "trials/tuned/seed-0/pretrain/metrics.jsonl").read_text()
    events = [json.loads(line) for line in metrics.splitlines()]
    assert "resume" in {event["event"] for event in events}
    assert [event["step"] for event in events if event["event"] == "step"] == list(range(1, 151))
    found = records(compared)
    assert found["frozen/seed-0"]["stages"]["pretrain"]["shared_with"] == "tuned/seed-0"
    for record in found.values():
        assert [row["length"] for row in record["inference"]] == [8, 16]  # 1024 is beyond the model
        assert all(row["seconds_per_text"] > 0 and row["peak_bytes"] > 0 for row in record["inference"])


def test_baselines_are_rows_of_the_comparison(compared: Path) -> None:
    content = json.loads((compared / "comparison.json").read_text())
    candidates = {row["name"]: row["kind"] for row in content["tasks"]["topics"]["contenders"]}
    assert list(candidates.values()).count("baseline") == 2
    assert {"tuned", "frozen"} <= set(candidates)
    lines = (compared / "baselines/topics/predictions/tfidf.jsonl").read_text().splitlines()
    assert [json.loads(line)["row"] for line in lines] == list(range(60))
    result = json.loads((compared / "trials/tuned/seed-0/topics/result.json").read_text())
    assert "baselines" not in result


def test_nothing_is_run_again(compared: Path) -> None:
    logs = {path: path.stat().st_mtime_ns for path in compared.rglob("logs/*.log")}
    assert len(logs) == 1 + 2 + 2 + 1  # pretraining, two tasks, two measurements, the baselines
    output = json.loads(command("compare", compared.parent / "compare.yaml", "--out", compared))
    assert output["done"] == 2
    assert {path: path.stat().st_mtime_ns for path in compared.rglob("logs/*.log")} == logs


def command(*words: str | Path) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        app([*map(str, words), "--json"], standalone_mode=False)
    return printed.getvalue()


def test_a_model_is_measured_by_length(compared: Path) -> None:
    words = ("benchmark", compared / "trials/tuned/seed-0/topics", "--lengths")
    result: dict[str, Any] = json.loads(command(*words, "5,16", "--batch-size", "3"))
    assert [(row["length"], row["batch_size"]) for row in result["inference"]] == [(5, 3), (16, 3)]
    assert result["parameters"] > 0
    for lengths, message in (("a", "takes whole numbers"), ("0", "at least 1"), ("9999", "--lengths 9999 ")):
        with pytest.raises(UserError, match=message):
            command(*words, lengths)


def test_a_trial_trains_in_several_processes(tmp_path: Path) -> None:
    """As with GPUs, which the processes do not find: they compute on the CPU."""
    command = [sys.executable, "-m", "homespun", "compare", str(recipe(tmp_path)), "--out", str(tmp_path / "out")]
    command += ["--json", "gpus_per_trial=2", "variations={tuned: {}}", "budget.steps=5", "benchmark=null"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "0,1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["done"] == 1
    for stage in ("pretrain", "topics"):
        metrics = tmp_path / "out/trials/tuned/seed-0" / stage / "metrics.jsonl"
        assert json.loads(metrics.read_text().splitlines()[0])["processes"] == 2
