"""Settings of the server: limits and batching."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from homespun.config import Config
from homespun.io.cores import available_cores

_MAX_WORKERS = 4  # more would wait for Python's lock


class ServingSettings(Config):
    """Limits of requests, batching and quantization of the server."""

    max_body_bytes: int = Field(default=4 * 2**20, gt=0, description="bytes of a request")
    max_texts: int = Field(default=256, gt=0, description="texts of a request")
    max_tokens_per_text: int | None = Field(
        default=None,
        gt=0,
        description="maximum tokens of a text; longer texts are refused; default: truncated by the model",
    )
    max_queue: int = Field(
        default=1024, gt=0, description="maximum number of waiting texts; further requests are refused"
    )
    max_wait_ms: float = Field(
        default=5.0, ge=0, allow_inf_nan=False, description="time that a batch waits for more texts"
    )
    batch_tokens: int = Field(default=4096, gt=0, description="tokens of a batch")
    timeout_s: float = Field(default=30.0, gt=0, allow_inf_nan=False, description="timeout of a request in seconds")
    max_new_tokens: int = Field(default=512, gt=0, description="maximum tokens that a request may generate")
    workers: int = Field(
        default_factory=lambda: min(_MAX_WORKERS, available_cores()),
        ge=1,
        description=f"batches computed at a time; default: the processor cores, at most {_MAX_WORKERS}",
    )
    threads: int | None = Field(
        default=None, ge=1, description="threads of torch in a worker; default: cores / workers, or all to generate"
    )
    quantize: Literal["bf16", "int8"] | None = Field(default=None, description="precision of linear layers")
    api_key: str | None = Field(default=None, min_length=1, repr=False, description="key that requests must have")

    @property
    def texts_per_request(self) -> int:
        """Maximum number of texts of a request; one with more texts than the queue holds could never be served."""
        return min(self.max_texts, self.max_queue)
