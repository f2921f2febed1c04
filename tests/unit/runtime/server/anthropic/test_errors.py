"""Errors in Anthropic's form: a kind for each status."""

from __future__ import annotations

import pytest

from gemma4_compile.runtime.engine.sequence import Overflow
from gemma4_compile.runtime.server.anthropic.errors import error_body
from gemma4_compile.runtime.server.api_error import ApiError


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (415, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
    ],
)
def test_the_kind_follows_from_the_status(status: int, kind: str) -> None:
    body = error_body(ApiError(status, "no"))
    assert body == {"type": "error", "error": {"type": kind, "message": "no"}}


@pytest.mark.parametrize(
    ("overflow", "told"), [(None, ""), (Overflow(600, 512), "600 tokens > 512 maximum: ")]
)
def test_clients_find_the_words_that_they_look_for(overflow: Overflow | None, told: str) -> None:
    message = "it takes 600 tokens or more, and the context holds 512 tokens"
    given = ApiError(400, message, code="context_length_exceeded", overflow=overflow)
    error = error_body(given)["error"]
    assert isinstance(error, dict)
    assert error["message"] == f"prompt is too long: {told}{message}"
