"""``homespun fit`` on tagged words, on source and target, and on texts without labels, from files to use."""

import json
import random
from pathlib import Path

import pytest
from commands_world import WORDS, World, assert_refused, sentence, write_lines
from huggingface_hub import ModelCard

import homespun
from homespun.fitting import runs
from homespun.fitting.card import write_card
from homespun.fitting.linear_tagger import TaggerFit
from homespun.metrics.classification import Metrics


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


@pytest.mark.slow
def test_a_network_of_tags_that_is_selected_is_kept(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def worse(fit: TaggerFit, part: str) -> Metrics:
        return measured(fit, part) | {"f1": 0.0}

    measured = TaggerFit.measure
    monkeypatch.setattr(TaggerFit, "measure", worse)
    path, out = tagged(tmp_path / "t.conll", 300), tmp_path / "r"
    result = world.run("fit", path, "--from", world.base, "--time", "20s", "--out", out)
    assert (result["selected"], result["labels"]) == ("finetuned-1", ["B-food", "B-money", "B-sport", "O"])
    kept, trained = out / "model", out / "candidates" / "finetuned-1" / "run" / "model"
    assert sorted(file.name for file in kept.iterdir()) == sorted(file.name for file in trained.iterdir())
    assert all((kept / file.name).read_bytes() == file.read_bytes() for file in trained.iterdir())
    assert not (kept / "crf.json").exists()
    found = world.run("predict", out, "The goal of the bank")
    assert [len(found["words"]), len(found["tags"])] == [5, 5]
    (opened,) = homespun.open(out).predict([["The", "goal", "of", "the", "bank"]])
    assert isinstance(opened, dict)
    assert opened["tags"] == found["tags"]
    test = out / "data" / "test.jsonl"
    assert world.run("evaluate", out, "--data", test)["f1"] == pytest.approx(result["test"]["f1"])


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
    card = ModelCard.load(out / "README.md")
    assert (card.data.library_name, card.data.pipeline_tag) == ("homespun", "token-classification")
    values = {one.metric_type: one.metric_value for one in card.data.eval_results}
    assert values == {name: result["test"][name] for name in ("f1", "precision", "recall", "accuracy")}
    assert all(name in card.text for name in ("B-money", "B-food", "B-sport", "frequent tag", "homespun.open"))
    assert str(tmp_path) not in card.content
    assert_refused("linear tagger, not a network", "export", out, "--to", "onnx", "--out", tmp_path / "onnx")
    (tagged_words,) = homespun.open(out).predict(["The goal of the bank"])
    assert tagged_words == found


@pytest.mark.slow
def test_a_language_model_of_texts_continues_a_checkpoint(world: World, tmp_path: Path) -> None:
    draw = random.Random(0)
    (tmp_path / "texts").mkdir()
    for number in range(40):
        texts = [sentence(draw.choice(list(WORDS)), draw) for _ in range(12)]
        (tmp_path / "texts" / f"{number}.txt").write_text(" ".join(texts), encoding="utf-8")
    assert_refused("--out .* in .*texts", "fit", tmp_path / "texts", "--out", tmp_path / "texts" / "r")
    result = world.run("fit", tmp_path / "texts", "--from", world.base, "--time", "20s", "--out", tmp_path / "r")
    assert (result["task"], result["metric"], result["masked"]) == ("language-model", "loss", True)
    before = json.loads((tmp_path / "r" / "pretrained" / "run" / "result.json").read_text())["adaptation"]["loss"]
    assert result["test"]["loss"] < before
    assert [one["name"] for one in result["candidates"]] == ["unigram", "model"]
    assert homespun.open(tmp_path / "r").embed(["the goal of the match"]).shape[0] == 1
    card = ModelCard.load(tmp_path / "r" / "hf" / "README.md")
    assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", "fill-mask")
    assert {one.metric_type: one.metric_value for one in card.data.eval_results} == {
        name: result["test"][name] for name in ("loss", "perplexity")
    }
    assert str(tmp_path) not in card.content


@pytest.mark.slow
def test_text_to_text_from_own_pretraining(world: World, tmp_path: Path) -> None:
    draw = random.Random(0)
    rows = []
    for _ in range(600):
        topic = draw.choice(list(WORDS))
        rows.append({"document": sentence(topic, draw), "summary": topic})
    path = write_lines(tmp_path / "t.jsonl", rows)
    result = world.run("fit", path, "--time", "30s", "--out", tmp_path / "r")
    assert (result["task"], result["metric"]) == ("text-to-text", "rougeL")
    assert [one["name"] for one in result["candidates"][-2:]] == ["extractive", "own"]
    assert result["candidates"][-1]["test"]["rows"] == 120
    assert result["examples"] == {"train": 432, "validation": 48, "test": 120}
    assert isinstance(world.run("predict", tmp_path / "r", "The goal of the match")["text"], str)
    card = ModelCard.load(next((tmp_path / "r").rglob("README.md")))
    assert card.data.pipeline_tag == "text2text-generation"
    assert card.data.eval_results[-1].metric_value == result["test"]["rougeL"]


def test_text_to_text_in_less_time_than_a_network_needs(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The summary of a text is its sentence with a cue."""
    monkeypatch.setattr(runs, "_MIN_SECONDS", 60.0)
    draw, rows = random.Random(0), []
    for _ in range(120):
        topics = draw.choices(list(WORDS), k=4)
        texts = [sentence(topic, draw) for topic in topics]
        index = draw.randrange(4)
        texts[index] = f"We conclude that {texts[index].lower()}"
        rows.append({"document": " ".join(texts), "summary": texts[index]})
    path, out = write_lines(tmp_path / "t.jsonl", rows), tmp_path / "r"
    result = world.run("fit", path, "--time", "20s", "--out", out)
    assert (result["task"], result["selected"]) == ("text-to-text", "extractive")
    assert result["test"]["rougeL"] > 0.95
    assert {"lead-1", "central-1", "extractive"} < {one["name"] for one in result["candidates"]}
    assert ["a network needs" in reason for reason in result["skipped"]] == [True]
    assert (out / "report" / "index.html").is_file()
    source = rows[0]["document"]
    assert world.run("predict", out, source)["text"] == rows[0]["summary"]
    assert homespun.open(out).predict([source, ""])[0]["text"] == rows[0]["summary"]
    assert world.run("evaluate", out, "--data", path)["rougeL"] > 0.95
    renamed = write_lines(tmp_path / "u.jsonl", [{"body": source}])
    written = world.run("predict", out, "--input", renamed, "--text-field", "body", "--out", tmp_path / "p.jsonl")
    assert (written["rows"], written["model"]) == (1, "extractive")
    assert_refused("does not generate text", "predict", out, source, "--generation", "num_beams=4")
    assert_refused("an extractive summarizer", "export", out, "--to", "onnx", "--out", tmp_path / "x")
    summarize = ("summarize", out, "--input", renamed, "--text-field", "body")
    assert world.run(*summarize)["texts"] == [rows[0]["summary"]]
    world.run(*summarize, "--out", tmp_path / "s.jsonl")
    assert json.loads((tmp_path / "s.jsonl").read_text())["text"] == rows[0]["summary"]


@pytest.mark.parametrize(
    ("task", "architecture", "opens", "use"),
    [
        ("token-classification", "BertForTokenClassification", True, 'pipeline("token-classification"'),
        ("token-classification", "BertModel", False, "homespun.open"),
        ("text-to-text", "T5ForConditionalGeneration", True, "AutoModelForSeq2SeqLM"),
        ("text-to-text", "LlamaForCausalLM", True, "homespun predict"),
        ("language-model", "GPT2LMHeadModel", True, 'pipeline("text-generation"'),
        ("language-model", "BertForMaskedLM", True, "embed"),
    ],
)
def test_cards_of_networks(tmp_path: Path, task: str, architecture: str, opens: bool, use: str) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    row = {"name": "finetuned-1", "title": "checkpoint, fine-tuned", "parameters": 5, "seconds": 1.0}
    numbers = {"rows": 8, "loss": 2.0, "perplexity": 7.4, "f1": 0.5, "accuracy": 0.5, "rougeL": 0.5}
    row |= {"processor_seconds": 1.0, "validation": numbers, "test": numbers}
    result = {
        **{"task": task, "metric": {"text-to-text": "rougeL", "language-model": "loss"}.get(task, "f1")},
        **{"selected": row["name"], "title": row["title"], "test": numbers, "candidates": [row]},
        **{"labels": ["B-x", "O"] if task == "token-classification" else None, "interval": None, "next_best": None},
        **{"examples": {"train": 9, "validation": 8, "test": 8, "documents": 9, "tokens": 99}, "test_from": "files"},
        **{"warnings": ["odd"], "skipped": [], "never_predicted": [], "cost": {"parameters": 5}},
        **{"settings": {"start_from": ["owner/checkpoint"]}, "masked": architecture == "BertForMaskedLM"},
    }
    path = write_card(result, tmp_path)
    assert path == (tmp_path / "hf" if opens else tmp_path) / "README.md"
    card = ModelCard.load(path)
    assert card.data.library_name == ("transformers" if opens else "homespun")
    assert card.data.base_model == ["owner/checkpoint"]
    assert use in card.text
    assert "odd" in card.text
