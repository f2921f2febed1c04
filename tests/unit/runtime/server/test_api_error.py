"""Errors as OpenAI's clients read them."""

from __future__ import annotations

import json

import pytest

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
