"""The address that a server listens on; taken before anything long begins."""

from __future__ import annotations

import errno
import ipaddress
import socket

from gemma4_compile.errors import Gemma4CompileError, UsageError
from gemma4_compile.system import sockets

_ANOTHER_PORT = "choose another with --port, or --port 0 for a free one"


class AddressError(Gemma4CompileError):
    """The machine does not give the address: it is taken, or not allowed."""


def take_address(host: str, port: int) -> socket.socket:
    """Listen on an address; from here on connections wait, and none is refused.

    Parameters
    ----------
    port : 0 for a free one

    Raises
    ------
    UsageError
        If the host is no address of this machine.
    AddressError
        If the port is in use or not allowed.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    try:
        taken.setsockopt(socket.SOL_SOCKET, sockets.alone(), 1)
        taken.bind((host, port))
        taken.listen()
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that no host can have
        taken.close()
        raise _explained(error, host, port) from error
    return taken


def _explained(error: Exception, host: str, port: int) -> Gemma4CompileError:
    number = getattr(error, "errno", None)
    if number == errno.EADDRINUSE:
        return AddressError(f"port {port} of {host} is in use", hint=_ANOTHER_PORT)
    if number == errno.EACCES:
        return AddressError(f"port {port} of {host} is not allowed here", hint=_ANOTHER_PORT)
    return UsageError(
        f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}",
        hint="--host takes an address of this machine: 127.0.0.1, or 0.0.0.0 for all of them",
    )


def address_of(taken: socket.socket, host: str) -> str:
    """The URL of what listens there."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{taken.getsockname()[1]}"


def is_loopback(taken: socket.socket) -> bool:
    """Return whether only this machine reaches what listens there, however it was spelled."""
    found = ipaddress.ip_address(taken.getsockname()[0].partition("%")[0])
    inner = found.ipv4_mapped if found.version == 6 else None
    return (inner or found).is_loopback
