"""Names that a server answers for, over real connections: what a website can have is refused."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemma4_compile.runtime.server.host_names import HostNames
from gemma4_compile.runtime.server.pages import folder_routes
from tests.live_server import LOCAL, Live, serving

NAMES = HostNames.of("0.0.0.0", ["host.docker.internal", "chat.example:8443", "*.tail.example"])


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    page: Path = tmp_path_factory.mktemp("page")
    (page / "index.html").write_text("<p>chat</p>")
    with serving(folder_routes(page, None), hosts=NAMES) as live:
        yield live


@pytest.mark.parametrize(
    "host",
    [
        "localhost:123",
        "LOCALHOST",
        "localhost.",
        "app.localhost:8000",
        "127.0.0.1",
        "127.1:8000",
        "2130706433",
        "192.168.1.5:8000",
        "[::1]:8000",
        "[fe80::1%25eth0]:8000",
        "[::FFFF:10.0.0.1]",
        "host.docker.internal",
        "Host.Docker.Internal.:8000",
        "chat.example:8443",
        "a.tail.example",
        "a.b.tail.example:443",
    ],
)
def test_addresses_and_names_that_were_allowed_are_answered(live: Live, host: str) -> None:
    assert live.request("GET", "/health", Host=host)[0] == 200
    assert live.request("GET", "/", Host=host)[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "",
        "[",
        "[]",
        "localhost.evil.example",
        "evil.example:127.0.0.1",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "evil.example#localhost",
        "notlocalhost",
        "host.docker.internal.evil.example",
        "docker.internal",
        "chat.example",
        "chat.example:8000",
        "tail.example",
        "eviltail.example",
        "*.tail.example.evil.example",
        "..tail.example",
        "127.0.0.1%evil.example",
        "[127.0.0.1]",
        "[localhost]",
        "[chat.tail.example]",
        "::1",
        "x" * 60_000,
        ".".join("a" * 30_000),
    ],
)
def test_a_name_that_points_here_is_refused(live: Live, host: str) -> None:
    for path in ("/health", "/"):
        sent = {"X_Forwarded_Host": "localhost", "Forwarded": "host=localhost"}
        status, _, body = live.request("GET", path, Host=host, **sent)
        assert status == 421
        assert len(body) < 2000
        assert json.loads(body)["error"]["code"] == "unknown_host"


def test_the_refusal_says_what_to_do(live: Live) -> None:
    _, _, body = live.request("GET", "/health", Host="Chat.Tailnet.example:8000")
    assert json.loads(body)["error"]["message"] == (
        "this server does not answer for `Chat.Tailnet.example:8000`: ask it as localhost or by "
        "its IP address, or start it with --allow-host chat.tailnet.example; a proxy in front can "
        "send `Host: localhost`"
    )


@pytest.mark.parametrize(
    "host",
    ["", ".chat.example", "%6cocalhost", "127.0.0.1..", "a b", "a\\b", "*", "u@chat.example"],
)
def test_the_refusal_names_no_option_that_would_be_refused(live: Live, host: str) -> None:
    _, _, body = live.request("GET", "/health", Host=host)
    message = json.loads(body)["error"]["message"]
    assert "start it with --allow-host NAME;" in message
    assert "``" not in message


def status_of(live: Live, head: str) -> int:
    with socket.create_connection((LOCAL, live.port), timeout=120) as connection:
        connection.sendall(f"{head}\r\n\r\n".encode())
        return int(connection.recv(4096).split()[1])


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example", 400),
        ("GET /health HTTP/1.1", 400),
        ("GET /health HTTP/1.0", 421),
        ("GET http://evil.example/health HTTP/1.1\r\nHost: localhost", 421),
        ("GET http://localhost/health HTTP/1.1\r\nHost: evil.example", 421),
        ("GET http://localhost/health HTTP/1.1\r\nHost: localhost", 200),
        ("GET http://localhost HTTP/1.1\r\nHost: localhost", 200),
        ("CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost", 421),
        ("GET evil.example HTTP/1.1\r\nHost: localhost", 421),
        ("OPTIONS * HTTP/1.1\r\nHost: evil.example", 421),
    ],
)
def test_a_request_has_one_name(live: Live, head: str, status: int) -> None:
    assert status_of(live, head) == status


def test_the_name_that_was_listened_on_is_answered_and_every_one_on_demand() -> None:
    names = HostNames.of("My-PC.lan", [])
    assert names.answer_for("my-pc.lan:8000")
    assert not names.answer_for("other.lan")
    assert not HostNames().answer_for("my-pc.lan")
    assert HostNames.of("127.0.0.1", ["*"]).answer_for("evil.example")
