"""Inputs of the commands."""

from __future__ import annotations

import random
from pathlib import Path


def write_table(path: Path, rows: int, seed: int) -> None:
    draw = random.Random(seed)
    words = {"sport": "goal team coach league referee", "money": "share profit bank bond trader"}
    lines = ["text,label"]
    for number in range(rows):
        label = list(words)[number % 2]
        text = " ".join(draw.choice(f"{words[label]} the a of in and was with".split()) for _ in range(12))
        lines.append(f"{text} {number},{label}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_tags(path: Path, sentences: int) -> None:
    blocks = (
        f"goal O\nof O\nteam B-ORG\n{'league I-ORG' if number % 3 else 'coach O'}\n" for number in range(sentences)
    )
    path.write_text("\n".join(blocks), encoding="utf-8")


COMPARE = """
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
      train: {{batch_size: 4}}
variations:
  mlm: {{}}
budget: {{steps: 4}}
seeds: 1
benchmark: null
"""
