"""Wrong requests: one JSON error with the right status, never a traceback; limits, the key, metrics and logs."""

import asyncio
import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from served_models import TEXTS
from starlette.types import Message

from conftest import Connect
from homespun.serving.app import create_app
from homespun.serving.models import Models
from homespun.serving.server import allowed_hosts
from homespun.serving.settings import ServingSettings

NESTED = b"[" * 100_000


def error_of(answer: Any, status: int) -> str:
    assert answer.status_code == status, answer.text
    (error,) = answer.json().values()
    assert error.keys() == {"message", "type", "code"}
    assert "\n" not in error["message"]
    assert "Traceback" not in error["message"]
    return str(error["message"])


@pytest.mark.parametrize("path", ["/predict", "/embed", "/v1/embeddings"])
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b'{"texts": ["\xff"]}', 400),
        (b'{"texts": ["\\ud800"], "input": "\\ud800"}', 400),
        (NESTED, 400),
        (b'{"texts": ' + NESTED + b"}", 400),
        (b'{"a":' * 50_000, 400),
        (b"null", 422),
        (b"[]", 422),
        (b"NaN", 422),
        (b"1e999999", 422),
        (b"1" * 5_000, 400),
        (b"{}", 422),
        (b'{"texts": null, "input": null}', 422),
        (b'{"texts": "a", "input": 1}', 422),
        (b'{"texts": [], "input": []}', 422),
        (b'{"texts": [1], "input": [1]}', 422),
        (b'{"texts": [null], "input": [null]}', 422),
        (b'{"texts": [NaN], "input": [NaN]}', 422),
        (b'{"texts": [["a", 1]], "input": [["a"]]}', 422),
        (b'{"texts": ["a"], "input": "a", "model": 1}', 422),
    ],
    ids=lambda value: repr(value[:30]) if isinstance(value, bytes) else str(value),
)
def test_malformed_bodies(client: TestClient, path: str, body: bytes, status: int) -> None:
    assert error_of(client.post(path, content=body), status)


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/predict", {"texts": ["a"], "modle": "b"}, 422, "'modle'; did you mean 'model'"),
        ("/predict", {"text": "a"}, 422, "'text'; did you mean 'texts'? (required: texts)"),
        ("/predict", {"texts": ["a"], "xyz": 1}, 422, "'xyz'; there are: model, texts"),
        ("/explain", {"texts": ["a"]}, 422, "'texts'; did you mean 'text'? (required: text)"),
        ("/predict", {"texts": ["a"], "model": "none"}, 404, "there are: classifier, regressor"),
        ("/v1/embeddings", {"input": "a", "model": "../../etc/passwd"}, 404, "there are: classifier, regressor"),
        ("/predict", {"texts": ["a"], "model": "decoder"}, 409, "cannot predict; it can: attention, embed, generate"),
        ("/embed", {"texts": ["a"], "model": "linear"}, 409, "cannot embed; it can: predict"),
        ("/v1/embeddings", {"input": "a", "model": "linear"}, 409, "it can: predict"),
        ("/embed", {"texts": ["a"], "pooling": "max"}, 422, "'mean', 'first' or 'last'"),
        ("/embed", {"texts": [["a", "b"]]}, 422, "texts.0"),
        ("/predict", {"texts": ["a", ["a", "b"]]}, 422, "texts.1 does not fit model 'classifier', which reads texts"),
        ("/predict", {"texts": ["a"], "model": "pairs"}, 422, 'pairs of texts: ["...", "..."]'),
        ("/predict", {"texts": [["a"]], "model": "pairs"}, 422, "texts.0"),
        ("/predict", {"texts": [["a", "b", "c"]], "model": "answers"}, 422, "questions"),
        ("/predict", {"texts": ["a"], "model": "sentences"}, 422, "lists of sentences"),
    ],
)
def test_requests_that_a_model_cannot_serve(
    client: TestClient, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    assert words in error_of(client.post(path, json=body), status)


def test_paths_and_methods(client: TestClient) -> None:
    assert "/openapi.json" in error_of(client.get("/nosuch"), 404)
    error_of(client.get("/predict"), 405)
    error_of(client.request("BREW", "/predict"), 405)
    error_of(client.get("/../../etc/passwd"), 404)


def test_limits(connect: Connect) -> None:
    client = connect(max_body_bytes=1000, max_texts=3, max_tokens_per_text=20)
    assert client.post("/predict", json={"texts": ["a"] * 3}).status_code == 200
    assert "4 texts in a request, of at most 3" in error_of(client.post("/predict", json={"texts": ["a"] * 4}), 413)
    assert "1000 bytes" in error_of(client.post("/predict", content=b" " * 1001), 413)
    assert "1000 bytes" in error_of(client.post("/predict", content=iter([b" " * 600] * 3)), 413)
    assert "1000 bytes" in error_of(client.post("/nosuch", content=b" " * 1001), 413)
    few = connect(max_queue=2).post("/predict", json={"texts": ["a"] * 3})
    assert "3 texts in a request, of at most 2" in error_of(few, 413)
    long = error_of(client.post("/predict", json={"texts": ["a", "goal " * 50]}), 413)
    assert "texts.1 has" in long
    assert "of at most 20" in long


@pytest.mark.parametrize(("path", "status"), [("/nosuch", 404), ("/models", 405), ("/predict", 413)])
def test_a_body_is_read_before_an_answer(opened: Models, path: str, status: int) -> None:
    parts = iter([b"x" * 600] * 3)
    order: list[str] = []

    async def receive() -> Message:
        body = next(parts, None)
        order.append("read")
        return {"type": "http.request", "body": body or b"", "more_body": body is not None}

    async def send(message: Message) -> None:
        order.append(str(message.get("status", "body")))

    app = create_app(opened, ServingSettings(max_body_bytes=1000))
    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}
    asyncio.run(app(scope, receive, send))
    assert order[:5] == ["read"] * 4 + [str(status)]  # else the connection is closed with unread bytes: a reset


def test_the_key(connect: Connect) -> None:
    client = connect(api_key="secret-key")
    body = {"texts": TEXTS[:1]}
    for value in (None, "secret-key", "Bearer", "Bearer other", "Basic secret-key", "Bearer secret-key2"):
        answer = client.post("/predict", json=body, headers={"Authorization": value} if value else {})
        assert "Authorization: Bearer KEY" in error_of(answer, 401)
        assert answer.headers["www-authenticate"] == "Bearer"
    assert client.post("/predict", json=body, headers={"Authorization": "Bearer secret-key"}).status_code == 200
    assert client.get("/models", headers={"authorization": "bearer secret-key"}).status_code == 200
    for path in ("/models", "/openapi.json"):
        error_of(client.get(path), 401)
    for path in ("/health", "/ready", "/metrics"):
        assert client.get(path).status_code == 200


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "0.0.0.0"])
def test_names_of_the_host(address: str) -> None:
    hosts = allowed_hosts(address, {"home"})
    with TestClient(create_app(Models({}), ServingSettings(), hosts)) as client:
        for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:80", "[::1]", "[::1]:8000", "home:1"):
            assert client.get("/health", headers={"Host": host}).status_code == 200
        for host in ("", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8000", "evil@localhost"):
            for path in ("/health", "/metrics"):
                answer = client.get(path, headers={"Host": host})
                if address == "0.0.0.0":
                    assert answer.status_code == 200
                else:
                    assert "localhost" in error_of(answer, 400)


def test_models_that_are_being_opened(connect: Connect, folders: dict[str, Path], monkeypatch: Any) -> None:
    monkeypatch.setattr(Models, "load", lambda self: None)
    client = connect(Models({"classifier": folders["classifier"]}))
    answer = client.post("/predict", json={"texts": ["a"]})
    assert "is being opened" in error_of(answer, 503)
    assert answer.headers["retry-after"]
    error_of(client.get("/ready"), 503)
    assert client.get("/health").json() == {"status": "ok"}


def test_a_bug_is_an_error_without_a_traceback(opened: Models, connect: Connect, monkeypatch: Any) -> None:
    def fail(self: object, texts: object) -> None:
        raise ZeroDivisionError("a secret of the server")

    client = connect(max_wait_ms=0)
    client._transport.raise_server_exceptions = False  # type: ignore[attr-defined]
    monkeypatch.setattr("homespun.serving.models.ServedModel.predict", fail)
    assert "secret" not in error_of(client.post("/predict", json={"texts": ["a"]}), 500)


def test_a_request_that_takes_too_long(connect: Connect, monkeypatch: Any) -> None:
    monkeypatch.setattr("homespun.serving.models.ServedModel.predict", lambda self, texts: time.sleep(0.3))
    client = connect(timeout_s=0.05)
    assert "no result after 0.05 s" in error_of(client.post("/predict", json={"texts": ["a"]}), 504)


def test_metrics(connect: Connect) -> None:
    client = connect(max_wait_ms=0)
    client.post("/predict", json={"texts": TEXTS})
    client.post("/predict", content=b"{")
    client.request("BREW", "/predict")
    client.get("/nosuch/1")
    lines = client.get("/metrics").text.splitlines()
    for line in (
        'homespun_requests_total{method="POST",route="/predict",status="200"} 1.0',
        'homespun_requests_total{method="POST",route="/predict",status="400"} 1.0',
        'homespun_requests_total{method="other",route="/predict",status="405"} 1.0',
        'homespun_requests_total{method="GET",route="unknown",status="404"} 1.0',
        'homespun_request_seconds_count{route="/predict"} 3.0',
        "homespun_batch_texts_sum 4.0",
        "homespun_queue_length 0.0",
    ):
        assert line in lines
    assert any(line.startswith("homespun_batch_tokens_bucket") for line in lines)


def test_the_log_has_no_text_and_no_key(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    client = connect(api_key="secret-key")
    with caplog.at_level(logging.INFO, logger="homespun.serving.access"):
        client.post("/predict?q=hidden", json={"texts": TEXTS}, headers={"Authorization": "Bearer secret-key"})
        client.post("/predict", json={"texts": TEXTS}, headers={"Authorization": "Bearer wrong-key"})
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name.endswith("access")]
    assert [(line["method"], line["path"], line["status"], line["texts"]) for line in lines] == [
        ("POST", "/predict", 200, 4),
        ("POST", "/predict", 401, 0),
    ]
    assert lines[0].keys() == {"time", "method", "path", "status", "ms", "texts", "tokens"}
    assert lines[0]["tokens"] > 4
    for word in ("striker", "secret-key", "wrong-key", "hidden"):
        assert word not in caplog.text
