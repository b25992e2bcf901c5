"""``homespun fit`` on tagged words, on source and target, and on texts without labels, from files to use."""

import json
import random
from pathlib import Path

import pytest
from commands_world import WORDS, World, sentence

import homespun
from homespun.errors import UserError
from homespun.fitting import runs


def tagged(path: Path, rows: int) -> Path:
    """Sentences whose topic words have their topic as tag."""
    draw, kinds = random.Random(0), {word: topic for topic, words in WORDS.items() for word in words}
    with path.open("w", encoding="utf-8") as stream:
        for _ in range(rows):
            words = sentence(draw.choice(list(WORDS)), draw).lower().replace(".", " .").split()
            for word in words:
                print(word, f"B-{kinds[word]}" if word in kinds else "O", file=stream)
            print(file=stream)
    return path


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_MIN_SECONDS", 1.0)


@pytest.mark.slow
def test_tags_from_a_checkpoint_that_resumes(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tagged(tmp_path / "t.conll", 300)
    arguments = ("fit", path, "--from", world.base, "--time", "1m", "--out", tmp_path / "r")

    def stop(*arguments: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(runs, "write_page", stop)
        world.run(*arguments)
    with monkeypatch.context() as patch:
        patch.setattr(runs, "finetune", stop)  # the fine-tuned candidate is not trained again
        result = world.run(*arguments, "--resume")
    assert (result["task"], result["metric"], result["selected"]) == ("token-classification", "f1", "linear")
    assert [one["name"] for one in result["candidates"]] == ["frequent-tag", "linear", "finetuned-1"]
    assert result["examples"] == {"train": 216, "validation": 24, "test": 60}
    found = world.run("predict", tmp_path / "r", "The goal of the bank")
    assert [len(found["words"]), len(found["tags"])] == [5, 5]
    assert (tmp_path / "r" / "report" / "index.html").is_file()


def test_tags_in_less_time_than_a_network_needs(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_MIN_SECONDS", 60.0)
    path, out = tagged(tmp_path / "t.conll", 150), tmp_path / "r"
    result = world.run("fit", path, "--time", "20s", "--out", out)
    assert (result["selected"], result["metric"]) == ("linear", "f1")
    assert "a network needs" in result["skipped"][0]
    linear = result["candidates"][1]
    assert [one["name"] for one in result["candidates"]] == ["frequent-tag", "linear"]
    assert linear["test"]["f1"] == result["test"]["f1"] > 0.9
    assert linear["parameters"] > 0
    found = world.run("predict", out, "The goal of the bank")
    assert [len(found["words"]), len(found["tags"])] == [5, 5]
    assert found["entities"][0]["text"] == "goal"
    summary = world.run("predict", out, "--input", path, "--out", tmp_path / "p.jsonl")
    assert (summary["rows"], summary["model"]) == (150, "linear")
    assert world.run("evaluate", out, "--data", path)["f1"] > 0.9
    assert (out / "report" / "index.html").is_file()
    with pytest.raises(UserError, match="linear tagger, not a network"):
        world.run("export", out, "--to", "onnx", "--out", tmp_path / "onnx")
    with pytest.raises(UserError, match="linear tagger, not a network"):
        homespun.open(out)


@pytest.mark.slow
def test_a_language_model_of_texts_continues_a_checkpoint(world: World, tmp_path: Path) -> None:
    draw = random.Random(0)
    (tmp_path / "texts").mkdir()
    for number in range(40):
        texts = [sentence(draw.choice(list(WORDS)), draw) for _ in range(12)]
        (tmp_path / "texts" / f"{number}.txt").write_text(" ".join(texts), encoding="utf-8")
    with pytest.raises(UserError, match=r"--out .* in .*texts, whose files are read"):
        world.run("fit", tmp_path / "texts", "--out", tmp_path / "texts" / "r")
    result = world.run("fit", tmp_path / "texts", "--from", world.base, "--time", "20s", "--out", tmp_path / "r")
    assert (result["task"], result["metric"], result["masked"]) == ("language-model", "loss", True)
    before = json.loads((tmp_path / "r" / "pretrained" / "run" / "result.json").read_text())["adaptation"]["loss"]
    assert result["test"]["loss"] < before
    assert [one["name"] for one in result["candidates"]] == ["unigram", "model"]
    assert homespun.open(tmp_path / "r").embed(["the goal of the match"]).shape[0] == 1


@pytest.mark.slow
def test_text_to_text_from_own_pretraining(world: World, tmp_path: Path) -> None:
    draw = random.Random(0)
    path = tmp_path / "t.jsonl"
    with path.open("w", encoding="utf-8") as stream:
        for _ in range(600):
            topic = draw.choice(list(WORDS))
            stream.write(json.dumps({"document": sentence(topic, draw), "summary": topic}) + "\n")
    result = world.run("fit", path, "--time", "30s", "--out", tmp_path / "r")
    assert (result["task"], result["metric"], result["selected"]) == ("text-to-text", "rougeL", "own")
    assert result["examples"] == {"train": 432, "validation": 48, "test": 120}
    assert isinstance(world.run("predict", tmp_path / "r", "The goal of the match")["text"], str)
