"""The load of `benchmarks.serve_load` on a server of a linear model, briefly; results/serve.md has the full one."""

import asyncio
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest
from benchmarks.serve import _send, start_server
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


def test_requests_answered_after_the_time_do_not_count() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(10_000):
            await asyncio.sleep(0.4)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(answer, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    latencies, in_time, _ = _send(server.sockets[0].getsockname()[1], TEXTS, clients=3, seconds=0.6)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(asyncio.sleep(0.1))  # the connections end
    server.close()
    loop.close()
    assert (len(latencies), in_time) == (6, 3)
    assert min(latencies) >= 0.4
