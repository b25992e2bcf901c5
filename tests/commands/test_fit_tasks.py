"""``homespun fit`` on pairs, numbers and several labels, from files to predictions."""

import json
import random
import shlex
from pathlib import Path

import pytest
from commands_world import WORDS, World, assert_refused, read_lines, sentence, write_csv, write_lines

import homespun
from homespun.errors import UserError
from homespun.fitting.verdict import commands


def pairs(path: Path) -> Path:
    """Pairs of sentences with the number of topics that they share, as similarity."""
    draw, rows = random.Random(0), []
    for _ in range(150):
        one, other = draw.choice(list(WORDS)), draw.choice(list(WORDS))
        first = sentence(one, draw)
        second = " ".join(reversed(first.split())) if one == other else sentence(other, draw)
        rows.append([first, second, 4.5 if one == other else 0.5])
    return write_csv(path, ["sentence1", "sentence2", "similarity"], rows)


def test_numbers_of_pairs(world: World, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = world.run("fit", pairs(tmp_path / "pairs.csv"), "--time", "20s", "--out", out)
    assert result["task"] == "regression"
    assert result["metric"] == "spearman"
    assert result["test"]["spearman"] > 0.6
    summary = world.run("predict", out, "--input", tmp_path / "pairs.csv", "--out", tmp_path / "p.jsonl")
    numbers = [line["number"] for line in read_lines(tmp_path / "p.jsonl")]
    assert summary["rows"] == len(numbers) == 150
    assert all(0.5 <= number <= 4.5 for number in numbers)
    assert (out / "report" / "index.html").is_file()
    errors = [abs(one["truth"] - one["predicted"]) for one in result["errors"]]
    assert len(errors) == 10
    assert errors == sorted(errors, reverse=True)
    (suggested, _) = commands(result, out)
    texts = shlex.split(suggested)[3:]
    alone = world.run("predict", out, *texts)
    assert alone["number"] == homespun.open(out).predict([tuple(texts)])[0]
    with pytest.raises(UserError, match="reads pairs of texts"):
        homespun.open(out).predict(texts)
    with pytest.raises(UserError, match="two texts"):
        world.run("predict", out, *texts, "one more")


@pytest.mark.parametrize("held_out", [False, True])
def test_predictions_have_the_rows_of_the_file(held_out: bool, tmp_path: Path) -> None:
    draw, topics = random.Random(0), list(WORDS)[:2]
    rows = [[sentence(topics[n % 2], draw) if n % 7 else "", topics[n % 2] if n % 5 else ""] for n in range(150)]
    file, out = write_csv(tmp_path / "t.csv", ["text", "label"], rows), tmp_path / "run"
    result = homespun.fit(file, out, test=() if held_out else file, seconds=20)
    lines = read_lines(out / "predictions" / "linear.jsonl")
    assert len(lines) == result["test"]["rows"]
    assert {line["row"] % 5 for line in lines} == {1, 2, 3, 4}
    wrong = {line["row"]: line["predicted"] for line in lines if line["predicted"] != line["truth"]}
    assert all(line["truth"] == rows[line["row"]][1] for line in lines)
    assert all(wrong[one["row"]] == one["predicted"] for one in result["errors"])


@pytest.mark.parametrize("one_hot", [False, True])
def test_several_labels(one_hot: bool, world: World, tmp_path: Path) -> None:
    draw, lines, rows = random.Random(1), [], []
    for _ in range(200):
        topics = [topic for topic in WORDS if draw.random() < 0.5]
        text = " ".join(sentence(topic, draw) for topic in topics) or "the a of in"
        lines.append({"text": text, "topics": topics})
        rows.append({"text": text} | {topic: int(topic in topics) for topic in WORDS})
    path = write_lines(tmp_path / "t.jsonl", rows if one_hot else lines)
    fields = () if one_hot else ("--label-field", "topics")
    result = world.run("fit", path, *fields, "--time", "20s", "--out", tmp_path / "run")
    assert result["task"] == "multi-label"
    assert result["test"]["micro_f1"] > 0.8
    assert result["learning_curve"][-1]["micro_f1"] > 0.8
    found = world.run("predict", tmp_path / "run", "The soup and the bread and the salt of the dinner with butter")
    assert "food" in found["label"]
    metrics = world.run("evaluate", tmp_path / "run", "--data", path)
    assert metrics["micro_f1"] > 0.8


def test_a_single_label_in_several_columns(world: World, tmp_path: Path) -> None:
    draw, rows = random.Random(1), []
    for number in range(200):
        label = sorted(WORDS)[number % len(WORDS)]
        rows.append({"text": sentence(label, draw)} | {topic: int(topic == label) for topic in WORDS})
    path = write_lines(tmp_path / "t.jsonl", rows)
    result = world.run("fit", path, "--time", "20s", "--out", tmp_path / "run")
    assert (result["task"], set(result["labels"])) == ("classification", set(WORDS))
    assert result["test"]["accuracy"] > 0.8
    assert world.run("evaluate", tmp_path / "run", "--data", path)["accuracy"] > 0.8
    assert homespun.open(tmp_path / "run").predict(["soup and bread for dinner"]) == ["food"]
    several = write_lines(tmp_path / "several.jsonl", [*rows, {"text": "Both."} | dict.fromkeys(WORDS, 1)])
    options = ("--time", "20s", "--out", tmp_path / "other")
    assert_refused("--task multi-label", "fit", several, "--task", "classification", *options)
    assert_refused("row 201 .*--task multi-label", "fit", path, "--test", several, *options)


@pytest.mark.slow
def test_numbers_of_pairs_from_a_checkpoint(world: World, tmp_path: Path) -> None:
    words = ("fit", pairs(tmp_path / "pairs.csv"), "--from", world.base, "--time", "2m")
    result = world.run(*words, "--out", tmp_path / "run")
    names = [one["name"] for one in result["candidates"]]
    assert names == ["constant", "linear", "frozen-1", "finetuned-1", "average"]
    assert all(one["test"]["absolute_error"] < 3.0 for one in result["candidates"])


def test_numbers_that_no_word_predicts_leave_a_valid_result(world: World, tmp_path: Path) -> None:
    rows = [[f"same words {'x' * row}", row / 3] for row in range(60)]
    path = write_csv(tmp_path / "t.csv", ["text", "score"], rows)
    world.run("fit", path, "--time", "20s", "--out", tmp_path / "run")
    text = (tmp_path / "run" / "result.json").read_text(encoding="utf-8")

    def fail(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    assert json.loads(text, parse_constant=fail)["learning_curve"]
