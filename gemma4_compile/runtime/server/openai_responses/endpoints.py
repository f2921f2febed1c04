"""`/v1/responses`, and the responses that are stored."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from gemma4_compile.runtime.reply.reply import MarkIds
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.exchange import Exchange, client_of
from gemma4_compile.runtime.server.fields import Ignored
from gemma4_compile.runtime.server.openai_responses.answers import ResponseAnswer
from gemma4_compile.runtime.server.openai_responses.requests import (
    ResponseRequest,
    read_response_request,
)
from gemma4_compile.runtime.server.openai_responses.store import ResponseStore
from gemma4_compile.runtime.server.streams import ReplyStream, collected, finished, written
from gemma4_compile.types import JsonObject


def response_routes(exchange: Exchange) -> list[BaseRoute]:
    """The routes of the protocol."""
    endpoints = _Responses(exchange)
    return [
        Route(path, exchange.guarded(endpoint), methods=[method])
        for method, path, endpoint in (
            ("POST", "/v1/responses", endpoints.create),
            ("POST", "/v1/responses/input_tokens", endpoints.count),
            ("GET", "/v1/responses/{id}", endpoints.show),
            ("DELETE", "/v1/responses/{id}", endpoints.forget),
            ("POST", "/v1/responses/{id}/cancel", endpoints.refuse_cancel),
        )
    ]


class _Responses:
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._store = ResponseStore()

    async def create(self, request: HttpRequest) -> Response:
        parsed, ignored = await self._read(request)
        asked = await self._exchange.chat(request, parsed.chat, ignored)
        (reply,) = asked.replies
        model, tenant = self._exchange.service.model, _tenant(request)

        def keep(response: JsonObject) -> None:
            if parsed.stored:
                output = response["output"]
                assert isinstance(output, list), "of `ResponseAnswer`"
                self._store.keep(response, [*parsed.items, *output], tenant)

        answer = ResponseAnswer(
            model.name,
            parsed.echoed,
            keep,
            note=asked.note,
            tools=parsed.chat.tools,
            forms=parsed.forms,
            logprobs=reply.logprobs,
            marks=MarkIds.of(model.tokenizer),
        )
        if parsed.chat.stream:
            return ReplyStream(written(reply, answer), asked.replies)
        events = await collected(request, reply)
        return JSONResponse(answer.whole(events, finished(reply)))

    async def count(self, request: HttpRequest) -> Response:
        parsed, ignored = await self._read(request)
        self._exchange.service.note_about(parsed.chat, ignored)
        prompt = await self._exchange.prompt(request, parsed.chat)
        return JSONResponse({"object": "response.input_tokens", "input_tokens": len(prompt)})

    async def show(self, request: HttpRequest) -> Response:
        if request.query_params.get("stream", "false") == "true":
            why = "`stream`: a stored response is answered whole"
            raise ApiError(400, why, param="stream", code="unsupported_value")
        stored = self._store.find(request.path_params["id"], _tenant(request))
        return JSONResponse(stored.response)

    async def forget(self, request: HttpRequest) -> Response:
        name = request.path_params["id"]
        self._store.forget(name, _tenant(request))
        return JSONResponse({"id": name, "object": "response", "deleted": True})

    async def refuse_cancel(self, _: HttpRequest) -> Response:
        why = "no response runs in the background: close the connection of one that runs"
        raise ApiError(400, why, code="unsupported_value")

    async def _read(self, request: HttpRequest) -> tuple[ResponseRequest, Ignored]:
        body = await self._exchange.body(request)
        ignored, tenant = self._exchange.ignored(), _tenant(request)
        parsed = read_response_request(
            body,
            self._exchange.service.model.defaults,
            self._exchange.limits.messages,
            lambda name: self._store.find(name, tenant, "previous_response_id").items,
            ignored,
            lambda name, param: self._store.find_item(name, tenant, param),
        )
        return parsed, ignored


def _tenant(request: HttpRequest) -> str:
    """The key that was brought: addresses change, and nobody guesses an id."""
    return client_of(request)[1]
