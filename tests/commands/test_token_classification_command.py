"""Token classification through the commands: training, predictions, errors."""

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest
from commands_world import WORDS, World, assert_refused, read_lines, write_lines

import homespun
from homespun.errors import UserError
from homespun.hf.open import open_model
from homespun.tasks.config import task_from_metadata
from homespun.tasks.taggers import TaggedData

pytest.importorskip("seqeval")

MARKERS = {"SPO": "very", "MON": "all"}
FIRST, LATER = WORDS["food"][:5], WORDS["food"][5:]


def sentence(draw: random.Random, most: int = 9) -> tuple[list[str], list[str]]:
    """Words of the first half begin a name, those of the second go on with it; what it is called, other words say."""
    label = draw.choice([*MARKERS])
    words: list[str] = []
    tags: list[str] = []
    while len(words) < most:
        words += [draw.choice(["the", "in", "old"]), MARKERS[label], draw.choice(FIRST)]
        tags += ["O", "O", f"B-{label}"]
        if draw.random() < 0.6:
            words.append(draw.choice(LATER))
            tags.append(f"I-{label}")
    return words, tags


def write(path: Path, rows: int, seed: int) -> Path:
    draw = random.Random(seed)
    found = [sentence(draw) for _ in range(rows)]
    if path.suffix == ".jsonl":
        write_lines(path, [{"tokens": words, "ner": tags} for words, tags in found])
    else:
        path.write_text("\n\n".join("\n".join(map(" x ".join, zip(*one, strict=True))) for one in found) + "\n")
    return path


def given(train: Path, test: Path | None, world: World, *others: str) -> tuple[Any, ...]:
    words = ("finetune", "tag", f"data.train={train}", "data.max_length=32", "data.stride=7")
    words += ("train.batch_size=17", "train.optimizer.learning_rate=1e-2")
    return (*words, *((f"data.test={test}",) if test else ()), *others, "--from", world.base)


@pytest.fixture(scope="module")
def tagger(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("tagger")
    train, test = write(folder / "train.txt", 211, seed=1), write(folder / "test.conll", 41, seed=2)
    words = given(train, test, world, "train.budget.epochs=10", "train.best_metric=f1")
    return folder / "run", world.run(*words, "--out", folder / "run"), test


def test_a_tagger_learns(tagger: tuple[Path, dict[str, Any], Path], world: World) -> None:
    run, result, test = tagger
    assert result["measures"] == ["f1", "precision", "recall", "accuracy"]
    assert result["task"] == "token_classification"
    assert result["test"]["rows"] == 41
    assert result["test"]["f1"] > 0.9
    assert result["test"]["f1"] > result["baselines"]["frequent-tag"]["f1"] + 0.2
    assert result["test"]["per_class"].keys() == {"SPO", "MON"}
    assert result["validation_metrics"]["f1"] > 0.8
    lines = read_lines(run / "predictions/model.jsonl")
    assert len(lines) == 41
    right = [a == b for line in lines for a, b in zip(line["truth"], line["predicted"], strict=True)]
    assert sum(right) / len(right) == pytest.approx(result["test"]["accuracy"])
    assert (run / "hf/config.json").is_file()
    page = (run / "report/index.html").read_text()
    assert "token classification" in page
    assert "SPO" in page
    again = world.run("evaluate", run, "--data", test)
    assert (again["f1"], again["accuracy"]) == (result["test"]["f1"], result["test"]["accuracy"])


def test_offsets_are_of_the_text(tagger: tuple[Path, dict[str, Any], Path], world: World, tmp_path: Path) -> None:
    run, _, _ = tagger
    text = "the very  soup sauce, in (very oven) very bread"
    rows = [{"text": text}, {"words": ["all", "salt", "knife", "all", ""]}, {"text": ""}]
    new = write_lines(tmp_path / "new.jsonl", rows)
    output = world.run("predict", run, "--input", new, "--out", tmp_path / "out.jsonl")
    assert output["rows"] == 3
    first, second, third = read_lines(tmp_path / "out.jsonl")
    words = first["predicted_words"]  # `words` is a column of the second
    assert [text[start:end] for start, end in first["offsets"]] == words
    assert words[:5] == ["the", "very", "soup", "sauce", ","]
    assert {("SPO", "soup sauce"), ("SPO", "oven"), ("SPO", "bread")} <= {
        (one["label"], one["text"]) for one in first["entities"]
    }
    assert all(text[one["start"] : one["end"]] == one["text"] for one in first["entities"])
    assert [(one["text"], one["start"], one["end"]) for one in second["entities"]][:1] == [("salt knife", 4, 14)]
    assert len(second["tags"]) == 5
    assert third["tags"] == third["entities"] == []
    assert output["labels"]["B-SPO"] == sum(tags.count("B-SPO") for tags in (first["tags"], second["tags"]))
    world.run("predict", run, "--input", new, "--out", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as stream:
        cells = next(csv.DictReader(stream))
    assert json.loads(cells["entities"]) == first["entities"]
    assert cells["tags"] == "|".join(first["tags"])


def test_a_sentence_longer_than_the_model_is_read_in_windows(
    tagger: tuple[Path, dict[str, Any], Path], world: World, tmp_path: Path
) -> None:
    run, _, _ = tagger
    words, tags = sentence(random.Random(7), most=150)
    long = write_lines(tmp_path / "long.jsonl", [{"words": words, "tags": tags}])
    found = world.run("evaluate", run, "--data", long)
    assert found["windowed"] == 1
    assert found["f1"] > 0.85


def test_folds_and_seeds_of_a_frozen_encoder(world: World, tmp_path: Path) -> None:
    train, columns = write(tmp_path / "train.jsonl", 43, seed=3), ("data.words=tokens", "data.tags=ner")
    settings = ("objective.frozen=true", "objective.class_weights=balanced", "folds=2", "seeds=2")
    words = given(train, None, world, *columns, "train.budget.steps=4", *settings)
    result = world.run(*words, "--out", tmp_path / "run")
    assert 0 <= result["test"]["f1"] <= 1
    assert len(result["seeds"]) == 4
    before, after = (homespun.load(source).backbone.state_dict() for source in (world.base, tmp_path / "run"))
    assert all(after[name].equal(tensor) for name, tensor in before.items())


def test_tags_that_mark_no_spans(world: World, tmp_path: Path) -> None:
    rows = [{"words": "the old match", "tags": ["DET", "ADJ", "NOUN"]}, {"words": "in goal", "tags": "ADP NOUN"}] * 20
    words = given(write_lines(tmp_path / "pos.jsonl", rows), None, world, "train.budget.epochs=12")
    result = world.run(*words, "--out", tmp_path / "run")
    assert result["measures"] == ["accuracy", "macro_f1"]
    assert result["test"]["accuracy"] == result["test"]["macro_f1"] == 1.0
    assert result["labels"] == ["ADJ", "ADP", "DET", "NOUN"]
    page = (tmp_path / "run" / "report" / "report.md").read_text()
    assert "token classification" in page
    assert "It equals" in page
    assert "below" not in page


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"words": ["a", "b"], "tags": ["O"]}, "row 2 of .*: 2 .*'words'.* 1 .*'tags'"),
        ({"words": ["a"]}, "row 2 of .* no column 'tags'.*: words"),
        ({"words": 3, "tags": ["O"]}, "column 'words' .*int"),
        ({"words": ["b"], "tags": ["O"]}, "one class, 'O'"),
    ],
)
def test_what_cannot_be_read(row: dict[str, Any], message: str, world: World, tmp_path: Path) -> None:
    train = write_lines(tmp_path / "bad.jsonl", [{"words": ["the"], "tags": ["O"]}, row])
    assert_refused(message, *given(train, None, world), "--out", tmp_path / "run")


def test_what_does_not_fit(tagger: tuple[Path, dict[str, Any], Path], world: World, tmp_path: Path) -> None:
    _, _, test = tagger
    for message, *settings in (
        (r"data\.max_length=999 .*max_position_embeddings", "data.max_length=999"),
        (r"data\.stride=31", "data.stride=31"),
        ("objective.kind=classification.*data.kind=token_labels", "objective={kind: classification}"),
    ):
        assert_refused(message, *given(test, None, world, *settings), "--out", tmp_path / "run")
    with pytest.raises(UserError, match="no token classifier"):
        task_from_metadata(TaggedData(), open_model(str(world.classifier)), source="that run")
