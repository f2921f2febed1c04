"""Handing sockets to other processes: to one that is started, and over a socket."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


def alone() -> int:
    """The option of a socket that listens: no other one gets its port, but after its end at once.

    Windows' option of POSIX's name would let another program take the port over.
    """
    return getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)


FROM_STDIN = "-"
"""In place of a descriptor's number: the socket is described on stdin."""


def start_with(
    command: Callable[[str], Sequence[str]],
    far: socket.socket,
    directory: Path,
    environment: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    """Start a silent process that has one end of a pair.

    Parameters
    ----------
    command : is given what `inherited` takes there
    """
    if sys.platform == "win32":
        process = subprocess.Popen(
            command(FROM_STDIN),
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        hand_over(process, far.share(process.pid))
        return process
    return subprocess.Popen(
        command(str(far.fileno())),
        cwd=directory,
        env=environment,
        pass_fds=[far.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # panics: what matters of them is sent
    )


def hand_over(process: subprocess.Popen[bytes], description: bytes) -> None:
    """Write a socket's description to a process that reads FROM_STDIN; one that ended has none."""
    assert process.stdin is not None, "a pipe, by who started it"
    try:
        with process.stdin as stdin:
            stdin.write(description)
    except OSError:
        pass  # it has ended, which its socket says as well


def inherited(argument: str) -> socket.socket:
    """The socket that this process was started with."""
    if sys.platform == "win32":
        return socket.fromshare(sys.stdin.buffer.read())
    return socket.socket(fileno=int(argument))


def send_descriptor(control: socket.socket, sent: socket.socket) -> None:
    """Send a socket over a socket of this machine; OSError if that cannot be."""
    if sys.platform == "win32":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    socket.send_fds(control, [b"x"], [sent.fileno()])


def receive_descriptor(control: socket.socket) -> Sequence[int]:
    """What was sent, or nothing when the other end has gone."""
    if sys.platform == "win32":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
    return descriptors
