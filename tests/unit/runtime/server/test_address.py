"""Addresses: taken at once, or refused with what to do."""

from __future__ import annotations

import errno
import socket

import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.server.address import (
    AddressError,
    address_of,
    is_loopback,
    take_address,
)
from gemma4_compile.system import sockets

LOCAL = "127.0.0.1"


def test_a_taken_address_accepts_connections() -> None:
    with take_address(LOCAL, 0) as taken:
        address = address_of(taken, LOCAL)
        port = int(address.removeprefix(f"http://{LOCAL}:"))
        with socket.create_connection((LOCAL, port), timeout=120):
            pass


def test_an_address_is_free_again_at_once() -> None:
    with take_address(LOCAL, 0) as taken:
        port = taken.getsockname()[1]
        with socket.create_connection((LOCAL, port), timeout=120), taken.accept()[0]:
            pass
    with take_address(LOCAL, port) as again:
        assert again.getsockname()[1] == port


def test_two_servers_do_not_share_a_port() -> None:
    with take_address(LOCAL, 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressError, match=f"port {port} of {LOCAL} is in use") as caught:
            take_address(LOCAL, port)
    assert "--port 0" in str(caught.value.hint)


def test_a_port_that_is_not_allowed_is_no_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(socket.socket):
        def bind(self, _: object) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "socket", Refusing)
    with pytest.raises(AddressError, match=f"port 80 of {LOCAL} is not allowed here"):
        take_address(LOCAL, 80)


@pytest.mark.parametrize("host", ["256.1.1.1", "192.0.2.1", "no such host", "a..b"])
def test_a_host_that_is_not_here_is_wrong_usage(host: str) -> None:
    with pytest.raises(UsageError, match=f"cannot listen on {host}:0: ") as caught:
        take_address(host, 0)
    assert "0.0.0.0" in str(caught.value.hint)


def test_addresses_of_version_6_are_shown_in_brackets() -> None:
    try:
        taken = take_address("::1", 0)
    except UsageError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with taken:
        assert address_of(taken, "::1") == f"http://[::1]:{taken.getsockname()[1]}"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.2", True),
        ("127.1", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
    ],
)
def test_what_only_this_machine_reaches(host: str, expected: bool) -> None:
    with take_address(host, 0) as taken:
        assert is_loopback(taken) == expected


def test_the_port_is_taken_as_this_system_keeps_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "alone", lambda: socket.SO_KEEPALIVE)  # any that can be read back
    with take_address(LOCAL, 0) as taken:
        assert taken.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert not taken.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
