"""What `gemma4-serve` does for one package and for several: who may reach it, and until when."""

from __future__ import annotations

import socket
import webbrowser
from collections.abc import Callable, Sequence

import uvicorn
from starlette.requests import Request
from starlette.routing import BaseRoute

from gemma4_compile.options.process import warn
from gemma4_compile.options.serve import (
    API_KEY_VARIABLE,
    BODY_MIB,
    MEDIA_BODY_MIB,
    ServeOptions,
)
from gemma4_compile.runtime.package.room import Placement, Wish
from gemma4_compile.runtime.protocols import refuse
from gemma4_compile.runtime.server.address import address_of, is_loopback
from gemma4_compile.runtime.server.app import create_app
from gemma4_compile.runtime.server.body import Limits
from gemma4_compile.runtime.server.connections import connections_for, server_config
from gemma4_compile.runtime.server.host_names import EVERY_NAME, HostNames
from gemma4_compile.types import JsonObject

WAY_WITHOUT_KEY = "put a proxy that asks for a password in front"


def limits_of(options: ServeOptions, *, takes_media: bool) -> Limits:
    """Limits of one request."""
    mib = options.max_body_mib or (MEDIA_BODY_MIB if takes_media else BODY_MIB)
    return Limits(body_bytes=mib * 2**20)


def wish_of(options: ServeOptions, *, pages: bool) -> Wish:
    """What is asked of a package's memory; `pages`: it may be served without being loaded."""
    placement = Placement(options.ple, options.experts, options.expert_cache)
    return Wish(
        options.device,
        options.context_length,
        options.draft != 0,
        placement,
        pages=pages,
        sequences=options.slots or 1,
    )


def warn_of_strangers(
    options: ServeOptions, taken: socket.socket, key: str | None, *, is_for_browsers: bool
) -> None:
    """Say who can use what is served, where no key guards it."""
    if key is not None:
        return
    can = "read the package" if is_for_browsers else "use this server and read its replies"
    lacks = "" if is_for_browsers else ", and there is no key"
    way = WAY_WITHOUT_KEY if is_for_browsers else f"set the variable {API_KEY_VARIABLE}"
    if EVERY_NAME in options.allow_host:
        warn(
            f"every website that a browser near here opens can {can}: "
            f"--allow-host {EVERY_NAME} answers for any name{lacks}",
            f"name the hosts, or {way}",
        )
    if not is_loopback(taken):
        warn(
            f"everybody who reaches {options.host} can "
            + ("read the package" if is_for_browsers else "use this server: there is no key"),
            f"{way}, or listen on 127.0.0.1. It answers for its IP "
            "addresses; for other names with --allow-host NAME, since a name can be a website's",
        )


class _Server(uvicorn.Server):
    """Tells when it begins to stop, so that nothing keeps its connections open."""

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stop()
        await super().shutdown(sockets)


def listen(
    routes: Sequence[BaseRoute],
    taken: socket.socket,
    options: ServeOptions,
    *,
    opens: bool = False,
    on_stop: Callable[[], None] = lambda: None,
    is_alive: Callable[[], bool] = lambda: True,
    health: Callable[[Request], JsonObject] = lambda _: {},
) -> None:
    """Serve until interrupted; prints the address on stdout.

    Parameters
    ----------
    taken : listens on the options' host
    opens : open the address in the user's browser, too
    on_stop : called in the event loop when the server begins to stop
    is_alive : what `/health` reports
    health : what it says besides
    """
    hosts = HostNames.of(options.host, options.allow_host)
    origins = options.allow_origin
    app = create_app(
        routes, hosts=hosts, origins=origins, is_alive=is_alive, health=health, refuse=refuse
    )
    limits, lacking = connections_for(options.queue)
    if lacking:
        warn(
            f"this system lets a process open too few files: {limits.connections} connections are "
            f"served, {lacking} fewer than --queue {options.queue} needs",
            "let it open more (`ulimit -n`), or choose a shorter --queue",
        )
    config = server_config(app, limits, options.allow_origin, log_level="warning")
    address = address_of(taken, options.host)
    print(address, flush=True)
    if opens:
        webbrowser.open(address)
    _Server(config, on_stop).run([taken])
