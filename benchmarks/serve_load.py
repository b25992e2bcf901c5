"""`homespun serve` under load: many clients, slow clients, disconnects, malformed requests, and SIGTERM.

The clients are those of `benchmarks/locustfile.py`, run by locust.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.paths import SHARED
from benchmarks.serve import SHAPES, read_texts, start_server, write_model

LOCUSTFILE = Path(__file__).with_name("locustfile.py")
PATHS = (
    *("/predict", "/embed", "/generate", "/explain", "/attention", "/neighbours"),
    *("/v1/completions", "/v1/embeddings", "/files", "/nothing"),
)
SENDERS = 50  # of malformed requests
_TIMEOUT = 120.0  # seconds
CLOSED, TIMEOUT = "closed without an answer", "no answer in 120 s"
Answer = tuple[str, dict[bytes, bytes], bytes]


def run(arguments: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks serve-load", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=SHARED, help="folder with ag_news/train.csv.gz")
    parser.add_argument("--clients", type=int, default=1000, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=300.0, help="of the load (default: %(default)s)")
    parser.add_argument("--malformed", type=int, default=10_000, help="requests (default: %(default)s)")
    parser.add_argument("--shape", default="bert-tiny", choices=SHAPES, help="of the BERT (default: %(default)s)")
    options = parser.parse_args(arguments)
    texts = read_texts(options.data / "ag_news" / "train.csv.gz")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder, texts, options.shape)
        with start_server("ours", folder, []) as (port, process, _):
            load = send_load(port, process, texts, options.clients, options.seconds)
            malformed = asyncio.run(send_malformed(port, options.malformed))
            load["alive_after"] = process.is_running()
        with start_server("ours", folder, []) as (port, process, _):
            end = asyncio.run(end_under_load(port, process, texts, min(200, options.clients)))
    settings = {"clients": options.clients, "seconds": options.seconds, "shape": options.shape}
    return {**settings, "load": load, "malformed": malformed, "sigterm": end}


def send_load(
    port: int, process: psutil.Process, texts: Sequence[str], clients: int, seconds: float, *, slow: float = 10.0
) -> dict[str, Any]:
    """Let clients send texts; slow clients take ``slow`` seconds to send the body."""
    memory = []
    with tempfile.TemporaryDirectory() as name:
        found = Path(name, "found.json")
        Path(name, "texts.json").write_text(json.dumps(texts))
        rate = clients / min(5, seconds / 4)  # clients that start in a second
        words = f"--host http://127.0.0.1:{port} --headless --only-summary --loglevel ERROR -u {clients} -r {rate}"
        words += f" -t {round(seconds)}s --stop-timeout {round(_TIMEOUT)}s --json-file {found.with_suffix('')}"
        command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *words.split()]
        environment = os.environ | {"TEXTS": f"{name}/texts.json", "SLOW_SECONDS": str(slow)}
        with subprocess.Popen(command, env=environment, stdout=sys.stderr) as locust:
            while locust.poll() is None:
                memory.append(process.memory_info().rss / 2**20)
                time.sleep(min(1.0, seconds / 20))
        counts = {entry["name"]: entry["num_requests"] for entry in json.loads(found.read_text())}
    tenth = max(1, len(memory) // 10)
    early, late = float(np.median(memory[2 * tenth : 3 * tenth])), float(np.median(memory[-tenth:]))
    return {
        "requests": dict(sorted(counts.items())),
        "memory_mib": {"after_a_quarter": round(early, 1), "at_the_end": round(late, 1)},
        "memory_growth": round(late / early - 1, 4),
    }


def _named(counts: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in sorted(counts.items()) if count}


def _predict_request(text: str) -> bytes:
    return make_request("/predict", json.dumps({"texts": [text]}).encode())


def make_request(path: str, body: bytes, *, method: str = "POST", headers: Sequence[str] = ()) -> bytes:
    """Build the bytes of a request with its own connection."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


async def _exchange(port: int, request: bytes) -> Answer:
    """Send a request and read the response."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return "not connected", {}, b""
    try:
        with suppress(ConnectionError):  # a refusal, which is read below
            writer.write(request)
            await writer.drain()
        content = await asyncio.wait_for(reader.read(), _TIMEOUT)
    except TimeoutError:
        return TIMEOUT, {}, b""
    except OSError:
        return CLOSED, {}, b""
    finally:
        writer.close()
    head, _, body = content.partition(b"\r\n\r\n")
    first, *lines = head.lower().split(b"\r\n")
    words = first.split()
    if len(words) < 2:
        return CLOSED, {}, b""
    pairs = (line.partition(b":") for line in lines)
    return words[1].decode(), {name: value.strip() for name, _, value in pairs}, body


def malformed_request(draw: random.Random) -> tuple[str, bytes]:
    """Return the name and the bytes of a malformed request."""
    path, name = draw.choice(PATHS), draw.choice(list(_MALFORMED))
    made = _MALFORMED[name](draw)
    if name == "raw":
        return name, made
    headers = [
        f"Content-Type: {draw.choice(['application/json', 'text/plain', 'multipart/form-data; boundary=b', ''])}"
    ]
    method = draw.choice(["POST", "POST", "POST", "PUT", "GET", "DELETE"])
    return name, make_request(path, made, method=method, headers=headers)


def _wrong_value(draw: random.Random) -> str:
    values = ["null", "true", "-1", "1e400", "9" * 400, '"\\ud800"', '"\\u0000"', "[]", "{}", "[[[]]]", '""', "NaN"]
    return draw.choice([*values, '["a", 1]', '[["a", "b", "c"]]', '[""]', "[null]", '["\\udfff"]'])


def _wrong_fields(draw: random.Random) -> bytes:
    names = ["texts", "text", "model", "input", "prompt", "max_tokens", "temperature", "top_p", "stop", "stream", "n"]
    names += ["pooling", "dimensions", "encoding_format", "layer", "head", "count", "max_new_tokens", "unknown"]
    fields = [f'"{name}": {_wrong_value(draw)}' for name in draw.sample(names, draw.randint(0, 6))]
    return f"{{{', '.join(fields)}}}".encode()


def _mutated(draw: random.Random) -> bytes:
    content = bytearray(b'{"texts": ["Stocks rose on Friday."], "model": "news", "prompt": "a", "input": "b"}')
    for _ in range(draw.randint(1, 6)):
        position = draw.randrange(len(content))
        content[position : position + draw.randint(0, 3)] = draw.randbytes(draw.randint(0, 3))
    return bytes(content)


_CLOSED = b"%s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
_MALFORMED: dict[str, Callable[[random.Random], bytes]] = {
    "invalid UTF-8": lambda draw: b'{"texts": ["' + draw.randbytes(draw.randint(1, 40)) + b'"]}',
    "deep JSON": lambda draw: b'{"texts": ' + (draw.choice([b"[", b'{"a":']) * draw.choice([100, 10_000, 200_000])),
    "wrong fields": _wrong_fields,
    "mutated": _mutated,
    "long number": lambda draw: b'{"max_tokens": 1' + b"0" * draw.choice([30, 5_000, 100_000]) + b"}",
    "empty": lambda draw: b"",
    "bytes": lambda draw: draw.randbytes(draw.randint(1, 2_000)),
    "raw": lambda draw: draw.choice(
        [
            draw.randbytes(200) + b"\r\n\r\n",
            b"POST /predict HTTP/9.9\r\nConnection: close\r\n\r\n",
            _CLOSED % b"POST /predict" + b"Content-Length: -5\r\n\r\n",
            _CLOSED % b"POST /predict" + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
            _CLOSED % (b"GET /" + b"a" * 100_000) + b"\r\n",
            _CLOSED % b"GET /%ff%00/../models" + b"\r\n",
            b"GET /models HTTP/1.1\r\nHost: \xff\xfe\r\nConnection: close\r\n\r\n",
        ]
    ),
}


async def send_malformed(port: int, count: int) -> dict[str, Any]:
    """Send malformed requests and count the responses."""
    statuses: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    tracebacks = 0
    numbers = iter(range(count))

    async def send() -> None:
        nonlocal tracebacks
        for number in numbers:
            name, request = malformed_request(random.Random(number))
            status, _, body = await _exchange(port, request)
            statuses[status] += 1
            failed[f"{name} {number}: {status}"] += status.startswith("5") or status in (CLOSED, TIMEOUT)
            tracebacks += b"Traceback" in body

    await asyncio.gather(*(send() for _ in range(SENDERS)))
    return {"requests": count, "statuses": _named(statuses), "failed": _named(failed), "tracebacks": tracebacks}


async def end_under_load(port: int, process: psutil.Process, texts: Sequence[str], clients: int) -> dict[str, Any]:
    """Send SIGTERM while all clients wait for a response, and further requests until the end."""
    answered = asyncio.gather(*(_exchange(port, _predict_request(texts[number])) for number in range(clients)))
    await asyncio.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    start, later = time.monotonic(), Counter[str]()
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < start + 30:
        status, _, _ = await _exchange(port, _predict_request(texts[0]))
        later[status] += 1
        await asyncio.sleep(0.05)
    seconds = time.monotonic() - start
    before = Counter(status for status, _, _ in await answered)
    return {"sent_before": _named(before), "sent_after": _named(later), "seconds_until_exit": round(seconds, 2)}
