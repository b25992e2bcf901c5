"""First batch of a recipe, decoded."""

from pathlib import Path
from typing import Any

import pytest
from commands_world import World, assert_refused, write_lines
from typer.testing import CliRunner

import homespun
from homespun.cli import app
from homespun.data.corpus import Corpus
from homespun.errors import UserError

ROWS = 3


def shown(world: World, recipe: str, *overrides: str) -> dict[str, Any]:
    given = [f"data.corpus={world.corpus}", "data.max_length=32", "train.batch_size=7", *overrides]
    return homespun.show_batch(recipe, given, rows=ROWS)


def test_mlm_labels_are_the_original_tokens(world: World) -> None:
    found = shown(world, "roberta-mini", "objective.probability=0.3")
    assert found["batch"]["rows"] == 7
    assert len(found["rows"]) == ROWS
    unmasked = 0
    for row in found["rows"]:
        assert len(row["tokens"]) + row["padding"] == found["batch"]["length"]
        assert 0 < row["num_labels"] < len(row["tokens"])
        for label in row["labels"]:
            assert row["tokens"][label["position"]] == label["input"]
            assert label["target"] not in ("[MASK]", "[PAD]")
            unmasked += label["input"] == "[MASK]"
    assert unmasked > 0
    assert shown(world, "roberta-mini", "objective.probability=0.3") == found
    # the same row without masks has the targets at the labelled positions
    unchanged = ("objective.mask_share=0", "objective.random_share=0")
    clean = shown(world, "roberta-mini", "objective.probability=0.3", *unchanged)
    for row, original in zip(found["rows"], clean["rows"], strict=True):
        assert all(original["tokens"][label["position"]] == label["target"] for label in row["labels"])


def test_clm_labels_are_the_next_tokens(world: World) -> None:
    for row in shown(world, "causal-mini")["rows"]:
        assert len(row["labels"]) == min(20, row["num_labels"])
        for label in row["labels"]:
            assert label["target"] == row["tokens"][label["position"] + 1]


def test_span_corruption_has_the_spans_in_the_decoder(world: World, tmp_path: Path) -> None:
    homespun.extend_tokenizer(world.corpus / "tokenizer", None, tmp_path / "tokenizer", sentinels=20)
    reading = homespun.reading([str(world.train)], text_fields=["sentence"])
    homespun.make_corpus(reading, tmp_path / "tokenizer", tmp_path / "corpus")
    for row in shown(world, "t5-mini", f"data.corpus={tmp_path / 'corpus'}")["rows"]:
        sentinels = [token for token in row["tokens"] if token.startswith("<extra_id_")]
        assert sentinels
        assert [token for token in row["decoder_tokens"] if token in sentinels] == sentinels
        assert [label["target"] for label in row["labels"]][:-1] == row["decoder_tokens"][1:][: len(row["labels"]) - 1]


def test_class_names_of_a_classification(world: World) -> None:
    overrides = [f"data.train={world.train}", "data.text=sentence", "data.max_length=24"]
    found = homespun.show_batch("classify", overrides, start_from=str(world.base), rows=ROWS)
    assert {row["label"] for row in found["rows"]} <= {"sport", "money", "food"}
    with pytest.raises(UserError, match="--from"):
        homespun.show_batch("classify", overrides)


def test_tags_of_a_token_classification(world: World, tmp_path: Path) -> None:
    sentences = [{"words": ["Ada", "lives", "in", "Rome"], "tags": ["B-PER", "O", "O", "B-LOC"]}] * 30
    overrides = [
        f"data.train={write_lines(tmp_path / 'train.jsonl', sentences)}",
        "data.max_length=24",
        "data.stride=4",
    ]
    found = homespun.show_batch("tag", overrides, start_from=str(world.base), rows=1)
    assert [label["target"] for label in found["rows"][0]["labels"]] == ["B-PER", "O", "O", "B-LOC"]


def test_command_prints_rows(world: World) -> None:
    words = ["show", "batch", "causal-mini", f"data.corpus={world.corpus}", "data.max_length=32", "--rows", "2"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    tokenizer = Corpus.open(world.corpus).tokenizer
    assert result.output.count(f"tokens: {tokenizer.tokens[tokenizer.cls_id]}") == 2
    assert " -> " in result.output


def test_a_missing_corpus_is_one_line() -> None:
    assert_refused(r"data\.corpus", "show", "batch", "roberta-mini")
