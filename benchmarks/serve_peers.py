"""Peers of `homespun serve`: FastAPI around a pipeline of transformers, per request and in batches of 32.

``uvicorn --factory benchmarks.serve_peers:per_request``; the environment variable ``MODEL`` is the folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

BATCH, WAIT = 32, 0.01  # texts of a batch, and seconds that it waits for them


class Body(BaseModel):
    """Texts to classify."""

    texts: list[str]


def _pipeline(**settings: Any) -> Callable[[list[str]], list[dict[str, Any]]]:
    from transformers import pipeline

    made: Any = pipeline("text-classification", model=os.environ["MODEL"], truncation=True, device="cpu", **settings)
    return lambda texts: list(made(texts))


def per_request() -> FastAPI:
    """Build an application whose requests call the pipeline in threads."""
    classify, app = _pipeline(), FastAPI()

    @app.post("/predict")
    def predict(body: Body) -> dict[str, Any]:
        return {"predictions": classify(body.texts)}

    @app.get("/ready")
    def ready() -> dict[str, str]:
        return {"status": "ready"}

    return app


def static_batches() -> FastAPI:
    """Build an application with batches of up to 32 texts, in the order of arrival."""
    classify = _pipeline(batch_size=BATCH)
    queue: asyncio.Queue[tuple[str, asyncio.Future[dict[str, Any]]]] = asyncio.Queue()

    async def work() -> None:
        while True:
            waiting = [await queue.get()]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WAIT):
                    while len(waiting) < BATCH:
                        waiting.append(await queue.get())
            found = await asyncio.to_thread(classify, [text for text, _ in waiting])
            for (_, future), one in zip(waiting, found, strict=True):
                future.set_result(one)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(work())
        yield
        task.cancel()

    app = FastAPI(lifespan=lifespan)

    @app.post("/predict")
    async def predict(body: Body) -> dict[str, Any]:
        futures = [asyncio.get_running_loop().create_future() for _ in body.texts]
        for text, future in zip(body.texts, futures, strict=True):
            queue.put_nowait((text, future))
        return {"predictions": await asyncio.gather(*futures)}

    @app.get("/ready")
    def ready() -> dict[str, str]:
        return {"status": "ready"}

    return app
