"""A GPT from pretraining on: Adafactor with T5's schedule, fine-tuning with the language model's loss, a prompt."""

from __future__ import annotations

import json
from pathlib import Path

from jobs_world import TINY, World


def test_from_pretraining_to_labels_and_prompts(world: World, tmp_path: Path) -> None:
    small = [word for word in TINY if "embedding_size" not in word]
    steps = ["train.budget.time=null", "train.budget.steps=4", "train.batch_size=8"]
    factored = ["train.optimizer={kind: adafactor}", "train.schedule={kind: inverse_square_root, level: 0.5}"]
    words = [f"data.corpus={world.corpus}", "data.length=31", *small, "model.num_attention_heads=2", *steps, *factored]
    world.run("pretrain", "gpt2-mini", *words, "--out", tmp_path / "gpt")
    rates = [
        line["learning_rate"]
        for line in map(json.loads, (tmp_path / "gpt" / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        if line["event"] == "step"
    ]
    assert rates[:2] == [0.01, 0.01]
    assert rates[3] < rates[2] < 0.01

    data = [f"data.train={world.train}", "data.text=sentence", "data.length=31", "baselines=false"]
    budget = ["train.budget={steps: 3}", "train.batch_size=8"]
    words = ["finetune", "classify-gpt", *data, *budget, "--from", tmp_path / "gpt", "--out", tmp_path / "told"]
    result = world.run(*words)
    assert {"loss", "causal", "accuracy"} <= set(result["train"])
    assert result["train"]["causal"] > 1.0

    asked = ["--data", world.train, "--text-field", "sentence", "--limit", "5", "--shots", "0,1", "--draws", "1"]
    answers = world.run("prompt", tmp_path / "gpt", *asked, "--out", tmp_path / "prompt")
    assert [found["shots"] for found in answers["shots"]] == [0, 1]
