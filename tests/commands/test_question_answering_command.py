"""Extractive question answering through the commands: training, predictions, errors."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from commands_world import COMMON, WORDS, World, assert_refused, read_lines, write_lines

import homespun
from homespun.errors import UserError
from homespun.hf.open import open_model
from homespun.tasks.config import task_from_metadata
from homespun.tasks.question_answering import QuestionData

FILL = COMMON.split()
NAMES = WORDS["food"]


def paragraph(draw: random.Random, most: int) -> dict[str, Any]:
    """A word of food stands somewhere among common words; it is what is asked for."""
    words = [draw.choice(FILL) for _ in range(most)]
    position = draw.randrange(most)
    words[position] = draw.choice(NAMES)
    start = sum(len(word) + 1 for word in words[:position])
    answers = [{"text": words[position], "answer_start": start}]
    asked = {"id": str(draw.random()), "question": "said today", "answers": answers}
    return {"context": " ".join(words), "qas": [asked]}


def write(path: Path, articles: int, seed: int, *, most: int = 11, none: float = 0.0) -> Path:
    draw = random.Random(seed)
    made = []
    for number in range(articles):
        paragraphs = [paragraph(draw, most) for _ in range(3)]
        for one in paragraphs:
            if draw.random() < none:
                answer = one["qas"][0]["answers"][0]["text"]
                one["context"] = one["context"].replace(answer, "today")
                one["qas"][0] |= {"answers": [], "is_impossible": True}
        made.append({"title": f"article {number}", "paragraphs": paragraphs})
    path.write_text(json.dumps({"version": "2", "data": made}))
    return path


def given(train: Path, test: Path | None, world: World, *others: str) -> tuple[Any, ...]:
    words = ("finetune", "question-answering", f"data.train={train}", "data.max_length=32", "data.stride=5")
    words += ("data.max_question_length=7", "train.batch_size=17", "train.optimizer.learning_rate=1e-2")
    return (*words, *((f"data.test={test}",) if test else ()), *others, "--from", world.base)


@pytest.fixture(scope="module")
def finder(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("finder")
    train, test = write(folder / "train.json", 71, seed=1), write(folder / "test.json", 13, seed=2)
    words = given(train, test, world, "train.budget.epochs=12", "train.best_metric=f1")
    return folder / "run", world.run(*words, "--out", folder / "run"), test


def test_answers_are_found(finder: tuple[Path, dict[str, Any], Path], world: World) -> None:
    run, result, test = finder
    assert result["measures"] == ["exact_match", "f1"]
    assert result["test"]["rows"] == 39
    assert result["test"]["exact_match"] > 0.8
    assert {"tfidf-sentence", "random-span"} == result["baselines"].keys()
    assert result["test"]["f1"] > max(line["f1"] for line in result["baselines"].values()) + 0.3
    assert result["rows"]["validation"] == 24  # eight articles of three
    assert result["no_answer"] is False
    lines = read_lines(run / "predictions/model.jsonl")
    assert sum(line["score"] for line in lines) / 39 == pytest.approx(result["test"]["f1"])
    assert sum(line["exact_match"] for line in lines) / 39 == pytest.approx(result["test"]["exact_match"])
    assert "extractive question answering" in (run / "report/index.html").read_text()
    assert (run / "hf/config.json").is_file()
    again = world.run("evaluate", run, "--data", test)
    assert (again["exact_match"], again["f1"]) == (result["test"]["exact_match"], result["test"]["f1"])


def test_offsets_are_of_the_text(finder: tuple[Path, dict[str, Any], Path], world: World, tmp_path: Path) -> None:
    run, _, test = finder
    text = "in  the very old, said Bread. of and"
    rows = [{"question": "said today", "context": text}, {"question": "said today", "context": " "}]
    new = write_lines(tmp_path / "new.jsonl", rows)
    world.run("predict", run, "--input", new, "--out", tmp_path / "out.jsonl")
    first, second = read_lines(tmp_path / "out.jsonl")
    assert text[first["start"] : first["end"]] == first["answer"] != ""
    assert all(text[one["start"] : one["end"]] == one["answer"] for one in first["n_best"])
    assert len(first["n_best"]) == 20
    assert sum(one["probability"] for one in first["n_best"]) == pytest.approx(1)
    assert (second["answer"], second["start"]) == ("", None)
    world.run("predict", run, "--input", test, "--out", tmp_path / "articles.jsonl")
    article = read_lines(tmp_path / "articles.jsonl")[0]
    assert len(article["predictions"]) == 3
    assert article["predictions"][0]["id"] == article["paragraphs"][0]["qas"][0]["id"]


def test_an_answer_beyond_the_first_window_is_found(
    finder: tuple[Path, dict[str, Any], Path], world: World, tmp_path: Path
) -> None:
    run, _, _ = finder
    long = write(tmp_path / "long.json", 9, seed=5, most=67)
    found = world.run("evaluate", run, "--data", long)
    assert found["windowed"] == found["rows"] == 27
    assert found["exact_match"] > 0.6


@pytest.mark.slow
def test_texts_may_hold_no_answer(world: World, tmp_path: Path) -> None:
    train, test = write(tmp_path / "a.json", 67, seed=3, none=0.5), write(tmp_path / "b.json", 13, seed=4, none=0.5)
    run = tmp_path / "run"
    result = world.run(*given(train, test, world, "train.budget.epochs=12", "baselines=false"), "--out", run)
    assert result["no_answer"] is True
    assert result["test"]["no_answer_f1"] > 0.8
    assert result["test"]["has_answer_f1"] > 0.6
    lines = read_lines(run / "predictions/model.jsonl")
    assert {line["start"] is None for line in lines} == {True, False}


def test_folds_and_seeds_of_a_frozen_encoder(world: World, tmp_path: Path) -> None:
    train, settings = write(tmp_path / "train.json", 11, seed=3), ("objective.frozen=true", "folds=2", "seeds=2")
    words = given(train, None, world, "train.budget.steps=4", "data.validation=0.3", *settings)
    result = world.run(*words, "--out", tmp_path / "run")
    assert 0 <= result["test"]["f1"] <= 1
    assert len(result["seeds"]) == 4
    before, after = (homespun.load(source).backbone.state_dict() for source in (world.base, tmp_path / "run"))
    assert all(after[name].equal(tensor) for name, tensor in before.items())


def test_wrong_answers_are_counted(world: World, tmp_path: Path) -> None:
    rows = [{"question": "q", "context": f"the old soup {n} of today", "answers": "soup"} for n in range(23)]
    rows[3]["answers"] = [{"text": "soup", "answer_start": 1}]
    rows[5]["answers"] = [{"text": "salt", "answer_start": 8}]
    rows[7]["context"] = ""
    train = write_lines(tmp_path / "rows.jsonl", rows)
    words = given(train, None, world, "train.budget.steps=2", "data.no_answer=false")
    result = world.run(*words, "--out", tmp_path / "run")
    assert result["answers_realigned"] == 1
    assert result["answers_dropped"] == 2
    assert result["empty_contexts"] == 1
    assert "nearest" in (tmp_path / "run/report/index.html").read_text()


def test_what_does_not_fit(world: World, tmp_path: Path) -> None:
    train = write(tmp_path / "train.json", 11, seed=3)
    rows = [{"question": "q", "context": f"the {n} soup", "answers": "salt"} for n in range(11)]
    wrong = write_lines(tmp_path / "rows.jsonl", rows)
    for message, file, *settings in (
        (r"data\.max_length=999 .*max_position_embeddings", train, "data.max_length=999"),
        (r"data\.stride=31", train, "data.stride=31"),
        ("contains its answer", wrong),
    ):
        assert_refused(message, *given(file, None, world, *settings), "--out", tmp_path / "run")
    with pytest.raises(UserError, match="fine-tune it first"):
        task_from_metadata(QuestionData(), open_model(str(world.classifier)), source="that run")
