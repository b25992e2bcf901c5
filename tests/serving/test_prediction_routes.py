"""Predictions, vectors and models over HTTP, for every kind of model."""

import base64
import concurrent.futures

import numpy as np
import pytest
from fastapi.testclient import TestClient
from served_models import LABELS, TEXTS

from homespun.serving.models import Models

PAIR = [TEXTS[0], TEXTS[1]]


def test_probabilities_are_those_of_the_pipeline_in_any_batch(client: TestClient, opened: Models) -> None:
    expected = opened.get("classifier").pipeline.predict_proba(TEXTS)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda text: client.post("/predict", json={"texts": [text]}), TEXTS * 8))
    rows = [answer.json()["predictions"][0]["probabilities"] for answer in answers]
    found = [[row[name] for name in LABELS.names] for row in rows]
    np.testing.assert_allclose(found, np.tile(expected, (8, 1)), atol=1e-5)
    together = client.post("/predict", json={"texts": TEXTS}).json()
    assert together["model"] == "classifier"
    found = [list(one["probabilities"].values()) for one in together["predictions"]]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "texts", "fields"),
    [
        ("classifier", TEXTS[:1], {"label", "probability", "probabilities", "truncated"}),
        ("linear", TEXTS[:1], {"label", "probability", "probabilities", "truncated"}),
        ("regressor", TEXTS[:1], {"number", "truncated"}),
        ("pairs", [PAIR], {"label", "probability", "probabilities", "truncated"}),
        ("tagger", TEXTS[:1], {"words", "tags", "offsets", "entities", "truncated"}),
        ("linear-tagger", TEXTS[:1], {"words", "tags", "offsets", "entities", "truncated"}),
        ("answers", [PAIR], {"answer", "start", "end", "probability", "n_best", "truncated"}),
        ("summarizer", TEXTS[:1], {"text", "truncated"}),
    ],
)
def test_every_task_is_predicted(client: TestClient, name: str, texts: list[object], fields: set[str]) -> None:
    answer = client.post("/predict", json={"texts": texts, "model": name})
    assert answer.status_code == 200, answer.text
    (prediction,) = answer.json()["predictions"]
    assert prediction.keys() >= fields


@pytest.mark.parametrize("name", ["classifier", "regressor", "pairs"])
def test_outer_white_space_is_not_read_as_in_files(client: TestClient, name: str) -> None:
    pair = [f" {TEXTS[0]}\n", f"\t{TEXTS[1]} "]
    texts = [PAIR, pair] if name == "pairs" else [PAIR[0], pair[0]]
    first, second = (
        client.post("/predict", json={"texts": [text], "model": name}).json()["predictions"] for text in texts
    )
    assert first == second


def test_sentences_of_a_document_are_predicted(client: TestClient) -> None:
    answer = client.post("/predict", json={"texts": [TEXTS], "model": "sentences"})
    assert answer.status_code == 200, answer.text
    lists = [value for value in answer.json()["predictions"][0].values() if isinstance(value, list)]
    assert len(lists[0]) == len(TEXTS)


def test_a_long_text_is_truncated_and_reported(client: TestClient) -> None:
    answers = client.post("/predict", json={"texts": ["goal", "goal " * 500]}).json()
    assert [one["truncated"] for one in answers["predictions"]] == [False, True]


@pytest.mark.parametrize("text", ["", "\x00", "a\x00b", "😀", " \n", "\u202e", "x" * 10_000])
def test_any_text_is_predicted(client: TestClient, text: str) -> None:
    for name in ("classifier", "linear", "tagger", "linear-tagger", "summarizer"):
        answer = client.post("/predict", json={"texts": [text], "model": name})
        assert answer.status_code == 200, (name, answer.text)


@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
def test_vectors_are_those_of_the_pipeline(client: TestClient, opened: Models, pooling: str) -> None:
    for name in ("encoder", "decoder", "classifier", "summarizer"):
        answer = client.post("/embed", json={"texts": TEXTS, "model": name, "pooling": pooling})
        model = opened.get(name)
        expected = model.pipeline.embed(TEXTS, pooling=pooling, max_length=model.max_length or 0)
        np.testing.assert_allclose(answer.json()["vectors"], expected, atol=1e-5)


def test_embeddings_have_the_form_of_openai(client: TestClient) -> None:
    answer = client.post("/v1/embeddings", json={"input": TEXTS, "model": "encoder", "user": "ignored"}).json()
    assert answer["object"] == "list"
    assert [one["index"] for one in answer["data"]] == list(range(len(TEXTS)))
    assert answer["usage"]["prompt_tokens"] > 0
    coded = client.post("/v1/embeddings", json={"input": TEXTS[0], "model": "encoder", "encoding_format": "base64"})
    vector = np.frombuffer(base64.b64decode(coded.json()["data"][0]["embedding"]), dtype="<f4")
    np.testing.assert_allclose(vector, answer["data"][0]["embedding"], atol=1e-6)
    size = len(vector)
    assert client.post("/v1/embeddings", json={"input": "a", "model": "encoder", "dimensions": size}).status_code == 200
    wrong = client.post("/v1/embeddings", json={"input": "a", "model": "encoder", "dimensions": 3})
    assert wrong.status_code == 422
    assert "dimensions=3 must be 32" in wrong.json()["error"]["message"]


def test_models_are_described(client: TestClient) -> None:
    found = {one["name"]: one for one in client.get("/models").json()["models"]}
    assert {name: one["task"] for name, one in found.items()} == {
        "classifier": "classification",
        "regressor": "regression",
        "pairs": "pairs",
        "tagger": "token-classification",
        "sentences": "sentence-classification",
        "answers": "question-answering",
        "summarizer": "seq2seq",
        "decoder": None,
        "encoder": None,
        "linear": "classification",
        "linear-tagger": "token-classification",
    }
    assert found["classifier"]["labels"] == list(LABELS.names)
    assert found["classifier"]["max_length"] == 32
    assert found["classifier"]["capabilities"] == ["attention", "embed", "predict"]
    assert found["decoder"]["capabilities"] == ["attention", "embed", "generate"]
    assert found["linear"]["capabilities"] == found["linear-tagger"]["capabilities"] == ["predict"]
    assert found["linear-tagger"]["labels"] == ["B-x", "B-y", "O"]
    assert "generate" in found["summarizer"]["capabilities"]
    assert found["pairs"]["inputs"] == "pair"
    assert all(one["parameters"] > 0 for one in found.values())
    assert [one["id"] for one in client.get("/v1/models").json()["data"]] == list(found)
