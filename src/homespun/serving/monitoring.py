"""Prometheus metrics, and a line of JSON for each request."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from homespun.serving.batching import BatchSizes

access_log = logging.getLogger("homespun.serving.access")

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKENS = (16, 64, 256, 512, 1024, 2048, 4096, 8192)


class Monitor:
    """Counters of requests and batches, and the number of waiting texts that ``queue_length`` returns."""

    def __init__(self, queue_length: Callable[[], int]) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "homespun_requests", "Requests by method, route, status", ("method", "route", "status"), registry=registry
        )
        self._seconds = Histogram(
            "homespun_request_seconds", "Latency of requests by route", ("route",), buckets=_SECONDS, registry=registry
        )
        self._texts = Histogram("homespun_batch_texts", "Texts of a batch", buckets=_TEXTS, registry=registry)
        self._tokens = Histogram("homespun_batch_tokens", "Tokens of a batch", buckets=_TOKENS, registry=registry)
        self._batch_seconds = Histogram(
            "homespun_batch_seconds", "Time of a batch in the model", buckets=_SECONDS, registry=registry
        )
        Gauge("homespun_queue_length", "Texts that wait", registry=registry).set_function(queue_length)

    def observe_batch(self, sizes: BatchSizes) -> None:
        """Count a computed batch."""
        self._texts.observe(sizes.texts)
        self._tokens.observe(sizes.tokens)
        self._batch_seconds.observe(sizes.seconds)

    def observe_request(
        self, method: str, path: str, route: str, status: int, seconds: float, sizes: tuple[int, int]
    ) -> None:
        """Count a request, and log it with its numbers of texts and tokens, but without its content."""
        self._requests.labels(method if method in _METHODS else "other", route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)
        if access_log.isEnabledFor(logging.INFO):
            line = {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "method": method,
                "path": path,
                "status": status,
                "ms": round(1000 * seconds, 2),
                "texts": sizes[0],
                "tokens": sizes[1],
            }
            access_log.info(json.dumps(line))

    def render(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
