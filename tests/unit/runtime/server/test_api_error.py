"""Errors as OpenAI's clients read them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from gemma4_compile.runtime.engine.sequence import Overflow
from gemma4_compile.runtime.server.api_error import ApiError


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "invalid_request_error"),
        (429, "invalid_request_error"),
        (500, "server_error"),
        (503, "server_error"),
    ],
)
def test_the_kind_follows_the_status(status: int, kind: str) -> None:
    assert ApiError(status, "x").kind == kind


def test_the_body_is_one_error_object() -> None:
    error = ApiError(400, "`n`: expected 1", param="n", code="unsupported_value")
    expected = {
        "error": {
            "message": "`n`: expected 1",
            "type": "invalid_request_error",
            "param": "n",
            "code": "unsupported_value",
        }
    }
    assert error.body() == expected
    response = error.response()
    assert response.status_code == 400
    assert json.loads(bytes(response.body)) == expected
    assert str(error) == "`n`: expected 1"


# What opencode and pi, CrewAI, litellm and Cline look for before they make a conversation shorter.
LOOKED_FOR = (
    "maximum context length is [0-9]+ tokens",
    "reduce the length of the messages",
    "maximum context length",
    "This model's maximum context length is",
    r"context\s*(?:length|window)",
)


def test_agents_find_the_words_of_a_prompt_that_does_not_fit() -> None:
    message = "it takes 600 tokens, and the context holds 512 tokens"
    for overflow, words in ((Overflow(600, 512), LOOKED_FOR), (None, LOOKED_FOR[1:])):
        error = ApiError(400, message, code="context_length_exceeded", overflow=overflow)
        body: Any = error.body()
        for told in (body["error"]["message"], error.told):
            assert told.endswith(f": {message}")
            assert all(re.search(each, told) for each in words)
    assert (
        "However, you requested 600 tokens"
        in ApiError(400, message, code="context_length_exceeded", overflow=Overflow(600, 512)).told
    )


def test_what_is_not_known_is_null() -> None:
    inner = ApiError(500, "x").body()["error"]
    assert isinstance(inner, dict)
    assert inner["param"] is inner["code"] is None


def test_names_from_a_request_cannot_steer_a_terminal() -> None:
    error = ApiError(400, "\x1b[2J" + "y" * 100_000, param="a\x1b[2Jb")
    assert "\x1b" not in error.message
    assert len(error.message) < 5000
    assert error.param == "a\\x1b[2Jb"


@pytest.mark.parametrize("status", [400, 401, 404, 408, 413, 429, 500, 503])
def test_a_client_learns_when_to_come_again_and_when_to_connect_anew(status: int) -> None:
    headers = ApiError(status, "x").response().headers
    assert ("retry-after" in headers) == (status in (429, 503))
    assert (headers.get("connection") == "close") == (status in (408, 413, 503))
