"""Request bodies, the documentation of their routes, and waiting for results.

The state of an application has its `Models` and its `ServingSettings`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Annotated, Any, TypeVar

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_jsonable_python

from homespun.errors import nearest
from homespun.serving.errors import ApiError, error_responses
from homespun.serving.models import Models, ServedModel
from homespun.serving.settings import ServingSettings

B = TypeVar("B", bound=BaseModel)
R = TypeVar("R")
ModelName = Annotated[str | None, Field(description="name of the model; default: the first one")]


class Body(BaseModel):
    """Base of request bodies: no unknown fields, strict types."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: ModelName = None


def settings_of(request: Request) -> ServingSettings:
    """Return the settings of the server."""
    return request.app.state.settings


def get_model(request: Request, name: str | None) -> ServedModel:
    """Return a served model by name, see `Models.get`."""
    models: Models = request.app.state.models
    return models.get(name)


async def read_body(request: Request, kind: type[B]) -> B:
    """Read the JSON body of a request, whatever its content type.

    Raises:
        ApiError: invalid UTF-8 or JSON (400), wrong fields (422), too many bytes (413), too slow (408).
    """
    timeout = settings_of(request).timeout_s
    try:
        async with asyncio.timeout(timeout):
            body = await request.body()
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {timeout:g} s") from None
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _body_error(error, kind) from None


def _body_error(error: ValidationError, kind: type[BaseModel]) -> ApiError:
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    # a misspelt field is two errors: it is unknown, and the right one is missing
    unknown = [str(one["loc"][0]) for one in errors if one["type"] == "extra_forbidden" and len(one["loc"]) == 1]
    if unknown:
        missing = [str(one["loc"][0]) for one in errors if one["type"] == "missing" and len(one["loc"]) == 1]
        required = f" (required: {', '.join(missing)})" if missing else ""
        return ApiError(422, f"unknown field {unknown[0][:100]!r}{nearest(unknown[0], kind.model_fields)}{required}")
    first, *others = errors
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not valid JSON in UTF-8: {first['msg'].removeprefix('Invalid JSON: ')}")
    return ApiError(422, describe_problem(first["loc"], first["msg"], len(others)))


def describe_problem(location: tuple[int | str, ...], message: str, others: int) -> str:
    """Describe the first of several invalid fields in one line."""
    path = " ".join(".".join(map(str, location)).split())[:100] or "body"
    return f"{path}: {message.removeprefix('Value error, ')}" + (f" (and {others} more)" if others else "")


def describe_route(kind: type[BaseModel]) -> dict[str, Any]:
    """Return arguments of a route that reads its body by `read_body`, for the schema: the body and the errors."""
    body = {"required": True, "content": {"application/json": {"schema": kind.model_json_schema()}}}
    return {"openapi_extra": {"requestBody": body}, "responses": error_responses(404, 408, 409, 429, 504)}


async def wait_for(request: Request, future: asyncio.Future[R]) -> R:
    """Wait for a result; ``future`` is cancelled by the timeout or when the client disconnects.

    Raises:
        ApiError: the timeout has passed (504), or the client has disconnected (499).
    """
    timeout = settings_of(request).timeout_s
    gone = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait((future, gone), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if future.done():
            return future.result()
        if gone.done():
            raise ApiError(499, "the client has closed the connection")
        raise ApiError(504, f"no result after {timeout:g} s; send fewer or shorter texts, or try again later")
    finally:
        gone.cancel()
        future.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def json_response(content: object) -> Response:
    """Build a JSON response; NaN and infinity become null."""
    plain = to_jsonable_python(content, inf_nan_mode="null")
    text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    return Response(text.encode("utf-8", "replace"), media_type="application/json")
