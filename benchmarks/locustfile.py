"""Clients of `homespun serve` for locust: 18 of 20 wait for each response, one sends slowly, one disconnects early.

After a refusal (429) a client waits as long as ``Retry-After`` requests. Requests are counted by client and status.

    locust -f benchmarks/locustfile.py --host http://127.0.0.1:8000 --headless -u 1000 -r 200 -t 5m --stop-timeout 120

The environment variable ``TEXTS`` names a JSON file with a list of texts, ``SLOW_SECONDS`` the time of a slow request.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from locust import FastHttpUser, User, task  # makes sleeps and sockets those of gevent

TEXTS: list[str] = json.loads(Path(os.environ["TEXTS"]).read_text()) if "TEXTS" in os.environ else ["Stocks rose."]
SLOW_SECONDS = float(os.environ.get("SLOW_SECONDS", "10"))
TIMEOUT = 120.0  # seconds
_PIECES = 20  # of the body of a slow client


class Waiting(FastHttpUser):
    weight = 18
    network_timeout = connection_timeout = TIMEOUT

    @task
    def predict(self) -> None:
        with self.client.post("/predict", json=_body(), catch_response=True) as response:
            response.request_meta["name"] = f"waiting {response.status_code}"
            response.success()
        if response.status_code == 429:
            time.sleep(float(response.headers["Retry-After"]))


class _Raw(User):
    abstract = True

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(urlsplit(str(self.host)).netloc, timeout=TIMEOUT)

    def count(self, name: str, start: float) -> None:
        self.environment.events.request.fire(
            request_type="POST", name=name, response_time=1000 * (time.perf_counter() - start), response_length=0
        )


class Slow(_Raw):
    weight = 1

    @task
    def predict(self) -> None:
        start, status, connection = time.perf_counter(), 0, self.connect()
        body = json.dumps(_body()).encode()
        with suppress(OSError, http.client.HTTPException):
            connection.request("POST", "/predict", _slowly(body), {"Content-Length": str(len(body))})
            response = connection.getresponse()
            status = response.status
        connection.close()
        self.count(f"slow {status}", start)
        if status == 429:
            time.sleep(float(response.headers["Retry-After"]))


class HangingUp(_Raw):
    weight = 1

    @task
    def predict(self) -> None:
        start, connection = time.perf_counter(), self.connect()
        body = json.dumps(_body()).encode()
        with suppress(OSError):
            connection.putrequest("POST", "/predict")
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body[: random.choice([len(body), random.randrange(len(body))])])
            time.sleep(random.uniform(0, 1))
        connection.close()
        self.count("hanging up", start)
        time.sleep(random.uniform(1, 5))


def _body() -> dict[str, list[str]]:
    return {"texts": [random.choice(TEXTS)]}


def _slowly(body: bytes) -> Iterator[bytes]:
    size = -(-len(body) // _PIECES)
    for start in range(0, len(body), size):
        time.sleep(SLOW_SECONDS / _PIECES)
        yield body[start : start + size]
