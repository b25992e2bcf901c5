"""A small world made by the commands themselves: files, tokenizer, corpus, a pretrained run, a fine-tuned one."""

import csv
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homespun.cli import app

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
    draw = random.Random(seed)
    with path.open("w", encoding="utf-8", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["sentence", "label"])
        for number in range(rows):
            label = list(WORDS)[number % len(WORDS)]
            table.writerow([sentence(label, draw), label])
    return path


def run(*words: str | Path) -> dict[str, Any]:
    """Run a command in this process with ``--json``; its object."""
    import contextlib
    import io

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        app([*map(str, words), "--json"], standalone_mode=False)
    lines = printed.getvalue().splitlines()
    assert len(lines) == 1, printed.getvalue()
    found = json.loads(lines[0])
    assert isinstance(found, dict)
    return found


@dataclass(frozen=True)
class World:
    folder: Path
    run: Callable[..., dict[str, Any]]

    @property
    def corpus(self) -> Path:
        return self.folder / "corpus"

    @property
    def base(self) -> Path:
        return self.folder / "runs" / "base"

    @property
    def classifier(self) -> Path:
        return self.folder / "runs" / "classifier"

    @property
    def train(self) -> Path:
        return self.folder / "train.csv"

    @property
    def test(self) -> Path:
        return self.folder / "test.csv"


TINY = ("model.hidden_size=32", "model.intermediate_size=48", "model.embedding_size=16", "model.num_hidden_layers=1")
