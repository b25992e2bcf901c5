"""`homespun few-shot`: examples drawn from a file, accuracy against their number, and mistakes in one line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands_world import assert_refused, run, write_table

from homespun.commands.few_shot import Prompting, _draw_examples, few_shot
from homespun.errors import UserError
from homespun.models.bundle import save_model
from homespun.models.config import ModelConfig
from homespun.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prompt")
    table = write_table(folder / "table.csv", 67, seed=1)
    tokenizer = Tokenizer.train([table.read_text(encoding="utf-8")], kind="bpe", vocab_size=307)
    torch.manual_seed(1)
    backbone = {"preset": "gpt2-tiny", "vocab_size": 307, "hidden_size": 28, "num_attention_heads": 2}
    for name, fields in {"causal": {}, "short": {"max_position_embeddings": 331}, "bert": {"causal": False}}.items():
        config = ModelConfig.model_validate({"backbone": backbone | fields, "head": {"kind": "causal_lm"}})
        save_model(folder / name, config.build(), config, tokenizer)
    return folder


def test_accuracy_by_examples(world: Path) -> None:
    out = world / "out"
    words = ("few-shot", world / "causal", "--data", world / "table.csv", "--text-field", "sentence", "--out", out)
    words += ("--limit", "11", "--shots", "2,0", "--repeats", "2", "--answers", "food=to eat")
    result = run(*words)
    assert [(found["shots"], len(found["draws"])) for found in result["shots"]] == [(0, 1), (2, 2)]
    assert "tfidf" not in result["shots"][0]
    assert result["answers"] == {"food": "to eat", "money": "money", "sport": "sport"}
    assert result["rows"] == 11
    assert result["prompt"].count("Answer:") == 3
    accuracies = [draw["accuracy"] for draw in result["shots"][1]["draws"]]
    assert result["shots"][1]["accuracy"] == pytest.approx(np.mean(accuracies))
    assert (out / "index.html").is_file()
    assert (out / "plots" / "in-context-accuracy.svg").is_file()
    stored = json.loads((out / "in_context.json").read_text(encoding="utf-8"))
    assert stored["shots"] == result["shots"] == run(*words)["shots"]


@pytest.mark.parametrize(
    "options", [["--score", "per_token"], ["--calibrated"], ["--score", "generated"], ["--text-tokens", "5"]]
)
def test_ways_of_scoring(world: Path, options: list[str], tmp_path: Path) -> None:
    words = ["--data", world / "table.csv", "--text-field", "sentence", "--out", tmp_path, "--limit", "7"]
    test = ["--test", world / "table.csv", "--shots", "1", "--repeats", "1"]
    result = run("few-shot", world / "causal", *words, *test, *options)
    assert 0.0 <= result["shots"][0]["accuracy"] <= 1.0


def ask(world: Path, model: str = "causal", **fields: Any) -> Any:
    prompting = Prompting.model_validate({"limit": 7} | fields)
    return few_shot(str(world / model), [str(world / "table.csv")], world / "no", text="sentence", prompting=prompting)


@pytest.mark.parametrize(
    ("model", "fields", "message"),
    [
        ("short", {"shots": [0, 1, 9]}, r" 9 examples .*=331; [1-8] .*--shots"),
        ("short", {"template": {"instruction": "do it " * 300}}, "without examples"),
        ("causal", {"answers": {"foot": "x"}}, "'foot'.*'food'"),
        ("causal", {"answers": {"food": "sport"}}, "labels .*'sport'"),
        ("causal", {"answers": {"food": " "}}, "'food' is empty"),
        ("causal", {"shots": [99]}, "99 .* 60"),
        ("bert", {}, "bidirectional"),
    ],
)
def test_mistakes_are_one_line(world: Path, model: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        ask(world, model, **fields)
    assert "\n" not in str(caught.value)


def test_what_the_options_cannot_be() -> None:
    for message, *words in (
        ("LABEL=WORD", "--answers", "food"),
        ("few-shot: ", "--shots", "-1"),
        ("few-shot: ", "--shots", "few"),
        ("few-shot: ", "--calibrated", "--score", "generated"),
    ):
        assert_refused(message, "few-shot", "nowhere", "--data", __file__, *words)


def test_examples_are_nested_and_balanced() -> None:
    targets = np.array([0] * 41 + [1] * 7 + [2] * 5)
    few, more = (_draw_examples(targets, shots, (3, 1), balanced=True) for shots in (6, 15))
    assert set(few) < set(more)
    assert np.bincount(targets[few]).tolist() == [2, 2, 2]
    assert np.bincount(targets[more]).tolist() == [5, 5, 5]
    many = _draw_examples(targets, 53, (3, 1), balanced=True)  # all there are, whatever the classes
    assert sorted(many) == list(range(53))
    drawn = [_draw_examples(targets, 7, (seed, 0), balanced=False) for seed in range(200)]
    shares = np.mean([np.bincount(targets[one], minlength=3) for one in drawn], axis=0)
    np.testing.assert_allclose(shares / 7, np.bincount(targets) / 53, atol=0.05)
