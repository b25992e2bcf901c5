"""The commands and the Python of the README and the tutorial are run, on small files and with small budgets."""

import gzip
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from homespun.compare.checks import check
from homespun.compare.recipe import compare_recipe
from homespun.compare.trials import trials

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent / "commands"))

from commands_world import run, sentence, write_table  # noqa: E402

WORDS = ["team", "bank", "league", "market", "player", "trader", "coach", "broker", "goal", "share", "cup"]
SMALL = {
    "8_000": "300",
    "8000": "300",
    "pretrain spun-encoder-decoder": "pretrain spun-encoder-decoder model.preset=spun-encoder-decoder-tiny",
    "train.budget.time=2h": "train.budget.steps=2",
}


def block(language: str, holding: str) -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    found = [b for b in blocks if holding in b]
    assert len(found) == 1
    return found[0]


def smaller(text: str) -> str:
    for large, small in SMALL.items():
        text = text.replace(large, small)
    return text


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import random

    draw = random.Random(3)
    (tmp_path / "10k").mkdir()
    for number in range(2):
        with gzip.open(tmp_path / "10k" / f"{number}.jsonl.gz", "wt", encoding="utf-8") as stream:
            for _ in range(60):
                stream.write(json.dumps({"text": sentence(draw.choice(["sport", "money"]), draw)}) + "\n")
    write_table(tmp_path / "train.csv", 90, seed=4)
    write_table(tmp_path / "test.csv", 30, seed=5)
    (tmp_path / "new.jsonl").write_text('{"sentence": "The team was in the league."}\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_commands_run(files: Path) -> None:
    lines = [line for line in smaller(block("sh", "tokenizer train")).splitlines() if line]
    assert len(lines) == 6
    for line in lines:
        words = shlex.split(line)
        assert words[0] == "homespun"
        extra = ["train.budget.steps=2"] if words[1] == "finetune" else []
        run(*words[1:], *extra)
    assert len((files / "predictions.jsonl").read_text().splitlines()) == 1


@pytest.mark.slow
def test_the_commands_of_models_that_write_run(files: Path) -> None:
    pytest.importorskip("rouge_score")
    for line in smaller(block("sh", "tokenizer train")).splitlines()[:2]:
        run(*shlex.split(line)[1:])
    content = [{"document": f"The {word} won. It was late.", "summary": f"The {word} won."} for word in WORDS]
    pairs = "".join(json.dumps(row) + "\n" for row in content)
    (files / "pairs.jsonl").write_text(pairs, encoding="utf-8")
    (files / "reports.jsonl").write_text(pairs.splitlines()[0] + "\n", encoding="utf-8")
    for line in smaller(block("sh", "summarize")).splitlines():
        words = shlex.split(line)
        extra = ["train.budget.steps=2", "data.max_target_length=8"] if words[1] == "finetune" else []
        run(*words[1:], *extra)
    assert len((files / "short.jsonl").read_text().splitlines()) == 1


@pytest.mark.slow
def test_a_plan_runs(files: Path) -> None:
    for line in smaller(block("sh", "tokenizer train")).splitlines()[:2]:
        run(*shlex.split(line)[1:])
    line = smaller(block("sh", "homespun plan")).splitlines()[0]
    content = run(*shlex.split(line)[1:])
    assert 0 < content["memory"]["peak"] < 12e9
    assert content["expected"]["seconds"] <= 36_000 * 1.01
    assert content["expected"]["epochs"] > 1


def test_what_is_compared_can_be_built(files: Path) -> None:
    for line in smaller(block("sh", "tokenizer train")).splitlines()[:2]:
        run(*shlex.split(line)[1:])
    content = block("sh", "homespun compare").replace("\\\n", "")
    name, *settings, out, _ = shlex.split(content[content.index("homespun compare") :])[2:]
    assert out == "--out"
    recipe = compare_recipe(name, settings)
    check(recipe, trials(recipe))  # raises, naming what cannot be built or read


@pytest.mark.slow
def test_the_python_runs(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = smaller(block("python", "import homespun")).replace(
        '"data.text=sentence"', '"data.text=sentence", "train.budget.steps=2"'
    )
    namespace: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), namespace)  # our own README, not a user's
    accuracy, tfidf = map(float, capsys.readouterr().out.split()[-2:])
    assert 0 <= accuracy <= 1
    assert 0 <= tfidf <= 1
    assert callable(namespace["model"])


@pytest.mark.slow
def test_the_tutorial_runs(files: Path) -> None:
    (files / "filings").symlink_to(files / "10k")
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8").replace("\\\n", "")
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    found = {}
    for line in lines:
        words = shlex.split(line.replace("--time 10m", "--time 15s"))
        if words[0] == "homespun" and words[1] != "serve" and "--from" not in words:
            found[words[1]] = run(*words[1:])
    assert found["fit"]["examples"]["test"] == found["evaluate"]["rows"] == found["predict"]["rows"] == 30
    assert found["evaluate"]["accuracy"] == pytest.approx(found["fit"]["test"]["accuracy"])
    assert len((files / "predictions.csv").read_text(encoding="utf-8").splitlines()) == 31


def test_architecture_page_lists_every_package_and_no_other() -> None:
    tree = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("## Packages")[1]
    listed = set(re.findall(r"^\| `(\w+)` \|", tree, re.MULTILINE))
    packages = {path.parent.name for path in (ROOT / "src" / "homespun").glob("*/__init__.py")}
    assert listed == packages
