"""The responses that are kept: shown again, and forgotten."""

from __future__ import annotations

import asyncio

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.body import beside_in_turn
from gemma4_compile.runtime.server.guard import Guarded, client_of
from gemma4_compile.runtime.server.openai_responses.input_items import page_of
from gemma4_compile.runtime.server.openai_responses.store import ResponseStore

_SHOWN_AT_A_TIME = 4  # values of Python take 30 times their bytes


def stored_routes(store: ResponseStore, guarded: Guarded) -> list[BaseRoute]:
    """The routes of a store, for which no model is needed."""
    endpoints = _Stored(store)
    return [
        Route(path, guarded(endpoint), methods=[method])
        for method, path, endpoint in (
            ("GET", "/v1/responses/{id}", endpoints.show),
            ("DELETE", "/v1/responses/{id}", endpoints.forget),
            ("GET", "/v1/responses/{id}/input_items", endpoints.list_input),
            ("POST", "/v1/responses/{id}/cancel", endpoints.refuse_cancel),
            ("POST", "/v1/responses/compact", endpoints.refuse_compaction),
        )
    ]


def tenant_of(request: HttpRequest) -> str:
    """The key that was brought: addresses change, and nobody guesses an id."""
    return client_of(request)[1]


class _Stored:
    def __init__(self, store: ResponseStore) -> None:
        self._store = store
        self._turns = asyncio.Semaphore(_SHOWN_AT_A_TIME)

    async def show(self, request: HttpRequest) -> Response:
        if request.query_params.get("stream", "false") == "true":
            why = "`stream`: a stored response is answered whole"
            raise ApiError(400, why, param="stream", code="unsupported_value")
        stored = self._store.find(request.path_params["id"], tenant_of(request))
        return await beside_in_turn(self._turns, lambda: JSONResponse(stored.response))

    async def list_input(self, request: HttpRequest) -> Response:
        stored = self._store.find(request.path_params["id"], tenant_of(request))
        query = request.query_params
        return await beside_in_turn(
            self._turns, lambda: JSONResponse(page_of(stored.input_items, query))
        )

    async def forget(self, request: HttpRequest) -> Response:
        name = request.path_params["id"]
        self._store.forget(name, tenant_of(request))
        return JSONResponse({"id": name, "object": "response", "deleted": True})

    async def refuse_cancel(self, _: HttpRequest) -> Response:
        why = "no response runs in the background: close the connection of one that runs"
        raise ApiError(400, why, code="unsupported_value")

    async def refuse_compaction(self, _: HttpRequest) -> Response:
        why = "is not served: conversations are not made shorter here, ask for a summary in words"
        raise ApiError(404, f"/v1/responses/compact {why}")
