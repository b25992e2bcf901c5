"""The clients of docs/serving.md run against a server."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from served_models import server

PAGE = Path(__file__).resolve().parents[2] / "docs" / "serving.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.fixture(scope="module")
def url(folders: dict[str, Path]) -> Iterator[str]:
    with server(f"mine={folders['classifier']}") as running:
        yield running.url


def run(url: str, program: list[str], code: str) -> str:
    code = code.replace("http://127.0.0.1:8000", url)
    done = subprocess.run([*program, code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_clients(url: str) -> None:
    (request,) = [line for block in blocks("sh") for line in block.splitlines() if "/predict" in line]
    if shutil.which("curl"):
        answer = json.loads(run(url, ["sh", "-c"], request))
        assert answer["model"] == "mine"
        assert answer["predictions"][0].keys() == {"label", "probability", "probabilities", "truncated"}
    client, _ = blocks("python")
    assert run(url, [sys.executable, "-c"], client).strip() in ("food", "money", "sport")
    (script,) = blocks("js")
    if shutil.which("node"):
        shown = script + "console.log(predictions[0].label);"
        assert run(url, ["node", "--input-type=module", "-e"], shown).strip() in ("food", "money", "sport")
