"""Text over HTTP equals the text of the model for each prompt alone, whole and streamed, also by OpenAI's client."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from fastapi.testclient import TestClient
from served_models import server

from homespun.inference.continuous import ContinuousGenerator
from homespun.serving.completions import _EventStream
from homespun.serving.generation import GenerationWorker, TextStream
from homespun.serving.models import Models
from homespun.text.tokenizer import Tokenizer

PROMPTS = ["The striker scored", "The bank lowered", "Butter, onions", "Goal"]


def alone(models: Models, prompt: str, **arguments: Any) -> str:
    ((text,),) = models.get("decoder").pipeline.generate([prompt], **arguments)
    return text


def events_of(client: TestClient, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with client.stream("POST", path, json=body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def test_texts_are_those_of_the_model_alone(client: TestClient, opened: Models) -> None:
    def ask(prompt: str) -> dict[str, Any]:
        body = {"prompt": prompt, "model": "decoder", "max_new_tokens": 12}
        return client.post("/generate", json=body).json()

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        for prompt, found in zip(PROMPTS, pool.map(ask, PROMPTS), strict=True):
            assert found["text"] == alone(opened, prompt, max_new_tokens=12)
            assert found["model"] == "decoder"
            assert found["finish_reason"] in ("stop", "length")


def test_a_sampled_text_follows_its_seed_and_streams_in_pieces(client: TestClient, opened: Models) -> None:
    body = {"prompt": "Goal", "model": "decoder", "max_new_tokens": 9, "temperature": 0.8, "top_p": 0.9, "seed": 5}
    whole = client.post("/generate", json=body).json()
    settings = {"do_sample": True, "temperature": 0.8, "top_p": 0.9, "seed": 5}
    assert whole["text"] == alone(opened, "Goal", max_new_tokens=9, **settings)
    events = events_of(client, "/generate", body | {"stream": True})
    assert "".join(event["text"] for event in events) == whole["text"]
    assert events[-1]["finish_reason"] == whole["finish_reason"]
    assert events[-1]["tokens"] == whole["tokens"]


@pytest.mark.parametrize("temperature", [0, 1e-300])
def test_a_temperature_near_0_is_greedy(client: TestClient, opened: Models, temperature: float) -> None:
    body = {"prompt": "Goal", "model": "decoder", "max_new_tokens": 6, "temperature": temperature, "seed": 1}
    assert client.post("/generate", json=body).json()["text"] == alone(opened, "Goal", max_new_tokens=6)


def test_an_encoder_decoder_generates(client: TestClient) -> None:
    answer = client.post("/generate", json={"prompt": "Butter", "model": "summarizer", "max_new_tokens": 4}).json()
    assert answer["tokens"] <= 4


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/generate", {"prompt": "a", "model": "classifier"}, 409, "predict"),
        ("/generate", {"prompt": ""}, 422, "prompt"),
        ("/generate", {"prompt": "a", "model": "decoder", "max_new_tokens": 513}, 422, "512"),
        ("/generate", {"prompt": "a", "model": "decoder", "temperature": -1}, 422, "temperature"),
        ("/generate", {"prompt": "a", "model": "decoder", "top_p": 2}, 422, "top_p"),
        ("/generate", {"prompt": "goal " * 200, "model": "decoder"}, 413, "64"),
        ("/generate", {"prompt": "a", "model": "decoder", "stop": [""]}, 422, "stop"),
        ("/v1/completions", {"prompt": "a", "model": "decoder", "n": 3}, 400, "n="),
        ("/v1/completions", {"prompt": "a", "model": "decoder", "logprobs": 2}, 400, "logprobs"),
        ("/v1/completions", {"prompt": [], "model": "decoder"}, 422, "prompt"),
        ("/v1/completions", {"prompt": "a", "model": "none"}, 404, "decoder"),
    ],
)
def test_what_cannot_be_generated_is_refused(
    client: TestClient, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    response = client.post(path, json=body)
    assert response.status_code == status
    assert words in response.json()["error"]["message"]


def test_more_texts_than_the_queue_holds_are_refused_for_good(connect: Callable[..., TestClient]) -> None:
    response = connect(max_queue=2).post("/v1/completions", json={"prompt": ["a", "b", "c"], "model": "decoder"})
    assert response.status_code == 413
    assert "3 prompts, of at most 2" in response.json()["error"]["message"]


def test_texts_beyond_the_queue_are_refused(
    connect: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, body = connect(max_queue=2), {"prompt": ["a", "b"], "model": "decoder"}
    step, started, may = ContinuousGenerator.step, threading.Event(), threading.Event()

    def blocked(generator: ContinuousGenerator) -> Any:
        started.set()
        assert may.wait(10)
        return step(generator)

    monkeypatch.setattr(ContinuousGenerator, "step", blocked)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post, "/v1/completions", json=body)
        assert started.wait(10)
        response = client.post("/v1/completions", json=body | {"prompt": "c"})
        assert response.status_code == 429
        assert response.headers["retry-after"] == "1"
        may.set()
        assert first.result().status_code == 200


def test_a_failure_of_the_generator_is_one_answer(
    connect: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, body = connect(), {"prompt": "a", "model": "decoder", "stream": True}
    assert client.post("/generate", json=body | {"stream": False}).status_code == 200
    with monkeypatch.context() as patch:
        patch.setattr("homespun.inference.continuous.ContinuousGenerator.step", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            events_of(client, "/generate", body)
    assert client.post("/generate", json=body | {"stream": False}).status_code == 200


def test_prompts_are_encoded_outside_the_event_loop(opened: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    encode = Tokenizer.encode_batch

    def encode_batch(self: Tokenizer, texts: Sequence[str]) -> list[Any]:
        threads.append(threading.current_thread())
        return encode(self, texts)

    async def go() -> None:
        worker = GenerationWorker(opened.get("decoder"), 4, lambda: False)
        await worker.submit(["Goal"], [], {"max_new_tokens": 1})
        worker.close()

    monkeypatch.setattr(Tokenizer, "encode_batch", encode_batch)
    asyncio.run(go())
    assert threads
    assert threading.current_thread() not in threads


def test_a_response_that_never_began_ends_its_text(opened: Models) -> None:
    made: list[TextStream] = []

    async def go() -> None:
        model = opened.get("decoder")
        worker = GenerationWorker(model, 4, lambda: False)
        made.extend(await worker.submit(["Goal"], [], {"max_new_tokens": 50}))
        response = _EventStream(aiter_of([]), made)
        with pytest.raises(asyncio.CancelledError):
            await response({"type": "http", "asgi": {"spec_version": "2.4"}}, cancelled, cancelled)
        for _ in range(200):
            if not worker.busy:
                break
            await asyncio.sleep(0.01)
        assert not worker.busy
        worker.close()

    async def cancelled(*_: object) -> dict[str, Any]:
        raise asyncio.CancelledError

    async def aiter_of(events: list[str]) -> AsyncIterator[str]:
        for event in events:
            yield event

    asyncio.run(go())
    assert made[0].cancelled
    assert made[0].request.tokens < 50


@pytest.fixture(scope="module")
def running(folders: dict[str, Path]) -> Iterator[openai.OpenAI]:
    with server(f"decoder={folders['decoder']}") as one:
        yield openai.OpenAI(base_url=f"{one.url}/v1", api_key="none", max_retries=0)


@pytest.mark.slow
def test_the_client_of_openai_completes(running: openai.OpenAI, opened: Models) -> None:
    expected = [alone(opened, prompt, max_new_tokens=8) for prompt in PROMPTS]
    made = running.completions.create(model="decoder", prompt=PROMPTS, max_tokens=8, temperature=0, user="me")
    assert [choice.text for choice in made.choices] == expected
    assert made.usage is not None
    assert made.usage.total_tokens == made.usage.prompt_tokens + made.usage.completion_tokens
    parts, usage = [""] * len(PROMPTS), None
    streamed: Any = {"model": "decoder", "prompt": PROMPTS, "max_tokens": 8, "temperature": 0, "stream": True}
    for chunk in running.completions.create(**streamed, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            parts[choice.index] += choice.text
    assert parts == expected
    assert usage == made.usage
    with pytest.raises(openai.BadRequestError, match="n="):
        running.completions.create(model="decoder", prompt="a", n=2)


@pytest.mark.slow
def test_a_stream_that_is_left_ends(running: openai.OpenAI) -> None:
    stream = running.completions.create(model="decoder", prompt="Goal", max_tokens=50, stream=True)
    next(iter(stream))
    stream.close()
    made = running.completions.create(model="decoder", prompt="Goal", max_tokens=2, temperature=0)
    assert made.choices[0].finish_reason in ("length", "stop")
