"""An id for each request, by which a client's log and the server's are compared.

OpenAI's clients read `x-request-id` and Anthropic's `request-id`, and both show it with an error.
"""

from __future__ import annotations

import re
import uuid
from contextvars import ContextVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = ("X-Request-Id", "Request-Id")
"""Of an answer."""
_GIVEN = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)
_current: ContextVar[str | None] = ContextVar("request_id", default=None)


def request_id() -> str | None:
    """The id of the request that is answered; None outside of one."""
    return _current.get()


class RequestIds:
    """Gives each request an id, or leaves it the one that a proxy or its client gave it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as the application does, with the id among the headers."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADERS[0], "")
        name = given if _GIVEN.fullmatch(given) else f"req_{uuid.uuid4().hex}"

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for header in HEADERS:
                    headers[header] = name
            await send(message)

        token = _current.set(name)
        try:
            await self._app(scope, receive, named)
        finally:
            _current.reset(token)
