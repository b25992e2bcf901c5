"""Inputs of the commands."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path


def write_files(folder: Path) -> None:
    """Write the data of all tasks and the recipe of a comparison."""
    _write_table(folder / "train.csv", 60, seed=1)
    _write_table(folder / "test.csv", 12, seed=2)
    _write_rows(folder / "numbers.csv", "text,label", (f"{_text(n)},{n / 7:.3f}" for n in range(20)))
    _write_rows(folder / "stars.csv", "text,label", (f"{_text(n)},{n % 3 + 1}" for n in range(24)))
    _write_rows(folder / "pairs.csv", "first,second,label", (f"{_text(n)},{_text(n + 1)},{n % 5}" for n in range(24)))
    _write_rows(
        folder / "tags.conll",
        "",
        (f"goal O\nof O\nteam B-ORG\n{'league I-ORG' if n % 3 else 'coach O'}\n" for n in range(30)),
    )
    documents = ({"review_sentences": [[m % 2, _text(n + m)] for m in range(3)]} for n in range(16))
    _write_rows(folder / "sentences.jsonl", "", map(json.dumps, documents))
    summaries = ({"source": _text(n), "target": f"text {n}"} for n in range(16))
    _write_rows(folder / "summaries.jsonl", "", map(json.dumps, summaries))
    questions = (
        {"id": str(n), "question": "which text?", "answers": [{"text": str(n), "answer_start": _text(n).index(str(n))}]}
        for n in range(16)
    )
    paragraphs = [{"context": _text(n), "qas": [question]} for n, question in enumerate(questions)]
    _write_rows(folder / "questions.json", "", [json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]})])
    (folder / "compare.yaml").write_text(_COMPARE.format(world=folder), encoding="utf-8")


def _text(number: int) -> str:
    return f"{'good ' * (number % 5)}text {number} of a team"


def _write_rows(path: Path, header: str, rows: Iterable[str]) -> None:
    path.write_text("\n".join([*([header] if header else []), *rows]) + "\n", encoding="utf-8")


def _write_table(path: Path, rows: int, seed: int) -> None:
    draw = random.Random(seed)
    words = {"sport": "goal team coach league referee", "money": "share profit bank bond trader"}
    lines = []
    for number in range(rows):
        label = list(words)[number % 2]
        text = " ".join(draw.choice(f"{words[label]} the a of in and was with".split()) for _ in range(12))
        lines.append(f"{text} {number}. The text has {label},{label}")
    _write_rows(path, "text,label", lines)


_COMPARE = """
kind: compare
pretrain:
  recipe: roberta-mini
  settings:
    data: {{corpus: "{world}/corpus", max_length: 32}}
    model: {{hidden_size: 16, intermediate_size: 24, num_hidden_layers: 2, num_attention_heads: 2}}
    train: {{batch_size: 4, checkpoint_every: 0.001}}
finetune:
  topics:
    recipe: classify
    settings:
      data: {{train: "{world}/train.csv", test: "{world}/test.csv", text: text, max_length: 24}}
      train: {{batch_size: 4, budget: {{steps: 4}}}}
variations:
  mlm: {{}}
budget: {{steps: 4}}
seeds: 1
benchmark: null
"""
