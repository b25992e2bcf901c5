"""ASGI application: routes with limits, API key, metrics, logs and a graceful shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hmac
import logging
import re
import time
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from importlib.metadata import version

from fastapi import APIRouter, FastAPI, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, Response
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from homespun.errors import TooLong, UserError
from homespun.serving import completions, explanation, page, prediction
from homespun.serving.batching import Batcher
from homespun.serving.errors import ApiError, error_response, error_responses
from homespun.serving.explanation import Explanations
from homespun.serving.generation import GenerationWorkers
from homespun.serving.models import Models
from homespun.serving.monitoring import Monitor
from homespun.serving.page import FileJobs
from homespun.serving.requests import describe_problem
from homespun.serving.settings import ServingSettings

logger = logging.getLogger(__name__)

FREE_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""Paths that need no key and are answered until the end."""
REFRESH_SECONDS = 2.0
_QUEUED = 0.5  # share of a request's timeout that may pass in the queue
_DISCARD = 16  # times the largest body, which is read before an answer, so that the client reads it
_DISCARD_SECONDS = 5.0


@dataclass(eq=False)
class Traffic:
    """Number of active requests, and whether further requests are refused."""

    draining: bool = False
    active: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)


def create_app(models: Models, settings: ServingSettings, hosts: Collection[str] = ()) -> FastAPI:
    """Build the application; requests for models that are not open yet get status 503.

    ``hosts`` are the allowed names of the header ``Host``, in lower case and without a port; empty: any.
    """
    app = FastAPI(
        title="homespun",
        version=version("homespun"),
        description="Predictions, vectors and text of models that homespun made.",
        lifespan=_lifespan,
        docs_url=None,  # the page of FastAPI loads scripts from another server
        redoc_url=None,
        separate_input_output_schemas=False,
    )
    batcher = Batcher(settings.max_queue, settings.max_wait_ms / 1000, settings.batch_tokens, settings.workers)
    monitor, traffic = Monitor(lambda: batcher.queue_length), Traffic()
    batcher.observe, batcher.max_delay = monitor.observe_batch, settings.timeout_s * _QUEUED
    state = app.state
    state.models, state.settings, state.batcher = models, settings, batcher
    state.monitor, state.traffic = monitor, traffic
    state.workers = GenerationWorkers(settings.max_queue, lambda: traffic.draining)
    state.explanations, state.jobs = Explanations(), FileJobs()
    # for the schema: `Gate` checks the key
    security = [] if settings.api_key is None else [Security(HTTPBearer(auto_error=False, scheme_name="API key"))]
    for module in (prediction, completions, explanation, page):
        app.include_router(module.router, dependencies=security)
    app.include_router(_probes)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(UserError, _answer_user_error)
    app.add_exception_handler(ClientDisconnect, _answer_nobody)
    app.add_exception_handler(Exception, _answer_bug)
    app.add_middleware(Gate, traffic=traffic, monitor=monitor, settings=settings, hosts=hosts)
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    state = app.state
    state.batcher.start()
    watch = asyncio.create_task(_watch(state.models, state.settings.timeout_s))
    try:
        yield
    finally:
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch
        await asyncio.to_thread(state.jobs.close)
        await state.explanations.close()
        await state.workers.close()
        await asyncio.to_thread(state.batcher.close)


_probes = APIRouter()


@_probes.get("/health", summary="Liveness probe")
async def health() -> dict[str, str]:
    return {"status": "ok"}


@_probes.get("/ready", summary="Readiness probe: whether the models are open", responses=error_responses(503))
async def ready(request: Request) -> Response:
    waiting = not request.app.state.models.loaded
    if request.app.state.traffic.draining or waiting:
        return error_response(503, "the models are being opened" if waiting else "the server is shutting down")
    return Response('{"status":"ready"}', media_type="application/json")


@_probes.get("/metrics", summary="Return metrics for Prometheus", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    return Response(request.app.state.monitor.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _watch(models: Models, timeout: float) -> None:
    """Replace models that change; old models are collected after the timeout of their last requests."""
    while True:
        await asyncio.sleep(REFRESH_SECONDS)
        replaced = await asyncio.to_thread(models.refresh) if models.loaded else []
        if replaced:
            gc.unfreeze()
            asyncio.get_running_loop().call_later(timeout, freeze_objects)


def freeze_objects() -> None:
    """Exclude all objects from garbage collection, which took 0.14 s each, and a third of the time of a request."""
    gc.collect()
    gc.freeze()


@dataclass(eq=False)
class Gate:
    """Middleware: host name, API key, limit of the body, refusal during shutdown, metrics and log.

    A web page whose name resolves to the loopback address (DNS rebinding) sends its name in ``Host``.
    """

    app: ASGIApp
    traffic: Traffic
    monitor: Monitor
    settings: ServingSettings
    hosts: Collection[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, traffic = time.perf_counter(), 500, self.traffic
        state = scope.setdefault("state", {})
        free = scope["path"] in FREE_PATHS

        limit = self._limit(scope)
        body = _Body(receive, limit, self._too_large(limit))

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                await body.discard()
                if traffic.draining:
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        traffic.active += not free
        try:
            refusal = self._refuse_host(scope) or (None if free else self._refuse(scope))
            if refusal is None:
                await self.app(scope, body.receive, watched_send)
            else:
                response = error_response(refusal.status_code, refusal.detail, refusal.code, refusal.headers)
                await response(scope, body.receive, watched_send)
        finally:
            traffic.active -= not free
            if traffic.draining and not traffic.active:
                traffic.idle.set()
            route = getattr(scope.get("route"), "path", "unknown")
            seconds = time.perf_counter() - start
            sizes = state.get("sizes", (0, 0))
            self.monitor.observe_request(scope["method"], scope["path"], route, status, seconds, sizes)

    def _refuse_host(self, scope: Scope) -> ApiError | None:
        given = [value.decode("latin-1").lower() for name, value in scope["headers"] if name == b"host"]
        if not self.hosts or (len(given) == 1 and re.sub(r":\d+$", "", given[0]) in self.hosts):
            return None
        return ApiError(400, f"the header Host must name one of {', '.join(sorted(self.hosts))}", "invalid_host")

    def _refuse(self, scope: Scope) -> ApiError | None:
        if self.traffic.draining:
            return ApiError(503, "the server is shutting down; send the request to another one, or again later")
        headers, key = dict(scope["headers"]), self.settings.api_key
        if key is not None and scope["path"] not in page.PAGE_PATHS:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if not (hmac.compare_digest(given.strip(), key.encode()) and scheme.lower() == b"bearer"):
                error = ApiError(401, "the API key is missing or wrong; send the header Authorization: Bearer KEY")
                error.headers = {"WWW-Authenticate": "Bearer"}
                return error
        length = headers.get(b"content-length", b"0")
        limit = self._limit(scope)
        return self._too_large(limit) if length.isdigit() and int(length) > limit else None

    def _limit(self, scope: Scope) -> int:
        limit = self.settings.max_body_bytes
        return max(limit, page.MAX_BODY_BYTES) if scope["path"] == page.FILES_PATH else limit

    def _too_large(self, limit: int) -> ApiError:
        return ApiError(413, f"the body has more than {limit} bytes; send several requests")


@dataclass(eq=False)
class _Body:
    """Body of a request; ``too_large`` is raised when the application reads more than ``limit`` bytes."""

    unlimited: Receive
    limit: int
    too_large: ApiError
    size: int = 0
    complete: bool = False

    async def receive(self) -> Message:
        """Return the next message."""
        message = await self._next()
        if self.size > self.limit:
            raise self.too_large
        return message

    async def _next(self) -> Message:
        message = await self.unlimited()
        self.size += len(message.get("body", b""))
        self.complete = not message.get("more_body", False)
        return message

    async def discard(self) -> None:
        """Read and discard the rest, unless it is very large: a client that still sends does not read a response."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_SECONDS):
                while not self.complete and self.size <= _DISCARD * self.limit:
                    await self._next()


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = error.code if isinstance(error, ApiError) else None
    message = str(error.detail)
    if error.status_code == 404 and code is None:
        message = f"there is no {request.url.path}; /openapi.json lists the paths"
    return error_response(error.status_code, message, code, error.headers)


async def _answer_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first, *others = error.errors()
    location = tuple(part for part in first["loc"] if part != "body")
    return error_response(422, describe_problem(location, first["msg"], len(others)))


async def _answer_user_error(request: Request, error: Exception) -> Response:
    return error_response(413 if isinstance(error, TooLong) else 422, str(error))


async def _answer_nobody(request: Request, error: Exception) -> Response:
    return error_response(499, "the client has closed the connection")


async def _answer_bug(request: Request, error: Exception) -> Response:
    return error_response(500, "an internal error, which the log of the server describes")
