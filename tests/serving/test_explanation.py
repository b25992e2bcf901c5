"""Explanations: each number is what a computation by hand gives."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from served_models import LABELS, TEXTS

from homespun.commands.attention_map import attention_weights, weighted_attentions
from homespun.data.labels import Labels
from homespun.linear import LinearModel
from homespun.metrics.calibration import DecisionRule
from homespun.models.config import ModelConfig
from homespun.ngrams import Ngrams, Tfidf
from homespun.serving.explanation import MAX_CHARACTERS, MAX_TOKENS
from homespun.serving.models import Models
from homespun.serving.neighbours import NeighbourIndex, training_examples
from homespun.serving.occlusion import MAX_PARTS, occlude, split_words
from homespun.tasks.text_models import AverageTextModel, LinearTextModel, open_text_model
from homespun.tasks.texts import LabelledData, LabelledText

Connect = Callable[..., TestClient]
TEXT = "Butter and goals, butter!"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("Don't stop", ["Don't", "stop"]),
        ("e-mail: 12.5 % (U.S.)", ["e-mail", "12.5", "U.S"]),
        ("Größe, naïveté", ["Größe", "naïveté"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("日本語 text", ["日", "本", "語", "text"]),
        ("so 👍🏽 good 10 €", ["so", "👍🏽", "good", "10", "€"]),
        ("- ' -", []),
    ],
)
def test_words_have_their_characters(text: str, words: list[str]) -> None:
    assert [text[start:end] for start, end in split_words(text)] == words


def linear(weights: list[list[float]], labels: Labels | None, **others: Any) -> LinearTextModel:
    """A model of three words with an inverse document frequency of 1."""
    words = Tfidf(Ngrams(longest=1), ("bad", "good", "fine"), np.ones(3))
    array = np.array(weights, dtype=np.float32)
    model = LinearModel((words.ngrams,), (words,), array, np.zeros(len(weights), np.float32), labels)
    return LinearTextModel(model, LabelledData(), **others)


def test_occlusion_of_a_linear_model_is_what_its_weights_give() -> None:
    model = linear([[2, -1, 0.5], [0, 0, 0]], Labels(("no", "yes")), decision=DecisionRule(temperature=2.0))
    found = occlude(model, LabelledText("a bad, good thing", ""))
    # logits of "no" minus "yes": (2 - 1) / sqrt(2) of both words, 2 of "bad" alone, -1 of "good" alone
    both, bad, good = 1 / math.sqrt(2) / 2, 2 / 2, -1 / 2
    assert found.label == "no"
    assert found.probability == pytest.approx(1 / (1 + math.exp(-both)))
    scores = {word.text: word.score for word in found.words}
    assert scores == pytest.approx({"a": 0, "bad": both - good, "good": both - bad, "thing": 0}, abs=1e-5)
    assert [(word.start, word.end) for word in found.words] == [(0, 1), (2, 5), (7, 11), (12, 17)]


def test_the_most_probable_class_of_several_and_a_number_are_explained() -> None:
    several = linear([[2, -1, 0.5], [0, 0, 1]], Labels(("no", "yes"), multi_label=True))
    found = occlude(several, LabelledText("fine bad", ""))
    assert found.label == "no"
    expected = [2.5 / math.sqrt(2) - 2, 2.5 / math.sqrt(2) - 0.5]
    assert [word.score for word in found.words] == pytest.approx(expected, abs=1e-5)
    number = occlude(linear([[2, -1, 0.5]], None), LabelledText("fine bad", ""))
    assert (number.label, number.probability) == (None, None)
    assert number.number == pytest.approx(2.5 / math.sqrt(2))
    assert [word.score for word in number.words] == pytest.approx(expected, abs=1e-5)


def test_an_average_is_explained_by_its_mean_probabilities() -> None:
    labels = Labels(("no", "yes"))
    members = {"one": linear([[2, 0, 0], [0, 0, 0]], labels), "two": linear([[0, 0, 0], [0, 0, 0]], labels)}
    found = occlude(AverageTextModel(members, (0.5, 0.5)), LabelledText("bad day", ""))
    p = 0.5 / (1 + math.exp(-2)) + 0.25
    assert found.probability == pytest.approx(p)
    assert [word.score for word in found.words] == pytest.approx([math.log(p / (1 - p)), 0], abs=1e-5)


@pytest.mark.parametrize("name", ["classifier", "pairs"])
def test_occlusion_of_a_network_is_the_difference_of_two_predictions(
    opened: Models, client: TestClient, name: str
) -> None:
    pair = name == "pairs"
    sent: str | list[str] = ["A goal.", TEXT] if pair else TEXT
    answer = client.post("/explain", json={"text": sent, "model": name})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    pipeline = opened.get(name).pipeline
    without = " and goals, butter!"
    table = pipeline.predict_proba([("A goal.", TEXT), ("A goal.", without[1:])] if pair else [TEXT, without[1:]])
    best = int(table[0].argmax())
    odds = np.log(table[:, best] / (1 - table[:, best]))
    first = next(word for word in found["words"] if word["text"] == "Butter")
    assert (found["label"], found["method"], found["words_a_part"]) == (LABELS.names[best], "occlusion", 1)
    assert found["probability"] == pytest.approx(table[0, best], abs=1e-5)
    assert first.pop("score") == pytest.approx(odds[0] - odds[1], abs=1e-3)
    assert first == {"text": "Butter", "start": 0, "end": 6, "side": int(pair)}
    assert {word["side"] for word in found["words"]} == ({0, 1} if pair else {0})


def test_a_long_text_has_parts_of_several_words() -> None:
    text = " ".join(["bad", "fine"] * 125)
    found = occlude(linear([[2, -1, 0.5], [0, 0, 0]], Labels(("no", "yes"))), LabelledText(text, ""))
    assert found.words_a_part == 3
    assert len(found.words) == -(-250 // 3) <= MAX_PARTS
    assert found.words[0].text == "bad fine bad"
    assert found.words[-1].end == len(text)


ATTENTIONS: list[dict[str, Any]] = [
    {"kind": "full"},
    {"kind": "disentangled"},
    {"kind": "local", "chunk_length": 4},
    {"kind": "lsh", "chunk_length": 4, "num_hashes": 2},
    {"kind": "sparse", "patterns": [{"kind": "window", "radius": 2}]},
]


def network(attention: dict[str, Any], **settings: Any) -> Any:
    torch.manual_seed(3)
    sizes = {"vocab_size": 29, "hidden_size": 14, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 17, "max_position_embeddings": 23, "initializer_range": 0.5}
    return ModelConfig.model_validate({"backbone": sizes | {"attention": attention} | settings}).build().eval()


@pytest.mark.parametrize("settings", [{}, {"causal": True}, {"num_hidden_groups": 1}], ids=str)
@pytest.mark.parametrize("attention", ATTENTIONS, ids=lambda one: one["kind"])
def test_attention_weights_reproduce_the_output_of_the_kernel(
    attention: dict[str, Any], settings: dict[str, Any]
) -> None:
    model = network(attention, **settings)
    ids = torch.arange(5, 22)[None]
    kept: dict[str, Any] = {}

    def keep(module: Any, given: Any, output: Any) -> None:
        kept.update(value=given[-2], output=output)

    kernel: Any = weighted_attentions(model)[1]
    hook = kernel.kernel.register_forward_hook(keep)
    weights = attention_weights(model, 1, ids, {})
    hook.remove()
    assert weights.shape == (2, 17, 17)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 17))
    torch.testing.assert_close(weights @ kept["value"][0], kept["output"][0], atol=1e-5, rtol=1e-4)
    assert bool((weights.triu(1).abs() < 1e-6).all()) == ("causal" in settings)
    assert not kernel.kernel._forward_hooks


def test_attention_weights_are_the_softmax_of_the_products() -> None:
    model = network({"kind": "full"})
    ids = torch.tensor([[4, 9, 11, 2, 20]])
    kept: list[torch.Tensor] = []
    attention: Any = weighted_attentions(model)[0]
    hook = attention.register_forward_hook(lambda module, given, output: kept.append(given[0]))
    weights = attention_weights(model, 0, ids, {})
    hook.remove()
    query, key = (part(kept[0])[0].view(5, 2, 7).transpose(0, 1) for part in (attention.query, attention.key))
    torch.testing.assert_close(weights, (query @ key.mT / math.sqrt(7)).softmax(-1))


def test_low_rank_attention_and_global_projections_have_no_weights() -> None:
    longformer = ATTENTIONS[-1] | {"global_tokens": {"first": 1, "projections": True}}
    assert weighted_attentions(network({"kind": "linformer", "k": 5})) == []
    assert weighted_attentions(network(longformer)) == []


@pytest.mark.parametrize(
    ("name", "text"), [("classifier", TEXT), ("pairs", [TEXT, TEXT]), ("decoder", TEXT), ("summarizer", TEXT)]
)
def test_attention_of_each_layer(client: TestClient, name: str, text: object) -> None:
    layers = [client.post("/attention", json={"text": text, "model": name, "layer": layer}).json() for layer in (0, 1)]
    for layer, found in enumerate(layers):
        weights = np.array(found["weights"])
        size = len(found["tokens"])
        assert (found["layers"], found["layer"], found["heads"]) == (2, layer, 4)
        assert weights.shape == (4, size, size)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-2)
    assert layers[0]["weights"] != layers[1]["weights"]
    assert any("utter" in token for token in layers[0]["tokens"]) or size > 10


def test_attention_of_a_long_text_is_of_its_first_tokens(client: TestClient) -> None:
    found = client.post("/attention", json={"text": "goal " * 200, "model": "classifier"}).json()
    assert found["truncated"]
    assert len(found["tokens"]) == 32 <= MAX_TOKENS


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/explain", {"text": TEXT, "model": "tagger"}, 409),
        ("/explain", {"text": TEXT, "model": "decoder"}, 409),
        ("/explain", {"text": [TEXT, TEXT], "model": "classifier"}, 422),
        ("/explain", {"text": "x" * (MAX_CHARACTERS + 1)}, 413),
        ("/explain", {"text": TEXT, "method": "gradients"}, 422),
        ("/explain", {"text": TEXT, "model": "absent"}, 404),
        ("/attention", {"text": TEXT, "model": "linear"}, 409),
        ("/attention", {"text": TEXT, "layer": 2}, 422),
        ("/attention", {"text": TEXT, "layer": -1}, 422),
        *(("/attention", {"text": [TEXT] * count, "model": "encoder"}, 422) for count in (0, 1, 3)),
        ("/attention", {"text": [TEXT], "model": "sentences"}, 422),
        ("/neighbours", {"text": TEXT, "model": "classifier"}, 409),
        ("/neighbours", {"text": TEXT, "count": 0}, 422),
    ],
)
def test_errors(client: TestClient, path: str, body: dict[str, object], status: int) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]


@pytest.fixture
def run(folders: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """Make the run of a model, with training data."""

    def make(name: str) -> Path:
        source = folders[name] / "model" if name == "linear" else folders[name]
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "model").symlink_to(source)
        rows = [{"text": text, "label": label} for text, label in zip(TEXTS, [*LABELS.names, "sport"], strict=True)]
        (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        settings = {"train": [str(tmp_path / "train.jsonl")], "columns": None, "encoding": None}
        result = {"kind": "fit", "settings": settings}
        (tmp_path / "run" / "result.json").write_text(json.dumps(result), encoding="utf-8")
        return tmp_path / "run"

    return make


@pytest.mark.parametrize("name", ["classifier", "linear"])
def test_the_nearest_training_example_of_a_text_is_itself(
    run: Callable[[str], Path], connect: Connect, name: str
) -> None:
    models = Models({"mine": run(name)})
    models.load()
    client = connect(models)
    for text, label in zip(TEXTS, [*LABELS.names, "sport"], strict=True):
        found = client.post("/neighbours", json={"text": text, "count": 2}).json()
        first, second = found["neighbours"]
        assert first == {"text": text, "label": label, "similarity": pytest.approx(1)}
        assert second["similarity"] < 1
        assert (found["indexed"], found["examples"]) == (4, 4)


def test_training_data_that_are_gone_are_named(run: Callable[[str], Path], connect: Connect) -> None:
    folder = run("linear")
    (folder.parent / "train.jsonl").unlink()
    models = Models({"mine": folder})
    models.load()
    answer = connect(models).post("/neighbours", json={"text": TEXT})
    assert answer.status_code == 409
    assert "train.jsonl" in answer.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["fit with networks", "run"])
def test_training_data_of_a_fit_and_of_a_run(run: Callable[[str], Path], kind: str) -> None:
    folder = run("linear")
    if kind == "run":
        (folder / "result.json").write_text("{}")
        data = {"train": [str(folder.parent / "train.jsonl")], "columns": None, "encoding": None}
        (folder / "config.yaml").write_text(json.dumps({"data": data}))
    else:
        (folder / "data").mkdir()
        (folder.parent / "train.jsonl").rename(folder / "data" / "train.jsonl")
    index = NeighbourIndex(open_text_model(folder), folder)
    index.start()
    index.wait(10)
    index.close()
    assert index.error is None
    assert index.nearest(LabelledText(TEXTS[1], ""), 1)[0].text == TEXTS[1]


def test_training_examples_of_label_columns_have_the_names_of_their_classes(tmp_path: Path) -> None:
    rows = "food,sport,text\n0,1,Goal!\n1,0,Soup\n,,Unlabelled\n"
    (tmp_path / "train.csv").write_text(rows, encoding="utf-8")
    settings = {"train": [str(tmp_path / "train.csv")]}
    (tmp_path / "result.json").write_text(json.dumps({"settings": settings}), encoding="utf-8")
    data = LabelledData(label=["food", "sport"], multi_label=False)
    found = [(example.text, example.label) for example in training_examples(data, tmp_path)]
    assert found == [("Goal!", "sport"), ("Soup", "food")]


@pytest.mark.parametrize("damage", ["config.yaml", "vectors"])
def test_a_failure_to_embed_training_examples_is_named(
    run: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    folder = run("linear")
    if damage == "config.yaml":
        (folder / "result.json").write_text("{}")
        (folder / "config.yaml").write_text("data: [")
    else:
        monkeypatch.setattr(LinearTextModel, "vectors", lambda *_: 1 / 0)
    index = NeighbourIndex(open_text_model(folder), folder)
    index.start()
    index.wait(10)
    index.close()
    assert index.error is not None
    assert ("config.yaml" in index.error) is (damage == "config.yaml")


def test_the_first_examples_are_searched_while_the_others_are_embedded(run: Callable[[str], Path]) -> None:
    folder = run("linear")
    index = NeighbourIndex(open_text_model(folder), folder)
    index._stop.set()  # after the first part: there is none
    index.start()
    index.close()
    assert index.nearest(LabelledText(TEXT, ""), 3) == []
    assert (index.done, index.rows) == (0, 4)
