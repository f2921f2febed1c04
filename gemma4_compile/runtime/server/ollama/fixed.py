"""What Ollama's clients are told whatever model there is: the version, and what is not served."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.guard import Guarded

VERSION = "0.12.6"
"""Of Ollama, whose API this is: clients ask for the version before they use what it brought."""

_REFUSED = {
    "blobs/{rest:path}": "files are not taken",
    "copy": "models are packages, named where the server is started",
    "create": "models are made by gemma4-compile",
    "delete": "models are packages, named where the server is started",
    "embed": "this model makes replies, and no embeddings",
    "embeddings": "this model makes replies, and no embeddings",
    "pull": "models are fetched by gemma4-serve owner/name",
    "push": "models are published by gemma4-compile",
}


def fixed_routes(guarded: Guarded) -> list[BaseRoute]:
    """These routes; `guarded` is that of a `Guard`."""
    refused = [
        Route(
            f"/api/{name}",
            guarded(_refuse, refusal),
            methods=["GET", "HEAD", "POST", "DELETE"],
        )
        for name in _REFUSED
    ]
    # The `ollama` command asks so whether a server is there.
    heart = Route("/", guarded(_heartbeat, refusal), methods=["HEAD"])
    return [Route("/api/version", guarded(_version, refusal), methods=["GET"]), *refused, heart]


def refusal(error: ApiError) -> Response:
    """An error in the form that Ollama's clients read."""
    return error.response_of({"error": error.told})


async def _version(_: HttpRequest) -> Response:
    return JSONResponse({"version": VERSION})


async def _heartbeat(_: HttpRequest) -> Response:
    return Response()


async def _refuse(request: HttpRequest) -> Response:
    name = request.url.path.removeprefix("/api/")
    why = _REFUSED.get(name, _REFUSED["blobs/{rest:path}"])
    raise ApiError(400, f"/api/{name[:60]} is not served: {why}", code="unsupported_value")
