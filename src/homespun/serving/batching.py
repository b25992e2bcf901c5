"""Dynamic batching of the texts of many requests: a bounded queue, read by worker threads.

While a batch is computed, the texts of other requests collect in the queue. The next batch has the oldest texts for the
same function. The model splits it by length (`homespun.inference.predict.forward_logits`) to reduce padding.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from homespun.errors import NotFinite, UserError
from homespun.serving.errors import ApiError

Text = TypeVar("Text")
Result = TypeVar("Result")

_LEAST = 256  # tokens of a batch, if so many wait; above, workers share what waits
_NEW_SHARE = 0.1  # weight of the last batch in the mean seconds per token


@dataclass(eq=False, slots=True)
class _Request(Generic[Result]):
    future: asyncio.Future[list[Result]]
    results: list[Result | None]
    missing: int


@dataclass(eq=False, slots=True)
class _Item(Generic[Text, Result]):
    compute: Callable[[Sequence[Text]], Sequence[Result]]
    text: Text
    tokens: int
    arrival: float
    request: _Request[Result]
    index: int


@dataclass(frozen=True)
class BatchSizes:
    """Numbers of texts and tokens of a computed batch, and its seconds."""

    texts: int
    tokens: int
    seconds: float


@dataclass(eq=False)
class Batcher:
    """Queue of texts, and threads that compute batches of them."""

    max_queue: int  # maximum number of waiting texts
    max_wait: float  # seconds that the oldest text waits for more texts
    batch_tokens: int  # maximum tokens of a batch, unless its first text has more
    workers: int = 1  # number of threads
    observe: Callable[[BatchSizes], None] = lambda sizes: None  # called in a worker thread, after each batch
    max_delay: float = math.inf  # maximum seconds of queued computation; further texts are refused
    _waiting: list[_Item[object, object]] = field(default_factory=list, init=False)
    _tokens: int = field(default=0, init=False)
    _seconds_per_token: float = field(default=0.0, init=False)  # mean of a worker over the last batches
    _changed: threading.Condition = field(default_factory=threading.Condition, init=False)
    _closed: bool = field(default=False, init=False)
    _threads: list[threading.Thread] = field(default_factory=list, init=False)

    def start(self) -> None:
        """Start the worker threads."""
        self._threads = [
            threading.Thread(target=self._work, name=f"batch-{n}", daemon=True) for n in range(self.workers)
        ]
        for thread in self._threads:
            thread.start()

    def close(self, timeout: float = 0.5) -> None:
        """Stop the threads, each within ``timeout`` seconds after its current batch; waiting requests get an error."""
        with self._changed:
            self._closed = True
            waiting, self._waiting, self._tokens = self._waiting, [], 0
            self._changed.notify_all()
        self._finish({item.request: ApiError(503, "the server is shutting down") for item in waiting})
        for thread in self._threads:
            thread.join(timeout)

    @property
    def queue_length(self) -> int:
        """Number of waiting texts."""
        return len(self._waiting)

    def submit(
        self, compute: Callable[[Sequence[Text]], Sequence[Result]], texts: Sequence[Text], lengths: Sequence[int]
    ) -> asyncio.Future[list[Result]]:
        """Add one or more texts of a request, of ``lengths`` tokens, to the queue.

        Texts with equal functions ``compute`` share batches.

        Returns:
            Future of the results, in the order of ``texts``; cancelling it removes the texts.

        Raises:
            ApiError: the queue is full or takes too long (429), or the server shuts down (503).
        """
        future: asyncio.Future[list[Result]] = asyncio.get_running_loop().create_future()
        request: _Request[Result] = _Request(future, [None] * len(texts), len(texts))
        now = time.monotonic()
        items = [
            _Item(compute, text, tokens, now, request, index)
            for index, (text, tokens) in enumerate(zip(texts, lengths, strict=True))
        ]
        with self._changed:
            if self._closed:
                raise ApiError(503, "the server is shutting down")
            if len(self._waiting) + len(items) > self.max_queue:
                raise ApiError(
                    429, f"{len(self._waiting)} texts wait, of at most {self.max_queue}; send the request again later"
                )
            delay = self._tokens * self._seconds_per_token / self.workers
            if delay > self.max_delay:
                limit = f"{delay:.0f} s, of at most {self.max_delay:g}"
                raise ApiError(429, f"the texts in the queue take {limit}; send the request again later")
            self._waiting += items  # type: ignore[arg-type]
            self._tokens += sum(lengths)
            self._changed.notify()
        future.add_done_callback(self._remove_cancelled)
        return future

    def _remove_cancelled(self, future: asyncio.Future[list[Result]]) -> None:
        if future.cancelled():
            with self._changed:
                self._waiting = [item for item in self._waiting if item.request.future is not future]
                self._tokens = sum(item.tokens for item in self._waiting)

    def _work(self) -> None:
        while items := self._take():
            start = time.monotonic()
            failed: dict[_Request[object], Exception] = {}
            self._compute(items, failed)
            sizes = BatchSizes(len(items), sum(item.tokens for item in items), time.monotonic() - start)
            self._seconds_per_token += (sizes.seconds / max(1, sizes.tokens) - self._seconds_per_token) * _NEW_SHARE
            self.observe(sizes)
            self._finish({item.request: failed.get(item.request) for item in items})

    def _take(self) -> list[_Item[object, object]]:
        """Wait for the next batch; empty when closed."""
        with self._changed:
            while not self._closed:
                if not self._waiting:
                    self._changed.wait()
                    continue
                rest = self._waiting[0].arrival + self.max_wait - time.monotonic()
                if self._tokens < self.batch_tokens and rest > 0:
                    self._changed.wait(rest)
                    continue
                most = min(self.batch_tokens, max(_LEAST, self._tokens // self.workers))
                chosen, tokens = self._waiting[:1], self._waiting[0].tokens
                for item in self._waiting[1:]:
                    if item.compute == chosen[0].compute:
                        tokens += item.tokens
                        if tokens > most:
                            break
                        chosen.append(item)
                taken = set(map(id, chosen))
                self._waiting = [item for item in self._waiting if id(item) not in taken]
                self._tokens -= sum(item.tokens for item in chosen)
                if self._waiting:
                    self._changed.notify()  # a request wakes one worker, and may be more than a batch
                return chosen
        return []

    def _compute(self, items: Sequence[_Item[object, object]], failed: dict[_Request[object], Exception]) -> None:
        """Store the result of each text; if the batch fails, compute each request separately."""
        try:
            results = list(zip(items, items[0].compute([item.text for item in items]), strict=True))
        except Exception as error:
            requests = dict.fromkeys(item.request for item in items)
            if len(requests) == 1:
                failed[items[0].request] = error
                return
            for request in requests:
                self._compute([item for item in items if item.request is request], failed)
            return
        for item, result in results:
            item.request.results[item.index] = result
            item.request.missing -= 1

    def _finish(self, requests: dict[_Request[object], Exception | None]) -> None:
        """Pass the complete and the failed requests to their event loops, in one call for each loop."""
        done = [(request, error) for request, error in requests.items() if error is not None or not request.missing]
        for loop in {request.future.get_loop() for request, _ in done}:
            mine = [(request, error) for request, error in done if request.future.get_loop() is loop]
            try:
                loop.call_soon_threadsafe(_set_results, mine)
            except RuntimeError:  # the loop is closed
                continue


def _set_results(done: Sequence[tuple[_Request[object], Exception | None]]) -> None:
    for request, error in done:
        if request.future.done():
            continue
        if error is None:
            request.future.set_result(request.results)
        else:
            by_input = isinstance(error, UserError) and not isinstance(error, NotFinite)
            request.future.set_exception(ApiError(422, str(error)) if by_input else error)
