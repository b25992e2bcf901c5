"""Each script of examples/ runs on small files, and is short."""

import contextlib
import gzip
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

import homespun

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
sys.path[:0] = [str(Path(__file__).parent / name) for name in ("commands", "serving")]

from commands_world import run, sentence, write_table  # noqa: E402
from served_models import write_linear  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    draw = random.Random(3)
    with gzip.open(folder / "texts.jsonl.gz", "wt", encoding="utf-8") as stream:
        for _ in range(200):
            stream.write(json.dumps({"text": sentence(draw.choice(["sport", "money"]), draw)}) + "\n")
    for name, rows, seed in (("train", 90, 4), ("test", 30, 5)):
        write_table(folder / f"{name}.csv", rows, seed=seed)
        table = (folder / f"{name}.csv").read_text(encoding="utf-8")
        (folder / f"{name}.csv").write_text(table.replace("sentence", "text", 1), encoding="utf-8")
    texts = ["--input", folder / "texts.jsonl.gz", "--text-field", "text"]
    run("tokenizer", "train", *texts, "--vocab-size", "300", "--out", folder / "tokenizer")
    run("corpus", "build", *texts, "--tokenizer", folder / "tokenizer", "--out", folder / "corpus")
    return folder


def output(world: Path, script: str, *arguments: str | Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "examples" / script), *map(str, arguments)]
    done = subprocess.run(command, cwd=world, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_scripts_are_short_and_tested() -> None:
    assert len(EXAMPLES) >= 5
    tests = Path(__file__).read_text(encoding="utf-8")
    for path in EXAMPLES:
        assert len(path.read_text(encoding="utf-8").splitlines()) < 60
        assert f'"{path.name}"' in tests


def test_classify_then_open_in_transformers(world: Path) -> None:
    pytest.importorskip("transformers")
    tables = ["--train", "train.csv", "--test", "test.csv", "--vocab-size", "300"]
    words = ["--texts", "texts.jsonl.gz", *tables, "--minutes", "0.05", "--out", "classify"]
    printed = output(world, "classify.py", *words)
    assert re.search(r"classifier: \d+\.\d% on 30 test examples\nmajority: ", printed)
    printed = output(world, "to_transformers.py", "classify/pretrained", "--text", "The team won the league.")
    assert float(re.search(r"largest difference (\S+) over", printed)[1]) < 1e-4


def test_attentions(world: Path) -> None:
    printed = output(world, "attentions.py", "--corpus", "corpus", "--tokens", "3k", "--out", "attentions")
    assert re.findall(r"^(\w+): \d+\.\d{3} nats", printed, re.MULTILINE) == ["full", "window", "performer"]
    assert (world / "attentions" / "report" / "index.html").is_file()


def test_word_vectors(world: Path) -> None:
    pytest.importorskip("gensim")
    sizes = ("--vocab-size", "60", "--size", "8")
    printed = output(
        world, "word_vectors.py", "--texts", "texts.jsonl.gz", "--words", "team", *sizes, "--out", "vectors"
    )
    assert re.fullmatch(r"team: (\w+ -?\d\.\d\d, ){4}\w+ -?\d\.\d\d\n", printed)


def test_generate(world: Path) -> None:
    printed = output(
        world, "generate.py", "--corpus", "corpus", "--minutes", "0.05", "--prompt", "The team", "--out", "writer"
    )
    assert re.match(r"held-out loss \d\.\d{3} nats after [\d,]+ tokens\n.*\w", printed)


def test_ray_serve(world: Path) -> None:
    pytest.importorskip("ray.serve", reason="needs ray[serve]", exc_type=ImportError)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = ["--model", str(write_linear(world / "linear")), "--replicas", "2", "--port", port]
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", json.dumps({"text": "the goal"}).encode())
    with (world / "ray.log").open("w") as log:
        serving = subprocess.Popen(
            [sys.executable, str(ROOT / "examples" / "ray_serve.py"), *words],
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
            stderr=subprocess.STDOUT,
            stdout=log,
        )
        try:
            found = None
            for _ in range(400):
                time.sleep(0.5)
                assert serving.poll() is None, (world / "ray.log").read_text()
                with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=20) as answer:
                    found = json.load(answer)
                    break
        finally:
            serving.send_signal(signal.SIGINT)
            serving.wait(60)
    expected = homespun.open(world / "linear")
    (row,) = expected.predict_proba(["the goal"])
    assert found == pytest.approx(dict(zip(expected.labels.names, row, strict=True)))
