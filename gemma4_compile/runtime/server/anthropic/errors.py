"""Errors in the form that Anthropic's clients read."""

from __future__ import annotations

from starlette.responses import Response

from gemma4_compile.runtime.server.api_error import TOO_LONG, ApiError
from gemma4_compile.runtime.server.request_ids import request_id
from gemma4_compile.types import JsonObject

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


NO_THREADS = "thread_unsupported_request"
"""The code of a conversation that the server is asked to hold: clients then send all of it."""


def error_body(error: ApiError) -> JsonObject:
    """The error object, as a body or as an event of a stream."""
    kind = _KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    message = error.message
    if error.code == TOO_LONG:
        message = f"prompt is too long: {_in_numbers(error)}{message}"
    name = request_id()
    found: JsonObject = {"type": kind, "message": message}
    if error.code == NO_THREADS:
        found["details"] = {"error_code": NO_THREADS, "unsupported": [str(error.param)]}
    told: JsonObject = {"type": "error", "error": found}
    return told if name is None else told | {"request_id": name}


def _in_numbers(error: ApiError) -> str:
    """How long it is and may be, as Anthropic's servers say it: clients make so much room."""
    found = error.overflow
    return "" if found is None else f"{found.tokens} tokens > {found.most} maximum: "


def refusal(error: ApiError) -> Response:
    """The whole answer."""
    return error.response_of(error_body(error))
