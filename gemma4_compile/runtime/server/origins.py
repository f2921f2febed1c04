"""Tells people whose page may not use the API how to let it: browsers do not say why."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gemma4_compile.errors import UsageError
from gemma4_compile.options.serve import allowed_origins
from gemma4_compile.runtime.server.api_error import ApiError

_log = logging.getLogger("gemma4_compile.serve")
_MOST_TOLD = 8  # origins of which the log tells; any page may ask
_LONGEST = 100


class OriginGuide:
    """Refuses preflights of origins that are not allowed, and says what would allow them.

    The answer is for who looks into it with a browser's tools, the log for who started the server.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        """Prepare; `origins` are those that are allowed."""
        self._app, self._origins = app, frozenset(origins)
        self._told: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 400 in the application's place, or let it answer."""
        origin = _asking_origin(scope)
        if origin is None or "*" in self._origins or origin in self._origins:
            await self._app(scope, receive, send)
            return
        message = _refusal(origin)
        if message not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(message)
            _log.warning(message)
        await ApiError(400, message, code="unknown_origin").response()(scope, receive, send)


def _asking_origin(scope: Scope) -> str | None:
    """The origin of a page that asks whether it may send a request; None for anything else."""
    if scope["type"] != "http" or scope["method"] != "OPTIONS":
        return None
    headers = Headers(scope=scope)
    return headers.get("origin") if "access-control-request-method" in headers else None


def _refusal(origin: str) -> str:
    if origin == "null":  # of files, and of whatever else browsers give no name
        return (
            "pages without an origin, such as files, may not use this API: serve the page, and "
            "start the server with --allow-origin for that address"
        )
    try:
        names = allowed_origins([origin]) if len(origin) <= _LONGEST and origin != "*" else []
    except UsageError:
        names = []
    if not names:
        return "a page of no origin that can be allowed may not use this API"
    return (
        f"pages of {names[0]} may not use this API: if they should, start the server with "
        f"--allow-origin {names[0]}"
    )
