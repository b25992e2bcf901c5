"""The code of CONTRIBUTING.md, added to a copy of the package, trains and passes the invariants."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`(src/\S+\.py)`:\n\n```python\n(.*?)^```", TEXT, re.M | re.S))
CHANGES = re.findall(r"^```diff\n--- (\S+)\n(.*?)^```", TEXT, re.M | re.S)
TINY = [f"model.{size}" for size in ("hidden_size=16", "intermediate_size=32")]
TINY += [f"model.{count}=2" for count in ("num_hidden_layers", "num_attention_heads")]
TINY += ["data.max_length=32", "train.batch_size=4", "train.budget={steps: 20}", "train.precision=float32"]

FAMILY = """
import shutil, torch, transformers
from homespun.hf.open import open_huggingface
from homespun.text.tokenizer import Tokenizer

tokenizer = Tokenizer.load("tokenizer")
sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
config = transformers.CamembertConfig(
    vocab_size=tokenizer.vocab_size, max_position_embeddings=40, pad_token_id=tokenizer.pad_id, **sizes
)
theirs = transformers.CamembertForMaskedLM(config).eval()
theirs.save_pretrained("camembert")
shutil.copy("tokenizer/tokenizer.json", "camembert")
ours = open_huggingface("camembert").stored.model.eval()
ids = torch.tensor([[1, 5, 7, 11, 13]])
with torch.no_grad():
    print((ours.backbone(ids) - theirs.roberta(ids).last_hidden_state).abs().max().item())
"""

pytestmark = pytest.mark.slow


def apply(path: Path, change: str) -> None:
    """Insert the lines with ``+`` after the lines before them."""
    lines, at = path.read_text(encoding="utf-8").splitlines(), 0
    for line in change.splitlines():
        if line[0] == "+":
            lines.insert(at, line[1:])
            at += 1
        else:
            at = lines.index(line[1:], at) + 1
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    for part in ("src", "tests/models"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "tests/conftest.py", "tests/figures.py"):
        shutil.copy(ROOT / name, folder / name)
    for name, source in FILES.items():
        (folder / name).write_text(source, encoding="utf-8")
    for name, change in CHANGES:
        apply(folder / name, change)
    choices = itertools.product(("won", "lost"), ("cup", "game"), range(1900, 1950))
    texts = [f"The team {verb} the {thing} in {year}." for verb, thing, year in choices]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    rows = "".join(f"{text},{9 if 'won' in text else 1}\n" for text in texts)
    (folder / "counts.csv").write_text("text,label\n" + rows, encoding="utf-8")
    read, sizes = ["--input", "texts.jsonl"], ["--kind", "wordpiece", "--vocab-size", "90"]
    homespun(folder, "tokenizer", "train", *read, *sizes, "--out", "tokenizer")
    homespun(folder, "corpus", "build", *read, "--tokenizer", "tokenizer", "--out", "corpus")
    return folder


def python(folder: Path, *arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": "src", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def homespun(folder: Path, *arguments: str) -> dict[str, object]:
    result: dict[str, object] = json.loads(python(folder, "-m", "homespun", *arguments, "--json"))
    return result


def test_one_file_and_one_entry_each() -> None:
    assert len(FILES) == 4
    assert all(len(source.splitlines()) <= 350 for source in FILES.values())
    assert [name for name, _ in CHANGES if name.startswith("src/")] == [
        "src/homespun/attention/__init__.py",
        "src/homespun/objectives/config.py",
        "src/homespun/tasks/config.py",
        "src/homespun/hf/families/__init__.py",
    ]
    for _, change in CHANGES:  # an import and an entry
        assert change.count("\n+") <= 2


def test_code_is_formatted_and_typed(copy: Path) -> None:
    python(copy, "-m", "ruff", "check", *FILES)
    python(copy, "-m", "ruff", "format", "--check", *FILES)


def test_attention(copy: Path) -> None:
    words = ["-q", "-p", "no:cacheprovider", "tests/models/test_invariants.py", "-k", "sigmoid"]
    printed = python(copy, "-m", "pytest", *words)
    assert len(re.findall(r"\.", printed.partition("[100%]")[0])) > 10
    settings = ["data.corpus=corpus", "model.attention.kind=sigmoid", *TINY]
    result = homespun(copy, "pretrain", "bert-mini", *settings, "objective.next_sentence=false", "--out", "sigmoid")
    assert result["steps"] == 20


def test_objective_and_task(copy: Path) -> None:
    homespun(copy, "pretrain", "causal-mini", "data.corpus=corpus", "objective.kind=skip_lm", *TINY, "--out", "skip")
    lines = map(json.loads, (copy / "skip" / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    losses = [line["loss/skip"] for line in lines if "loss/skip" in line]
    assert losses[-1] < losses[0]
    data = ["data.kind=texts", "data.train=counts.csv", "data.test=counts.csv", "data.max_length=32"]
    data += ["objective={kind: count_regression, head: {kind: mean}}"]
    training = ["train.budget.epochs=8", "train.batch_size=8", "train.optimizer.learning_rate=1e-2"]
    given = ["finetune", "similarity", *data, *training, "--from", "skip", "--out", "counts"]
    result = homespun(copy, *given)
    test, baselines = result["test"], result["baselines"]
    assert test["poisson_deviance"] < baselines["mean"]["poisson_deviance"] / 2  # type: ignore[index]
    assert homespun(copy, "predict", "counts", "--input", "counts.csv", "--out", "counts.jsonl")["rows"] == 200
    assert "poisson deviance" in (copy / "counts" / "report" / "index.html").read_text(encoding="utf-8").lower()


def test_family(copy: Path) -> None:
    pytest.importorskip("transformers")
    assert float(python(copy, "-c", FAMILY)) < 1e-5
