"""Names that a server answers for, against pages of websites that let a name of theirs point here.

Such a page (DNS rebinding) is of one origin with this server for its browser, and reads whatever a
person at this machine can read. It gives itself away by the name in `Host`, which is the website's:
no website has an IP address or `localhost` for a name.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from gemma4_compile.errors import UsageError
from gemma4_compile.options.serve import allowed_hosts
from gemma4_compile.runtime.server.api_error import ApiError

EVERY_NAME = "*"
_LONGEST_NAME = 253  # of DNS
_HEADER = re.compile(r"(\[[^\[\]]*\]|[^:\[\]/?#@\s]+)(?::([0-9]{0,5}))?")
_PORTS = {"http": "80", "https": "443"}


@dataclass(frozen=True)
class HostNames:
    """Names besides IP addresses and `localhost`.

    Attributes
    ----------
    names : in small letters: `name`, `name:port`, `*.name` for all below it, or `*` for any
    """

    names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, host: str, allowed: Collection[str]) -> HostNames:
        """Those of a server that listens on `host`, and that were allowed."""
        return cls(frozenset({_plain(host), *allowed}))

    def answer_for(self, header: str) -> bool:
        """Return whether a request with this `Host` may be answered."""
        if EVERY_NAME in self.names:
            return True
        found = _HEADER.fullmatch(header)
        if found is None:
            return False
        if found[1].startswith("["):
            return _is_version_6(found[1][1:-1])
        name, port = _plain(found[1]), found[2]
        if _is_version_4(name) or name == "localhost" or name.endswith(".localhost"):
            return True
        if len(name) > _LONGEST_NAME or "" in name.split("."):
            return False
        above = [f"*{name[i:]}" for i, letter in enumerate(name) if letter == "." and i > 0]
        spellings = [name, *above]
        ports = [port] if port else _PORTS.values()  # a proxy in front may have either
        return any(
            each in self.names or any(f"{each}:{number}" in self.names for number in ports)
            for each in spellings
        )


class HostGuard:
    """Lets requests through that are addressed to this server by one of its names."""

    def __init__(self, app: ASGIApp, names: HostNames) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 421 in the application's place, or let it answer."""
        if scope["type"] != "lifespan":
            named = [v.decode("latin-1") for k, v in scope["headers"] if k.lower() == b"host"]
            # The whole address stands where the path should, as for a proxy: its name is the one.
            if scope["path"][:1] not in ("/", "*"):
                scope, name = _with_path(scope)
                named.append(name)
            wrong = [name for name in named or [""] if not self._names.answer_for(name)]
            if wrong:
                await _refusal(wrong[0]).response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _with_path(scope: Scope) -> tuple[Scope, str]:
    """The request with a path alone, and the name that stood before it."""
    _, _, rest = scope["path"].partition("://")
    name, slash, path = rest.partition("/")
    return {**scope, "path": slash + path or "/", "raw_path": (slash + path or "/").encode()}, name


def _refusal(header: str) -> ApiError:
    return ApiError(
        421,
        (
            f"this server does not answer for `{header[:_LONGEST_NAME]}`"
            if header
            else "the request names no host"
        )
        + f": ask it as localhost or by its IP address, or start it with --allow-host "
        f"{_allowable(header) or 'NAME'}; a proxy in front can send `Host: localhost`",
        code="unknown_host",
    )


def _allowable(header: str) -> str | None:
    """The name in a header, where --allow-host takes it."""
    found = _HEADER.fullmatch(header[: _LONGEST_NAME + len(":65535")])
    try:
        names = allowed_hosts([found[1]]) if found is not None and "*" not in found[1] else []
    except UsageError:
        return None
    return names[0] if names else None


def _plain(name: str) -> str:
    """A name in small letters, without the dot at the end."""
    return name.lower().removesuffix(".")


def _is_version_4(name: str) -> bool:
    """Return whether a name is an address, also as `127.1`: no browser takes such for a name."""
    try:
        socket.inet_aton(name)
    except (OSError, ValueError):
        return False
    return True


def _is_version_6(name: str) -> bool:
    """Return whether what stands in brackets is an address, with a zone or without one."""
    try:
        ipaddress.IPv6Address(name.partition("%")[0])
    except ValueError:
        return False
    return True
