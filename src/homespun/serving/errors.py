"""Request errors: a status and a JSON object, in the format of OpenAI's API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

_CODES = {
    400: "malformed_request",
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    408: "slow_body",
    409: "unsupported_by_model",
    413: "too_large",
    422: "invalid_value",
    429: "queue_full",
    499: "client_closed_request",
    500: "internal_error",
    503: "unavailable",
    504: "timeout",
}
RETRY_SECONDS = 1


class ApiError(HTTPException):
    """Error of a request: HTTP status, message in one line, and machine-readable ``code``, by default of the status."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        retry = {"Retry-After": str(RETRY_SECONDS)} if status in (429, 503) else None
        super().__init__(status, message, retry)
        self.code = code or _CODES.get(status, "error")


class ErrorDetail(BaseModel):
    """Content of an error."""

    message: str
    type: str
    code: str


class ErrorBody(BaseModel):
    """JSON object of an error."""

    error: ErrorDetail


def error_body(status: int, message: str, code: str | None = None) -> dict[str, dict[str, str]]:
    """Build the JSON object of an error."""
    kind = "invalid_request_error" if status < 500 and status != 429 else "server_error"
    kind = {401: "authentication_error", 429: "rate_limit_error"}.get(status, kind)
    return {"error": {"message": message, "type": kind, "code": code or _CODES.get(status, "error")}}


def error_response(
    status: int, message: str, code: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Build the response of an error."""
    body = json.dumps(error_body(status, message, code), ensure_ascii=False).encode("utf-8", "replace")
    return Response(body, status, headers, "application/json")


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Build ``responses`` of a route for its errors and those of every route."""
    return {
        status: {"model": ErrorBody, "description": HTTPStatus(status).phrase}
        for status in sorted({400, 401, 413, 422, 503, *statuses})
    }
