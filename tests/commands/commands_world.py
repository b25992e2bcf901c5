"""A small world made by the commands themselves: files, tokenizer, corpus, a pretrained run, a fine-tuned one."""

import contextlib
import csv
import io
import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from homespun.cli import app
from homespun.errors import UserError

WORDS = {
    label: words.split()
    for label, words in {
        "sport": "match goal team coach league striker referee stadium penalty season fans trophy",
        "money": "market share profit bank bond trader index price loan dividend stock quarter",
        "food": "soup bread salt oven butter onion pepper dinner sauce flour knife kitchen",
    }.items()
}
COMMON = "the a of in and was with for new old after before more less said today very all"


def sentence(label: str, draw: random.Random) -> str:
    words = [draw.choice(WORDS[label] if draw.random() < 0.4 else COMMON.split()) for _ in range(draw.randint(8, 30))]
    middle = len(words) // 2
    return f"{' '.join(words[:middle]).capitalize()}. {' '.join(words[middle:]).capitalize()}."


def write_table(path: Path, rows: int, seed: int) -> Path:
    draw, labels = random.Random(seed), list(WORDS)
    drawn = [(sentence(label, draw), label) for label in (labels[row % len(labels)] for row in range(rows))]
    return write_csv(path, ["sentence", "label"], drawn)


def run(*words: str | Path) -> dict[str, Any]:
    """Run a command in this process with ``--json``; its object."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        app([*map(str, words), "--json"], standalone_mode=False)
    (line,) = printed.getvalue().splitlines()
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def assert_refused(message: str, *words: str | Path) -> None:
    """Run a command that ends in one line, which matches ``message``."""
    with pytest.raises(UserError, match=message) as error:
        run(*words)
    assert "\n" not in str(error.value)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_lines(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_csv(path: Path, header: list[str], rows: Iterable[Iterable[Any]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([header, *rows])
    return path


class World:
    def __init__(self, folder: Path, run: Callable[..., dict[str, Any]]) -> None:
        self.folder, self.runs, self.run = folder, folder / "runs", run
        self.train, self.test = folder / "train.csv", folder / "test.csv"
        self.tokenizer, self.corpus = folder / "tokenizer", folder / "corpus"
        self.base, self.classifier = self.runs / "base", self.runs / "classifier"
        # short trainings, but for their steps and folders
        self.pretraining = ("pretrain", "electra-tiny", f"data.corpus={self.corpus}", "data.max_length=32", *TINY)
        self.labelled = (f"data.train={self.train}", "data.text=sentence", "data.max_length=24")
        self.finetuning = ("finetune", "classify", *self.labelled)


TINY = ("model.hidden_size=32", "model.intermediate_size=48", "model.embedding_size=16", "model.num_hidden_layers=1")
