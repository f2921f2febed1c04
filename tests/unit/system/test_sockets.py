"""Sockets in other hands; how Windows describes one is seen on Windows alone."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gemma4_compile.system import sockets

ANSWER = """
import sys
from gemma4_compile.system import sockets
with sockets.inherited(sys.argv[1]) as near:
    near.sendall(b"here")
"""
DESCRIBED = "import sys; sys.exit(sys.stdin.buffer.read() != bytes(range(256)))"


def test_a_process_is_started_with_a_socket(tmp_path: Path) -> None:
    near, far = socket.socketpair()
    with far:
        process = sockets.start_with(
            lambda end: [sys.executable, "-c", ANSWER, end], far, tmp_path, {}
        )
    with near:
        near.settimeout(30)
        assert near.recv(10) == b"here"
    assert process.wait(120) == 0


def test_a_description_arrives_whole_and_ends() -> None:
    process = subprocess.Popen([sys.executable, "-c", DESCRIBED], stdin=subprocess.PIPE)
    sockets.hand_over(process, bytes(range(256)))
    assert process.wait(120) == 0


def test_a_process_that_has_ended_takes_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE)
    process.wait(120)
    sockets.hand_over(process, b"x" * (1 << 20))


def test_a_socket_is_sent_over_a_socket() -> None:
    control, other = socket.socketpair()
    near, far = socket.socketpair()
    with control, other, near, far:
        sockets.send_descriptor(control, far)
        (descriptor,) = sockets.receive_descriptor(other)
        with socket.socket(fileno=descriptor) as received:
            received.sendall(b"through")
        assert near.recv(10) == b"through"
        control.close()
        assert list(sockets.receive_descriptor(other)) == []


def test_windows_option_keeps_a_port_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sockets.alone() == socket.SO_REUSEADDR  # after its end; two at once POSIX refuses anyway
    monkeypatch.setattr(socket, "SO_EXCLUSIVEADDRUSE", -5, raising=False)
    assert sockets.alone() == -5
