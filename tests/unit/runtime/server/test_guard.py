"""What endpoints of every protocol share: who asks, by which key."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request

from gemma4_compile.runtime.server.guard import client_of


def request(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw, "client": ("127.0.0.1", 1)})


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({}, ""),
        ({"authorization": "Bearer  k "}, "k"),
        ({"authorization": "bearer k", "x_api_key": "other"}, "k"),
        ({"x_api_key": "k"}, "k"),
        ({"authorization": "Basic k"}, ""),
    ],
)
def test_a_client_is_known_by_its_key_in_either_header(headers: Any, key: str) -> None:
    assert client_of(request(**headers)) == ("127.0.0.1 ", key)


def test_clients_of_a_proxy_are_told_apart() -> None:
    one, other = (client_of(request(x_forwarded_for=name)) for name in ("10.0.0.1", "10.0.0.2"))
    assert one != other
