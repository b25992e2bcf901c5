"""Routes of text generation: `/generate`, and OpenAI's `/v1/completions`."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import Receive, Scope, Send

from homespun.serving.errors import ApiError, error_body
from homespun.serving.generation import GenerationWorkers, TextStream
from homespun.serving.models import ServedModel
from homespun.serving.requests import (
    Body,
    ModelName,
    describe_route,
    get_model,
    json_response,
    read_body,
    settings_of,
    wait_for,
)

if TYPE_CHECKING:
    from homespun.models.generation.settings import GenerationArguments

_STREAM = "text/event-stream"
_GREEDY = 1e-4  # temperature below which scores overflow, and the most probable token is the only one
_UNSUPPORTED = {  # fields of OpenAI's API, and the values that ask for nothing
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
    "logprobs": (None, 0),
    "n": (None, 1),
    "presence_penalty": (None, 0),
    "suffix": (None, ""),
}

Stop = Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=16)]


class GenerateBody(Body):
    """Prompt and generation settings; greedy decoding without a sampling setting."""

    prompt: Annotated[str, Field(min_length=1, examples=["Revenue rose"])]
    stream: bool = Field(default=False, description="answer with server-sent events")
    max_new_tokens: int = Field(default=50, ge=1, description="maximum number of new tokens")
    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False, description="0: greedy")
    top_k: int | None = Field(default=None, ge=1)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int | None = Field(default=None, ge=0, le=2**63 - 1, description="random seed of sampling; default: random")
    stop: Stop = Field(default=[], description="strings that end the text")


class CompletionsBody(BaseModel):
    """Body of OpenAI's ``/v1/completions``; unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="allow")

    prompt: Annotated[
        Annotated[str, Field(min_length=1)] | Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)],
        Field(examples=["Revenue rose"]),
    ]
    model: ModelName = None
    max_tokens: int = Field(default=16, ge=1)
    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False, description="0: greedy")
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int | None = Field(default=None, ge=0, le=2**63 - 1)
    stop: str | Stop | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None


class Generated(BaseModel):
    """Generated text."""

    model: str
    text: str
    tokens: int
    finish_reason: str


router = APIRouter()


async def _start(
    request: Request, model: ServedModel, prompts: Sequence[str], stop: Sequence[str], arguments: GenerationArguments
) -> list[TextStream]:
    settings, workers = settings_of(request), cast(GenerationWorkers, request.app.state.workers)
    model.require("generate")
    if (count := arguments["max_new_tokens"]) > settings.max_new_tokens:
        raise ApiError(422, f"{count} tokens to generate, of at most {settings.max_new_tokens}")
    if len(prompts) > (most := settings.texts_per_request):
        raise ApiError(413, f"{len(prompts)} prompts, of at most {most}; send several requests")
    worker = await workers.get(model)
    streams = await worker.submit(prompts, stop, arguments)
    request.state.sizes = len(prompts), sum(stream.request.prompt_tokens for stream in streams)
    return streams


async def _complete(request: Request, streams: Sequence[TextStream]) -> list[tuple[str, str]]:
    try:
        return await wait_for(request, asyncio.ensure_future(_collect(streams, settings_of(request).timeout_s)))
    finally:
        _cancel(streams)


@router.post(
    "/generate",
    summary="Generate text after a prompt, or from a text",
    response_model=Generated,
    **describe_route(GenerateBody),
)
async def generate(request: Request) -> Response:
    body = await read_body(request, GenerateBody)
    model = get_model(request, body.model)
    chosen = body.model_dump(include={"temperature", "top_k", "top_p", "seed"}, exclude_none=True)
    arguments = _arguments(body.max_new_tokens, chosen)
    streams = await _start(request, model, [body.prompt], body.stop, arguments)
    if not body.stream:
        ((text, reason),) = await _complete(request, streams)
        end = {"tokens": streams[0].request.tokens, "finish_reason": reason}
        return json_response({"model": model.name, "text": text} | end)

    async def events() -> AsyncIterator[str]:
        async for piece in streams[0].pieces(settings_of(request).timeout_s):
            end = {"tokens": streams[0].request.tokens, "finish_reason": piece.finish_reason}
            yield _event({"text": piece.text} | (end if piece.finish_reason else {}))

    return _EventStream(events(), streams)


@router.post(
    "/v1/completions", summary="Generate text after prompts, as OpenAI's API", **describe_route(CompletionsBody)
)
async def completions(request: Request) -> Response:
    body = await read_body(request, CompletionsBody)
    for name, neutral in _UNSUPPORTED.items():
        if (value := (body.model_extra or {}).get(name)) not in neutral:
            raise ApiError(400, f"{name}={str(value)[:50]!r} is not supported; leave it out", "unsupported_value")
    model = get_model(request, body.model)
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    chosen = body.model_dump(include={"temperature", "top_p", "seed"}, exclude_none=True)
    arguments = _arguments(body.max_tokens, chosen)
    streams = await _start(request, model, prompts, stop, arguments)
    head = {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model.name,
    }
    if not body.stream:
        choices = [_choice(n, *text) for n, text in enumerate(await _complete(request, streams))]
        return json_response(head | {"choices": choices, "usage": _usage(streams)})
    with_usage = (body.stream_options or {}).get("include_usage") is True

    async def events() -> AsyncIterator[str]:
        async for number, text, reason in _merge(streams, settings_of(request).timeout_s):
            yield _event(head | {"choices": [_choice(number, text, reason)]})
        if with_usage:
            yield _event(head | {"choices": [], "usage": _usage(streams)})
        yield "data: [DONE]\n\n"

    return _EventStream(events(), streams)


def _arguments(most: int, sampling: dict[str, Any]) -> GenerationArguments:
    """Build generation arguments: greedy without sampling settings, or at a temperature near 0."""
    arguments: GenerationArguments = {"max_new_tokens": most}
    if sampling and sampling.get("temperature", 1.0) >= _GREEDY:
        arguments |= {"do_sample": True, "seed": secrets.randbelow(2**31), **sampling}  # type: ignore[typeddict-item]
    return arguments


async def _collect(streams: Sequence[TextStream], timeout: float) -> list[tuple[str, str]]:
    """Wait for the complete text of each stream, and its finish reason."""
    texts = []
    for stream in streams:
        pieces = [piece async for piece in stream.pieces(timeout)]
        texts.append(("".join(piece.text for piece in pieces), str(pieces[-1].finish_reason)))
    return texts


async def _merge(streams: Sequence[TextStream], timeout: float) -> AsyncIterator[tuple[int, str, str | None]]:
    """Yield the pieces of several streams as they arrive, each with the number of its stream."""
    found: asyncio.Queue[tuple[int, str, str | None] | Exception] = asyncio.Queue()

    async def follow(number: int, stream: TextStream) -> None:
        try:
            async for piece in stream.pieces(timeout):
                found.put_nowait((number, piece.text, piece.finish_reason))
        except Exception as error:
            found.put_nowait(error)

    tasks = [asyncio.create_task(follow(number, stream)) for number, stream in enumerate(streams)]
    unfinished = len(tasks)
    try:
        while unfinished:
            one = await found.get()
            if isinstance(one, Exception):
                raise one
            unfinished -= one[2] is not None
            yield one
    finally:
        for task in tasks:
            task.cancel()


class _EventStream(StreamingResponse):
    """Server-sent events of texts, which end with the response even if it is cancelled before its first event."""

    def __init__(self, events: AsyncIterator[str], streams: Sequence[TextStream]) -> None:
        super().__init__(_with_errors(events), media_type=_STREAM, headers={"Cache-Control": "no-store"})
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            _cancel(self._streams)


async def _with_errors(events: AsyncIterator[str]) -> AsyncIterator[str]:
    """Yield events; an exception becomes the last event."""
    try:
        async for event in events:
            yield event
    except ApiError as error:
        yield _event(error_body(error.status_code, error.detail, error.code))
    except Exception:
        yield _event(error_body(500, "an internal error, which the log of the server describes"))
        raise


def _cancel(streams: Sequence[TextStream]) -> None:
    for stream in streams:
        stream.cancelled = True


def _event(content: object) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


def _choice(number: int, text: str, reason: str | None) -> dict[str, object]:
    return {"index": number, "text": text, "logprobs": None, "finish_reason": reason}


def _usage(streams: Sequence[TextStream]) -> dict[str, int]:
    prompt = sum(stream.request.prompt_tokens for stream in streams)
    new = sum(stream.request.tokens for stream in streams)
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}
