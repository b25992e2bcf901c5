"""The load of `benchmarks.serve_load` on a server of a linear model, briefly; results/serve.md has the full one."""

import asyncio
from importlib.util import find_spec
from pathlib import Path

import pytest
from benchmarks.serve import start_server
from benchmarks.serve_load import end_under_load, send_load, send_malformed

TEXTS = ["Goal in the last minute.", "Butter and flour."]


@pytest.mark.skipif(find_spec("locust") is None, reason="locust is not installed; it is in homespun[peers]")
def test_every_request_is_answered_under_load_and_until_the_end(folders: dict[str, Path]) -> None:
    with start_server("ours", folders["linear"], []) as (port, process, _):
        requests = send_load(port, process, TEXTS, clients=40, seconds=1.0, slow=0.2)["requests"]
        assert requests["waiting 200"] >= 20
        assert {"slow 200", "hanging up"} <= {*requests} <= {"waiting 200", "slow 200", "hanging up"}
        malformed = asyncio.run(send_malformed(port, 60))
        assert sum(malformed["statuses"].values()) == malformed["requests"] == 60
        assert not malformed["failed"]
        assert not malformed["tracebacks"]
        end = asyncio.run(end_under_load(port, process, TEXTS * 20, clients=40))
    assert sum(end["sent_before"].values()) == 40
    assert {*end["sent_before"]} <= {"200", "503"}
    assert end["seconds_until_exit"] < 10
