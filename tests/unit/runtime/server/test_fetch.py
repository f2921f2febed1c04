"""Fetching from named hosts, with servers of this machine that behave badly."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from gemma4_compile.runtime.server.fetch import Fetcher, FetchError, FetchLimits

LOCAL = "127.0.0.1"
LIMITS = FetchLimits(most_bytes=100_000, seconds=60.0)
SHORT = FetchLimits(most_bytes=100_000, seconds=1.0)
PATIENCE_S = 120


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by the path."""

    def do_GET(self) -> None:
        with suppress(OSError):  # the client leaves when it has had enough
            self._answer()

    def _answer(self) -> None:
        assert isinstance(self.server, http.server.HTTPServer)
        port = self.server.server_port
        moves = {
            "/moved": "/fine",
            "/to-private": "http://10.0.0.1/fine",
            "/to-metadata": "http://169.254.169.254/latest",
            "/to-name": f"http://localhost:{port}/fine",
            "/to-file": "file:///etc/passwd",
            "/to-nowhere": "http://[::1",
            "/to-no-number": "http://[x]/",
            "/to-no-port": "http://a.example:99999/",
            "/round": "/round",
        }
        path = self.path.partition("?")[0]
        if path in moves:
            self.send_response(302)
            self.send_header("Location", moves[path])
            self.end_headers()
            return
        if path == "/missing":
            self.send_error(404)
            return
        self.send_response(200)
        if path == "/announced":
            self.send_header("Content-Length", "1000000000")
        if path == "/short":
            self.send_header("Content-Length", "1000")
        self.end_headers()
        if path == "/endless":
            while True:
                self.wfile.write(bytes(10_000))
        if path == "/slow":
            while True:
                self.wfile.write(b"x")
                time.sleep(0.05)
        self.wfile.write(f"{path} {self.headers['Host']}".encode())

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer((LOCAL, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def fetcher(port: int, *more: str, limits: FetchLimits = LIMITS) -> Fetcher:
    return Fetcher([f"{LOCAL}:{port}", *more], limits)


def test_a_named_host_is_asked(port: int) -> None:
    get = fetcher(port).get
    assert get(f"http://{LOCAL}:{port}/fine?a=b") == f"/fine {LOCAL}:{port}".encode()
    assert get(f"http://{LOCAL}:{port}/moved").startswith(b"/fine")


def test_a_name_is_asked_at_the_address_that_was_looked_at(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the connection a name may come to lead elsewhere."""
    asked = []
    connect = socket.create_connection

    def connected(address: tuple[str, int], timeout: float) -> socket.socket:
        asked.append(address[0])
        return connect((LOCAL, address[1]), timeout=timeout)

    monkeypatch.setattr(socket, "create_connection", connected)
    got = Fetcher([f"pictures.example:{port}"], LIMITS, lambda host, port: ["93.184.216.34"]).get(
        f"http://pictures.example:{port}/fine"
    )
    assert got == f"/fine pictures.example:{port}".encode()
    assert asked == ["93.184.216.34"]


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1%eth0",
        "fd00::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "2002:7f00:1::",
        "64:ff9b::7f00:1",
        "64:ff9b::10.0.0.1",
        "64:ff9b:1::93.184.216.34",
        "::127.0.0.1",
        "::93.184.216.34",
        "::ffff:0:127.0.0.1",
        "::ffff:0:93.184.216.34",
        "fec0::1",
        "2001:0:7f00:1::1",
        "2001:0:808:808:0:0:80ff:fffe",
        "2001:db8::1",
        "2606:4700::5efe:10.0.0.1",
        "2606:4700::200:5efe:127.0.0.1",
        "100::1",
        "ff02::1",
        "3fff::1",
        "192.0.0.9",
        "192.88.99.1",
        "168.63.129.16",
        "64:ff9b::168.63.129.16",
    ],
)
def test_a_name_that_leads_to_a_private_address_is_refused(address: str) -> None:
    public = ["93.184.216.34", address]
    for found in ([address], public):
        with pytest.raises(FetchError, match="no public address"):
            Fetcher(["a.example"], LIMITS, lambda host, port, found=found: found).get(  # type: ignore[misc]
                "http://a.example/"
            )


@pytest.mark.parametrize(
    "address",
    [
        "93.184.216.34",
        "2606:4700::1111",
        "64:ff9b::93.184.216.34",  # of a name, in a network that has version 6 alone
        "::ffff:93.184.216.34",
    ],
)
def test_a_name_that_leads_to_a_public_address_is_asked(
    port: int, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = socket.create_connection

    def connected(address: tuple[str, int], timeout: float) -> socket.socket:
        return connect((LOCAL, address[1]), timeout=timeout)

    monkeypatch.setattr(socket, "create_connection", connected)
    fetching = Fetcher([f"a.example:{port}"], LIMITS, lambda host, port: [address])
    assert fetching.get(f"http://a.example:{port}/fine").startswith(b"/fine")


def test_a_name_that_nobody_answers_for_is_left() -> None:
    gate = threading.Event()
    looked_up = []

    def silent(host: str, port: int) -> list[str]:
        looked_up.append(host)
        gate.wait(PATIENCE_S)
        return []

    limits = FetchLimits(seconds=60, lookup_seconds=0.2)
    fetching = Fetcher(["a.example"], limits, silent)
    for _ in range(10):
        with pytest.raises(FetchError, match=r"is not found within|too many names"):
            fetching.get("http://a.example/")
    assert len(looked_up) == 8  # no more threads than that wait
    gate.set()
    end = time.monotonic() + PATIENCE_S
    while True:
        with pytest.raises(FetchError) as caught:
            fetching.get("http://a.example/")
        if "has no address" in str(caught.value):
            break
        assert time.monotonic() < end


def test_an_address_that_never_answers_gives_way_to_the_next(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    connect = socket.create_connection

    def connected(address: tuple[str, int], timeout: float) -> socket.socket:
        asked.append(address[0])
        if address[0] != "93.184.216.34":
            time.sleep(timeout)  # as the system does
            raise TimeoutError("timed out")
        return connect((LOCAL, address[1]), timeout=timeout)

    monkeypatch.setattr(socket, "create_connection", connected)
    silent = ["2606:4700::1111", "2606:4700::1112"]
    limits = FetchLimits(seconds=60, connect_seconds=0.2)
    name = f"a.example:{port}"
    fetching = Fetcher([name], limits, lambda host, port: [*silent, "93.184.216.34"])
    assert fetching.get(f"http://{name}/fine").startswith(b"/fine")
    assert asked == [*silent, "93.184.216.34"]
    with pytest.raises(FetchError, match=r"no connection to `a\.example`: timed out"):
        Fetcher([name], limits, lambda host, port: silent).get(f"http://{name}/fine")
    asked.clear()
    limits = FetchLimits(seconds=0.5, connect_seconds=0.2)
    with pytest.raises(FetchError, match=r"within 0\.5 s"):
        Fetcher([name], limits, lambda host, port: silent * 50).get(f"http://{name}/fine")
    assert len(asked) <= 3


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("to-private", r"`10\.0\.0\.1:80` is not among the hosts"),
        ("to-metadata", r"`169\.254\.169\.254:80` is not among the hosts"),
        ("to-name", "is not among the hosts"),
        ("to-file", "expected an http or https address"),
        ("to-nowhere", "redirects to what is no address: Invalid IPv6 URL"),
        ("to-no-number", "no address"),
        ("to-no-port", "no address"),
        ("round", "more than 3 redirects"),
        ("missing", "status 404"),
        ("announced", "more than 100000 bytes"),
        ("endless", "more than 100000 bytes"),
        ("short", "too early"),
        ("slow", "within 1 s"),
    ],
)
def test_hosts_that_behave_badly_are_left(port: int, path: str, words: str) -> None:
    limits = SHORT if path == "slow" else LIMITS
    with pytest.raises(FetchError, match=words):
        fetcher(port, limits=limits).get(f"http://{LOCAL}:{port}/{path}")


def test_a_redirect_to_a_named_host_is_held_to_its_address(port: int) -> None:
    with pytest.raises(FetchError, match=r"`localhost` leads to .*, which is no public address"):
        fetcher(port, f"localhost:{port}").get(f"http://{LOCAL}:{port}/to-name")


def test_a_host_that_says_nothing_is_left() -> None:
    with socket.socket() as silent:
        silent.bind((LOCAL, 0))
        silent.listen()
        port = silent.getsockname()[1]
        for scheme in ("http", "https"):
            with pytest.raises(FetchError, match=r"within 1 s|timed out"):
                fetcher(port, limits=SHORT).get(f"{scheme}://{LOCAL}:{port}/")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://other.example/a.png", "not among the hosts that are allowed"),
        (f"http://{LOCAL}:1/a.png", "not among the hosts"),
        ("http://a.example:8080/", "`a.example:8080` is not among"),
        ("http://a.example@127.0.0.1/", "user's name"),
        ("http://user:secret@a.example/", "user's name"),
        ("ftp://a.example/", "http or https"),
        ("http:///a", "with a host"),
        ("http://[::1", "no address"),
        ("http://a.example:99999/", "no address"),
        ("http://a.example/\r\nHost: b", "printable ASCII|http"),
        ("http://a.example/a b", "printable ASCII"),
    ],
)
def test_other_addresses_are_refused(url: str, words: str) -> None:
    def never(host: str, port: int) -> list[str]:
        raise AssertionError(f"{host}:{port} was looked up")

    with pytest.raises(FetchError, match=words):
        Fetcher(["a.example"], LIMITS, never).get(url)


def test_a_name_that_does_not_exist_is_an_error() -> None:
    def missing(host: str, port: int) -> list[str]:
        raise OSError(f"no {host}:{port}")

    with pytest.raises(FetchError, match="is not found"):
        Fetcher(["a.example"], LIMITS, missing).get("http://a.example/")
