"""Messages over a socket: whole, in order, and never more than the limit."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from gemma4_compile.confined import frames

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    near, far = socket.socketpair()
    for end in (near, far):
        end.settimeout(10)
    with near, far:
        yield near, far


def test_messages_come_one_by_one_as_they_were_sent(pair: Pair) -> None:
    near, far = pair
    for content in (b"one", b"", b"\0two"):
        frames.send(near, content)
    assert [frames.receive(far) for _ in range(3)] == [b"one", b"", b"\0two"]


def test_a_message_may_be_larger_than_the_socket_holds(pair: Pair) -> None:
    near, far = pair
    content = bytes(range(256)) * 20_000
    sender = threading.Thread(target=frames.send, args=(near, content))
    sender.start()
    assert frames.receive(far) == content
    sender.join()


@pytest.mark.parametrize(
    "sent", [b"", b"\x05\0", struct.pack("<Q", 5), struct.pack("<Q", 5) + b"1234"]
)
def test_an_end_before_the_whole_message_is_an_error(pair: Pair, sent: bytes) -> None:
    near, far = pair
    near.sendall(sent)
    near.close()
    with pytest.raises(EOFError, match="gone"):
        frames.receive(far)


def test_a_message_that_is_too_long_is_refused_by_its_length(pair: Pair) -> None:
    near, far = pair
    near.sendall(struct.pack("<Q", frames.MAX_BYTES + 1))
    with pytest.raises(OSError, match="too long"):
        frames.receive(far)


def test_a_message_that_is_too_long_is_not_sent(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "MAX_BYTES", 3)
    near, far = pair
    with pytest.raises(OSError, match="too long"):
        frames.send(near, b"four")
    frames.send(near, b"six")
    assert frames.receive(far) == b"six"
