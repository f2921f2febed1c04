"""Errors in the form that Anthropic's clients read."""

from __future__ import annotations

import re

from starlette.responses import Response

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.types import JsonObject

# What PromptBuilder, Service and ContextFullError say of a prompt that does not fit.
_TOKENS = re.compile(r"takes (?:more than )?([0-9]+) tokens\b.*the context holds ([0-9]+)")
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_body(error: ApiError) -> JsonObject:
    """The error object, as a body or as an event of a stream."""
    kind = _KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    message = error.message
    if error.code == "context_length_exceeded":
        message = f"prompt is too long: {_in_numbers(message)}{message}"
    return {"type": "error", "error": {"type": kind, "message": message}}


def _in_numbers(message: str) -> str:
    """How long it is and may be, as Anthropic's servers say it: clients make so much room.

    A prompt that is not read to its end has at least so many tokens.
    """
    found = _TOKENS.search(message)
    return "" if found is None else f"{found[1]} tokens > {found[2]} maximum: "


def refusal(error: ApiError) -> Response:
    """The whole answer."""
    return error.response_of(error_body(error))
