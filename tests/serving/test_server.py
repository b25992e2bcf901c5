"""The server on a port: clients that hang up, a full queue, OpenAI's client, signals, arguments of the command."""

import asyncio
import concurrent.futures
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import uvicorn
from served_models import TEXTS, command, server
from typer.testing import CliRunner

from homespun.cli import app as command_line
from homespun.cli.serve import name_models, read_api_key
from homespun.errors import UserError
from homespun.serving.app import Traffic, create_app
from homespun.serving.batching import Batcher
from homespun.serving.models import Models, ServedModel
from homespun.serving.server import _Server, listen
from homespun.serving.settings import ServingSettings


class Live:
    """A server in a thread."""

    def __init__(self, models: Models, **settings: Any) -> None:
        self.app = create_app(models, ServingSettings(**settings))
        self.listening = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        self.server = uvicorn.Server(uvicorn.Config(self.app, log_level="error", access_log=False))
        self.thread = threading.Thread(target=self.server.run, args=([self.listening],))
        self.thread.start()
        while not self.server.started:
            time.sleep(0.005)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join()


@pytest.fixture
def serve(opened: Models) -> Iterator[Callable[..., Live]]:
    """Start servers of all models, which end with the test."""
    with ExitStack() as stack:

        def start(**settings: Any) -> Live:
            running = Live(opened, **settings)
            stack.callback(running.stop)
            return running

        yield start


@pytest.fixture
def live(serve: Callable[..., Live]) -> Live:
    return serve(max_wait_ms=0, max_queue=2, timeout_s=10, workers=1)


class Blocked:
    """Predictions that wait until they may."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.may, self.seen = threading.Event(), []  # type: ignore[var-annotated]
        patch.setattr(ServedModel, "predict", lambda model, texts: self(texts))

    def __call__(self, texts: Sequence[str]) -> list[dict[str, object]]:
        self.seen += texts
        assert self.may.wait(10)
        return [{"text": text} for text in texts]


def wait_until(condition: Any) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_full_queue_and_a_client_that_hangs_up(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked, batcher = Blocked(monkeypatch), live.app.state.batcher
    post = f"{live.url}/predict"
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        first = pool.submit(httpx.post, post, json={"texts": ["first"]})
        wait_until(lambda: blocked.seen == ["first"])
        kept = pool.submit(httpx.post, post, json={"texts": ["kept"]})
        wait_until(lambda: batcher.queue_length == 1)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(post, json={"texts": ["gone"]}, timeout=0.2)
        wait_until(lambda: batcher.queue_length == 1)
        full = httpx.post(post, json={"texts": ["a", "b"]})
        assert full.status_code == 429
        assert int(full.headers["retry-after"]) >= 1
        blocked.may.set()
        assert [one.result().status_code for one in (first, kept)] == [200, 200]
    assert blocked.seen == ["first", "kept"]
    assert 'route="/predict",status="499"} 1.0' in httpx.get(f"{live.url}/metrics").text


def test_half_a_request_does_no_harm(live: Live, capfd: pytest.CaptureFixture[str]) -> None:
    for sent in (b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{", b"\x16\x03\x01\x00", b"GET"):
        with socket.create_connection(live.listening.getsockname()) as client:
            client.sendall(sent)
    wait_until(lambda: 'route="/predict",status="499"} 1.0' in httpx.get(f"{live.url}/metrics").text)
    assert "Traceback" not in capfd.readouterr().err
    assert httpx.post(f"{live.url}/predict", json={"texts": ["a"]}).status_code == 200


def test_a_body_that_does_not_arrive(serve: Callable[..., Live]) -> None:
    with socket.create_connection(serve(timeout_s=0.1).listening.getsockname()) as client:
        client.sendall(b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
        assert client.recv(100).startswith(b"HTTP/1.1 408")


def test_the_client_of_openai(serve: Callable[..., Live], opened: Models) -> None:
    url = f"{serve(api_key='secret').url}/v1"
    client = openai.OpenAI(base_url=url, api_key="secret", max_retries=0)
    assert "encoder" in [model.id for model in client.models.list()]
    found = client.embeddings.create(model="encoder", input=TEXTS)
    expected = opened.get("encoder").pipeline.embed(TEXTS, max_length=64)
    np.testing.assert_allclose([one.embedding for one in found.data], expected, atol=1e-5)
    with pytest.raises(openai.NotFoundError, match="there is no model 'none'"):
        client.embeddings.create(model="none", input="a")
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=url, api_key="other", max_retries=0).models.list()


@pytest.mark.slow
def test_every_accepted_request_is_answered_after_a_signal(folders: dict[str, Path]) -> None:
    """Under load: answers are 200 before and 503 after the signal, and the process ends in time."""

    async def ask(client: httpx.AsyncClient, found: list[int]) -> None:
        while True:
            try:
                answer = await client.post("/predict", json={"texts": TEXTS * 4})
            except (httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError):
                return  # closed between two requests, or no longer listening
            found.append(answer.status_code)
            if answer.status_code != 200:
                return

    async def load(url: str, stop: Any) -> list[int]:
        found: list[int] = []
        async with httpx.AsyncClient(base_url=url, timeout=20) as client:
            tasks = [asyncio.create_task(ask(client, found)) for _ in range(16)]
            await asyncio.sleep(1)
            await asyncio.to_thread(stop)
            await asyncio.gather(*tasks)
        return found

    with server(folders["classifier"]) as running:
        began = []

        def stop() -> None:
            began.append(time.monotonic())
            running.process.terminate()

        found = asyncio.run(load(running.url, stop))
        code, lines, errors = running.end()
        assert time.monotonic() - began[0] < 10
    assert code == 0, errors
    assert "Traceback" not in errors
    assert found.count(200) > 16
    assert set(found) <= {200, 503}
    statuses = [line["status"] for line in lines if line["path"] == "/predict"]
    assert statuses.count(200) == found.count(200)  # each was answered, and its answer arrived
    assert statuses.count(503) == found.count(503)


@pytest.mark.slow
def test_a_linear_model_is_served_within_seconds_and_without_torch(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    began = time.monotonic()
    with server(f"topics={folders['linear']}", "--api-key", tmp_path / "key") as running:
        assert time.monotonic() - began < 10
        assert httpx.get(f"{running.url}/models").status_code == 401
        answer = httpx.get(f"{running.url}/models", headers={"Authorization": "Bearer secret"})
        assert [one["name"] for one in answer.json()["models"]] == ["topics"]
        with open(f"/proc/{running.process.pid}/maps", encoding="utf-8") as maps:
            assert "libtorch" not in maps.read()
        running.process.terminate()
        code, lines, errors = running.end()
    assert code == 0
    assert [line["status"] for line in lines if line["path"] == "/models"] == [401, 200]
    assert "secret" not in json.dumps(lines) + errors


def test_linear_models_need_no_torch(folders: dict[str, Path]) -> None:
    code = (
        "import sys; from homespun.serving.models import Models; from homespun.serving.server import create_app; "
        "from homespun.serving.settings import ServingSettings; "
        f"models = Models({{'a': {str(folders['linear'])!r}}}); models.load(); "
        "create_app(models, ServingSettings()); print(models.get(None).predict(['goal'])[0]['label']); "
        "print({'torch', 'sklearn', 'transformers', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.splitlines() == ["sport", "set()"], done.stderr


def test_a_server_that_cannot_start_ends_the_command(folders: dict[str, Path], tmp_path: Path) -> None:
    def refused(*words: object) -> str:
        result = CliRunner().invoke(command_line, ["serve", *map(str, words)])
        assert isinstance(result.exception, UserError)
        return str(result.exception)

    assert "holds no model" in refused(tmp_path, "--port", "0")
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = used.getsockname()[1]
        message = refused(folders["linear"], "--port", port)
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in message


@pytest.mark.parametrize("host", ["256.1.1.1", "no.such.host.invalid", "198.51.100.7"])
def test_an_address_that_is_not_of_this_machine(host: str) -> None:
    with pytest.raises(UserError, match="choose another address"):
        listen(host, 0)


def test_the_file_of_the_key(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(" secret\n")
    assert read_api_key(path) == "secret"
    assert read_api_key(None) is None
    wrong = {b"": "is empty", b" \n": "is empty", b"a b\n": "one line", b"a\nb\n": "one line", b"\xff": "ASCII"}
    for content, message in wrong.items():
        path.write_bytes(content)
        with pytest.raises(UserError, match=message):
            read_api_key(path)
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(UserError, match="cannot read the API key"):
            read_api_key(missing)


def test_names_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("runs/news", "runs/old/news", "a=b"):
        (tmp_path / name).mkdir(parents=True)
    assert name_models(["runs/news", "old=runs/old/news"]) == {"news": "runs/news", "old": "runs/old/news"}
    assert list(name_models(["a=b"])) == ["a=b"]
    (tmp_path / "runs/news/model").mkdir()
    assert list(name_models(["runs/news/model"])) == ["news"]
    assert name_models(["b=a=b"]) == {"b": "a=b"}
    assert name_models(["."]) == {tmp_path.name: "."}
    assert name_models(["owner/small", "bert-base"]) == {"small": "owner/small", "bert-base": "bert-base"}
    for arguments, words in (
        (["runs/news", "runs/old/news"], "both named 'news'"),
        (["runs/none"], "there is no folder runs/none"),
        (["x="], "x="),
    ):
        with pytest.raises(UserError, match=words):
            name_models(arguments)


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    rows = [{"text": f"{TEXTS[number]} {n}", "label": "abc"[number]} for n in range(30) for number in range(3)]
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def test_fit_serves_its_model(examples: Path, tmp_path: Path) -> None:
    with command("fit", examples, "--time", "1s", "--out", tmp_path / "fitted", "--serve", "0") as running:
        found = httpx.post(f"{running.url}/predict", json={"texts": [TEXTS[1]]}).json()
        assert (found["model"], found["predictions"][0]["label"]) == ("fitted", "b")
        assert (tmp_path / "fitted" / "result.json").is_file()
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(timeout=20) == 0


def test_fit_finds_a_used_port_before_it_trains(examples: Path, tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as used, pytest.raises(UserError, match="cannot listen"):
        words = [str(examples), "--out", str(tmp_path / "fitted"), "--serve", str(used.getsockname()[1])]
        command_line(["fit", *words], standalone_mode=False)
    assert not (tmp_path / "fitted").exists()


def test_a_signal_before_the_startup_ends_the_server() -> None:
    """uvicorn handles signals before it imports its protocols, and calls `startup` after that."""

    async def interrupt() -> bool:
        batcher = Batcher(max_queue=1, max_wait=0.0, batch_tokens=1)
        made = _Server(uvicorn.Config("none"), Models({}), ServingSettings(), Traffic(), batcher)
        made.handle_exit(signal.SIGINT, None)
        await asyncio.sleep(0.01)
        return made.should_exit

    assert asyncio.run(interrupt())
