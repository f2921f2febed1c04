"""Messages of bounded length over a socket, each after its length."""

from __future__ import annotations

import errno
import os
import socket
import struct

MAX_BYTES = 256 << 20  # twice the longest tokenizer.json

_LENGTH = struct.Struct("<Q")


def send(connection: socket.socket, content: bytes) -> None:
    """Send one message; OSError if it is too long."""
    _check(len(content))
    connection.sendall(_LENGTH.pack(len(content)) + content)


def receive(connection: socket.socket) -> bytes:
    """Wait for one message; EOFError if the other side has gone, OSError if it is too long."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    _check(length)
    return _exactly(connection, length)


def _check(length: int) -> None:
    if length > MAX_BYTES:
        raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))


def _exactly(connection: socket.socket, count: int) -> bytes:
    pieces = bytearray()
    while len(pieces) < count:
        piece = connection.recv(min(count - len(pieces), 1 << 20))
        if not piece:
            raise EOFError("the other side has gone")
        pieces += piece
    return bytes(pieces)
