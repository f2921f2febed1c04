"""The protocol of the process that follows schemas, seen from the other end of its sockets."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from gemma4_compile.confined import frames, limits, schemas
from tests.scripted_engine import END_OF_TURN, VOCABULARY, encode, tiny_tokenizer

SIZES = json.dumps({"vocab_size": VOCABULARY, "stop": [1, END_OF_TURN], "control": []}).encode()
BOOLEAN = schemas.SCHEMA + b'{"type": "boolean"}'


class Server:
    """The process, and the near end of its control socket."""

    def __init__(self, tokenizer: str) -> None:
        self.control, far = socket.socketpair()
        self.control.settimeout(60)
        with far:
            self.process = subprocess.Popen(
                limits.command("schemas", str(far.fileno()), schemas.FORKING),
                cwd=limits.start_folder(),
                pass_fds=[far.fileno()],
            )
        frames.send(self.control, SIZES)
        frames.send(self.control, tokenizer.encode())
        self.answer = frames.receive(self.control)

    def connect(self) -> socket.socket:
        near, far = socket.socketpair()
        near.settimeout(60)
        with far:
            socket.send_fds(self.control, [b"x"], [far.fileno()])
        return near

    def close(self) -> None:
        self.control.close()
        try:
            self.process.wait(120)
        finally:
            self.process.kill()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server(tiny_tokenizer().to_str())
    assert made.answer == schemas.FINE
    yield made
    made.close()
    assert made.process.returncode == 0, "it ends with its control socket"


def ask(connection: socket.socket, message: bytes) -> bytes:
    frames.send(connection, message)
    return frames.receive(connection)


def allowed(connection: socket.socket, last: int = schemas.NO_TOKEN) -> set[int]:
    answer = ask(connection, schemas.TOKEN.pack(last))
    assert answer[:1] == schemas.FINE, answer
    bits = np.unpackbits(np.frombuffer(answer[1:], np.uint8), bitorder="little")
    return set(np.flatnonzero(bits[:VOCABULARY]).tolist())


def test_a_schema_is_followed_token_by_token(server: Server) -> None:
    true = encode("true")
    with server.connect() as connection:
        assert ask(connection, BOOLEAN) == schemas.FINE
        first = allowed(connection)
        assert true[0] in first
        assert not first & {*encode("x"), *encode("["), END_OF_TURN}
        for token, following in pairwise(true):
            assert following in allowed(connection, token)
        assert END_OF_TURN in allowed(connection, true[-1])


def test_a_grammar_is_followed_as_well(server: Server) -> None:
    with server.connect() as connection:
        assert ask(connection, schemas.LARK + b'start: "x"') == schemas.FINE
        assert allowed(connection) == set(encode("x"))


def test_connections_do_not_know_of_each_other(server: Server) -> None:
    with server.connect() as one, server.connect() as other:
        assert ask(one, BOOLEAN) == ask(other, BOOLEAN) == schemas.FINE
        before = allowed(other)
        allowed(one)
        assert allowed(one, encode("true")[0]) != before
    with server.connect() as last:
        assert ask(last, BOOLEAN) == schemas.FINE
        assert allowed(last) == before


@pytest.mark.parametrize(
    "message",
    [
        schemas.SCHEMA + b"{",
        schemas.SCHEMA + b'{"type": "nothing"}',
        schemas.SCHEMA + b"\xff",
        schemas.LARK + b"start: nowhere",
    ],
)
def test_what_is_no_schema_is_refused_with_a_reason(server: Server, message: bytes) -> None:
    with server.connect() as connection:
        answer = ask(connection, message)
        assert answer[:1] == schemas.REFUSED
        assert len(answer) > 5
        with pytest.raises(EOFError):
            frames.receive(connection)


def test_a_token_that_is_not_allowed_is_refused(server: Server) -> None:
    with server.connect() as connection:
        assert ask(connection, BOOLEAN) == schemas.FINE
        allowed(connection)
        answer = ask(connection, schemas.TOKEN.pack(encode("[")[0]))
        assert answer[:1] == schemas.REFUSED
        assert b"<state>" not in answer


def test_a_tokenizer_that_cannot_be_read_is_refused() -> None:
    server = Server("{}")
    assert server.answer[:1] == schemas.REFUSED
    assert len(server.answer) > 5
    server.close()
