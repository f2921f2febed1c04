"""The server's application: the API, folders next to it, and who may talk to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.host_names import HostGuard, HostNames
from gemma4_compile.runtime.server.memory import MemoryReturner
from gemma4_compile.runtime.server.origins import OriginGuide
from gemma4_compile.runtime.server.paths import PathMender, methods_of, where_the_api_is
from gemma4_compile.runtime.server.request_ids import HEADERS, RequestIds
from gemma4_compile.types import JsonObject


def create_app(
    routes: Sequence[BaseRoute],
    *,
    hosts: HostNames | None = None,
    origins: Sequence[str] = (),
    is_alive: Callable[[], bool] = lambda: True,
    health: Callable[[Request], JsonObject] = lambda _: {},
    refuse: Callable[[Request, ApiError], Response] = lambda _, error: error.response(),
) -> Starlette:
    """Join routes into an application.

    Parameters
    ----------
    routes : `api_routes`, `folder_routes`, or both, the API's first
    hosts : host names that requests may be addressed to besides `localhost` and IP addresses
    origins : origins whose pages may use the API besides those served here
    is_alive : whether the server can do what it is for, which `/health` reports
    health : what it says besides to who sends a request
    refuse : tells of a path or a method that is not served
    """

    async def report(request: Request) -> Response:
        if is_alive():
            return JSONResponse({"status": "ok"} | health(request))
        return JSONResponse({"status": "the engine has ended: start the server again"}, 503)

    middleware = [
        Middleware(RequestIds),
        Middleware(MemoryReturner),
        Middleware(OriginGuide, origins=origins),
    ]
    if origins:  # before the names are looked at: a page can read only so why it is refused
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(origins),
                allow_methods=["GET", "POST", "DELETE"],
                # Any: OpenAI's client for JavaScript sends a dozen of its own (`x-stainless-os`),
                # and none of them means anything here.
                allow_headers=["*"],
                # Pages of the internet ask before they reach into a private network, or this
                # machine: they were allowed by name.
                allow_private_network=True,
                expose_headers=["Retry-After", *HEADERS],
            )
        )
    middleware.append(Middleware(HostGuard, names=hosts or HostNames()))
    middleware.append(Middleware(PathMender, routes=routes))
    served, methods = where_the_api_is(routes), methods_of(routes)

    async def http_error(request: Request, error: Exception) -> Response:
        """Unknown paths and wrong methods, in the API's form."""
        assert isinstance(error, HTTPException), "registered for this class"
        taken = methods.get(request.url.path)
        if error.status_code == HTTPStatus.NOT_FOUND and taken and request.method not in taken:
            # What a folder next to the API has no file of.
            allowed = {"Allow": ", ".join(sorted(taken))}
            error = HTTPException(HTTPStatus.METHOD_NOT_ALLOWED, headers=allowed)
        where = served if error.status_code == HTTPStatus.NOT_FOUND else ""
        message = f"{request.method} {request.url.path}: {error.detail}{where}"
        response = refuse(request, ApiError(error.status_code, message))
        response.headers.update(error.headers or {})
        return response

    return Starlette(
        routes=[Route("/health", report, methods=["GET"]), *routes],
        middleware=middleware,
        exception_handlers={HTTPException: http_error},
    )
