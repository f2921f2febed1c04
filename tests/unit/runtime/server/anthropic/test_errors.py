"""Errors in Anthropic's form: a kind for each status."""

from __future__ import annotations

import pytest

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


def test_clients_find_the_words_that_they_look_for() -> None:
    body = error_body(ApiError(400, "takes 600 tokens", code="context_length_exceeded"))
    error = body["error"]
    assert isinstance(error, dict)
    assert error["message"] == "prompt is too long: takes 600 tokens"
