"""Server process: port, application, and graceful shutdown after a signal."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import sys
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from types import FrameType

import uvicorn

from homespun.errors import UserError
from homespun.io.cores import available_cores
from homespun.serving.app import Traffic, create_app, freeze_objects
from homespun.serving.batching import Batcher
from homespun.serving.models import Models
from homespun.serving.monitoring import access_log
from homespun.serving.settings import ServingSettings

DRAIN_SECONDS = 8.0
"""Time for the accepted requests after a signal."""


def serve(sources: Mapping[str, str | Path], settings: ServingSettings, *, host: str, port: int) -> None:
    """Serve models over HTTP until SIGTERM or Ctrl-C; accepted requests are answered before the end.

    Args:
        sources: fits, runs, ``model/`` folders, Hugging Face folders or hub names, by the names of the models.
        settings: limits and batching.
        host: address to listen on.
        port: port to listen on; 0: any free port.

    Raises:
        UserError: the port is in use, or a model cannot be opened.
    """
    listening = listen(host, port)
    _log_lines()
    models = Models(sources, quantize=settings.quantize)
    address = listening.getsockname()
    shown = f"[{address[0]}]" if ":" in address[0] else address[0]
    app = create_app(models, settings, allowed_hosts(address[0], {host.lower(), shown}))
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=1, lifespan="on"
    )
    server = _Server(config, models, settings, app.state.traffic, app.state.batcher)
    _say(f"listening on http://{shown}:{address[1]}, opening {', '.join(sources)}")
    server.run([listening])
    if server.failure is not None:
        raise server.failure


def listen(host: str, port: int) -> socket.socket:
    """Open the port.

    Raises:
        UserError: the port is in use or not allowed, or the address does not exist.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    try:
        if os.name != "nt":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise _cannot_listen(host, port, error) from error
    return listening


def allowed_hosts(address: str, names: set[str]) -> set[str]:
    """Return allowed names of the header ``Host``: on the loopback address ``names`` and its own; else any (empty)."""
    return names | {"localhost", "127.0.0.1", "[::1]"} if ipaddress.ip_address(address).is_loopback else set()


def _cannot_listen(host: str, port: int, error: OSError) -> UserError:
    return UserError(f"cannot listen on {host}:{port}: {error.strerror}; choose another address or port")


def set_threads(models: Models, settings: ServingSettings) -> None:
    """Divide the processor cores among the workers, unless a model generates, in one thread for all texts."""
    generates = any("generate" in model.capabilities for model in models.all)
    threads = settings.threads or (None if generates else max(1, available_cores() // settings.workers))
    if threads and "torch" in sys.modules:
        import torch

        torch.set_num_threads(threads)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _log_lines() -> None:
    """Log one line a request to standard output."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    access_log.handlers[:] = [handler]
    access_log.setLevel(logging.INFO)
    access_log.propagate = False


class _Server(uvicorn.Server):
    """Server that drains between the first signal and its end: accepted requests are answered, others refused."""

    def __init__(
        self, config: uvicorn.Config, models: Models, settings: ServingSettings, traffic: Traffic, batcher: Batcher
    ) -> None:
        super().__init__(config)
        self.failure: Exception | None = None
        self._models = models
        self._settings = settings
        self._traffic = traffic
        self._batcher = batcher
        self._tasks: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and open the models."""
        await super().startup(sockets)
        self._start(self._open_models())

    def _start(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def _open_models(self) -> None:
        start = time.monotonic()
        try:
            await asyncio.to_thread(self._models.load)
        except Exception as error:
            self.failure, self.should_exit = error, True
            return
        set_threads(self._models, self._settings)
        freeze_objects()
        _say(f"ready after {time.monotonic() - start:.1f} s; stop with Ctrl-C")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start draining; a second signal stops draining."""
        if self._traffic.draining:
            self.should_exit = True
            return
        self._traffic.draining = True
        # the handler runs in the thread of the loop, which it wakes
        asyncio.get_running_loop().call_soon_threadsafe(lambda: self._start(self._drain()))

    async def _drain(self) -> None:
        if self._traffic.active:
            try:
                await asyncio.wait_for(self._traffic.idle.wait(), DRAIN_SECONDS)
            except TimeoutError:
                await asyncio.to_thread(self._batcher.close)  # answers the texts that wait
        self.should_exit = True
