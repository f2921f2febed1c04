"""The server's application: the API, folders next to it, and who may talk to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gemma4_compile.runtime.server.api_error import ApiError


def create_app(
    routes: Sequence[BaseRoute],
    *,
    hosts: Sequence[str] | None = None,
    origins: Sequence[str] = (),
    is_alive: Callable[[], bool] = lambda: True,
) -> Starlette:
    """Join routes into an application.

    Parameters
    ----------
    routes : `api_routes`, `folder_routes`, or both, the API's first
    hosts : host names that requests may be addressed to, against pages that let a name of theirs
        point here; None for any
    origins : origins whose pages may use the API besides those served here
    is_alive : whether the server can do what it is for, which `/health` reports
    """

    async def health(_request: Request) -> Response:
        if is_alive():
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "the engine has ended: start the server again"}, 503)

    middleware = []
    if hosts is not None:
        middleware.append(Middleware(_HostGuard, hosts=frozenset(hosts)))
    if origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(origins),
                allow_methods=["GET", "POST"],
                # Any: OpenAI's client for JavaScript sends a dozen of its own (`x-stainless-os`),
                # and none of them means anything here.
                allow_headers=["*"],
            )
        )
    return Starlette(
        routes=[Route("/health", health, methods=["GET"]), *routes],
        middleware=middleware,
        exception_handlers={HTTPException: _http_error},
    )


class _HostGuard:
    """Lets requests through that are addressed to one of some names."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = HTTPConnection(scope).headers.get("host", "")
            if _name(host) not in self._hosts:
                response = ApiError(421, f"this server does not answer for `{host}`").response()
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _name(host: str) -> str | None:
    """The name of a Host header, without port and brackets."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


async def _http_error(request: Request, error: Exception) -> Response:
    """Unknown paths and wrong methods, in the API's form."""
    assert isinstance(error, HTTPException), "registered for this class"
    message = f"{request.method} {request.url.path}: {error.detail}"
    response = ApiError(error.status_code, message).response()
    response.headers.update(error.headers or {})
    return response
