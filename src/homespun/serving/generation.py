"""Generation for concurrent clients: one thread runs the generator of a model and distributes pieces of text."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from homespun.serving.errors import ApiError
from homespun.serving.models import ServedModel

if TYPE_CHECKING:
    from homespun.inference.continuous import ContinuousGenerator, Finish, GenerationRequest
    from homespun.models.generation.settings import GenerationArguments

DRAIN_SECONDS = 6.0
"""Time for running texts after a signal; then they end as at their maximum length."""


@dataclass(frozen=True)
class Piece:
    """Piece of text; the last one has the finish reason."""

    text: str
    finish_reason: Finish | None = None


@dataclass(eq=False)
class TextStream:
    """Text of a request, in pieces, for the event loop that requested it."""

    request: GenerationRequest
    loop: asyncio.AbstractEventLoop
    cancelled: bool = False  # no client waits for the text
    _pieces: asyncio.Queue[Piece | Exception] = field(default_factory=asyncio.Queue)

    def put(self, piece: Piece | Exception) -> None:
        """Add a piece, from any thread."""
        try:
            self.loop.call_soon_threadsafe(self._pieces.put_nowait, piece)
        except RuntimeError:  # the loop is closed
            self.cancelled = True

    async def pieces(self, timeout: float) -> AsyncIterator[Piece]:
        """Yield pieces until the end.

        Raises:
            ApiError: no piece came within ``timeout`` seconds (504).
        """
        while True:
            try:
                piece = await asyncio.wait_for(self._pieces.get(), timeout)
            except TimeoutError:
                raise ApiError(504, f"no text within {timeout:g} s; try again later") from None
            if isinstance(piece, Exception):
                raise piece
            yield piece
            if piece.finish_reason is not None:
                return


class GenerationWorker:
    """Thread that generates the texts of one model by continuous batching.

    At most ``max_queue`` texts run or wait; ``draining`` returns True after a signal.
    """

    def __init__(self, model: ServedModel, max_queue: int, draining: Callable[[], bool]) -> None:
        from homespun.inference.continuous import ContinuousGenerator

        bundle = model.pipeline.bundle
        assert bundle is not None
        self.model = model
        self._max_queue, self._draining = max_queue, draining
        self._generator: ContinuousGenerator = ContinuousGenerator(bundle)
        self._new: list[TextStream] = []
        self._running: dict[GenerationRequest, TextStream] = {}
        self._submitting = 0  # calls of `submit`
        self._changed = threading.Condition()
        self._closed = False
        self._drain_end: float | None = None
        self._thread = threading.Thread(target=self._work, name=f"generate-{model.name}", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """True if texts are being generated."""
        return bool(self._new or self._running or self._submitting)

    async def submit(
        self, prompts: Sequence[str], stop: Sequence[str], arguments: GenerationArguments
    ) -> list[TextStream]:
        """Start a text after each prompt; the prompts are encoded in a thread, because megabytes take seconds.

        Raises:
            ApiError: the queue is full (429), or the server is closing (503).
            UserError: see `ContinuousGenerator.request`.
        """
        loop, request = asyncio.get_running_loop(), partial(self._generator.request, stop=stop, **arguments)
        self._submitting += 1
        try:
            streams = await asyncio.to_thread(lambda: [TextStream(request(prompt), loop) for prompt in prompts])
            with self._changed:
                if self._closed:
                    raise ApiError(503, "the server is shutting down")
                waiting = len(self._new) + len(self._running)
                if waiting + len(streams) > self._max_queue:
                    raise ApiError(429, f"{waiting} texts are generated, of at most {self._max_queue}; try again later")
                self._new += streams
                self._changed.notify()
            return streams
        finally:
            self._submitting -= 1

    def close(self, timeout: float = 5.0) -> None:
        """End all texts and the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout)

    def _work(self) -> None:
        while self._receive():
            try:
                self._end_texts()
                for request, text in self._generator.step():
                    if text or request.finish_reason is not None:
                        self._put(request, text)
            except Exception as error:  # the texts fail, the worker goes on
                for stream in self._running.values():
                    stream.request.end("cancelled")
                    stream.put(error)
                self._running.clear()
        self._end_all()
        self._generator.close()

    def _receive(self) -> bool:
        """Start new texts; wait for one if there are none. Returns False when closed."""
        with self._changed:
            while not (self._new or self._running or self._closed):
                self._changed.wait()
            new, self._new = self._new, []
        for stream in new:
            self._running[stream.request] = stream
            self._generator.add(stream.request)
        return not self._closed

    def _end_texts(self) -> None:
        for request, stream in [*self._running.items()]:
            if stream.cancelled:
                request.end("cancelled")
                del self._running[request]
        if self._draining():
            self._drain_end = self._drain_end or time.monotonic() + DRAIN_SECONDS
            if time.monotonic() > self._drain_end:
                self._end_all()

    def _end_all(self) -> None:
        for request in [*self._running]:
            self._put(request, request.end("length"))

    def _put(self, request: GenerationRequest, text: str) -> None:
        stream = self._running.get(request)
        if stream is None:
            return
        stream.put(Piece(text, request.finish_reason))
        if request.finish_reason is not None:
            del self._running[request]


@dataclass(eq=False)
class GenerationWorkers:
    """Workers of the models, each created at the first request of its model."""

    max_queue: int
    draining: Callable[[], bool]
    _workers: dict[str, GenerationWorker] = field(default_factory=dict)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def get(self, model: ServedModel) -> GenerationWorker:
        """Return the worker of a model; the worker of a replaced model ends after its texts."""
        async with self._lock:
            worker = self._workers.get(model.name)
            if worker is None or worker.model is not model:
                if worker is not None:
                    threading.Thread(target=_close_when_idle, args=(worker,), daemon=True).start()
                # packs the weights
                worker = await asyncio.to_thread(GenerationWorker, model, self.max_queue, self.draining)
                self._workers[model.name] = worker
            return worker

    async def close(self) -> None:
        """End all texts."""
        for worker in self._workers.values():
            await asyncio.to_thread(worker.close)


def _close_when_idle(worker: GenerationWorker) -> None:
    while worker.busy:
        time.sleep(0.5)
    worker.close()
