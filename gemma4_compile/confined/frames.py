"""Messages of bounded length over a socket, each after its length."""

from __future__ import annotations

import socket
import struct

_LENGTH = struct.Struct("<Q")


def send(connection: socket.socket, content: bytes) -> None:
    """Send one message."""
    connection.sendall(_LENGTH.pack(len(content)) + content)


def receive(connection: socket.socket) -> bytes:
    """Wait for one message; EOFError if the other side has gone."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    pieces = bytearray()
    while len(pieces) < count:
        piece = connection.recv(min(count - len(pieces), 1 << 20))
        if not piece:
            raise EOFError("the other side has gone")
        pieces += piece
    return bytes(pieces)
