"""`/v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from gemma4_compile.runtime.server.anthropic.answers import MessageAnswer
from gemma4_compile.runtime.server.anthropic.errors import refusal
from gemma4_compile.runtime.server.anthropic.requests import MessagesRequest, read_messages_request
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.exchange import Exchange
from gemma4_compile.runtime.server.fields import Ignored
from gemma4_compile.runtime.server.guard import Guarded
from gemma4_compile.runtime.server.streams import ReplyStream, collected, finished, written


def message_routes(exchange: Exchange) -> list[BaseRoute]:
    """The routes of the protocol."""
    endpoints = _Messages(exchange)
    served: list[BaseRoute] = [
        Route(path, exchange.guarded(endpoint, refusal), methods=["POST"])
        for path, endpoint in (
            ("/v1/messages", endpoints.create),
            ("/v1/messages/count_tokens", endpoints.count),
        )
    ]
    return [*served, *batch_routes(exchange.guarded)]


def batch_routes(guarded: Guarded) -> list[BaseRoute]:
    """The routes of batches, which say that there are none."""
    return [
        Route(path, guarded(_refuse_batch, refusal), methods=["DELETE", "GET", "POST"])
        for path in ("/v1/messages/batches", "/v1/messages/batches/{rest:path}")
    ]


async def _refuse_batch(_: HttpRequest) -> Response:
    """Answer that there are no batches."""
    raise ApiError(404, "batches are not served: send each request to /v1/messages")


class _Messages:
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def create(self, request: HttpRequest) -> Response:
        parsed, ignored = await self._read(request)
        asked = await self._exchange.chat(request, parsed.chat, ignored)
        (reply,) = asked.replies
        answer = MessageAnswer(
            self._exchange.service.model.name,
            len(asked.prompt),
            asked.note,
            parsed.chat.tools,
            shows_thinking=parsed.shows_thinking,
        )
        if parsed.chat.stream:
            return ReplyStream(written(reply, answer), asked.replies)
        events = await collected(request, reply)
        return JSONResponse(answer.whole(events, finished(reply)))

    async def count(self, request: HttpRequest) -> Response:
        parsed, ignored = await self._read(request, counts=True)
        self._exchange.service.note_about(parsed.chat, ignored)
        prompt = await self._exchange.prompt(request, parsed.chat)
        return JSONResponse({"input_tokens": len(prompt)})

    async def _read(
        self, request: HttpRequest, *, counts: bool = False
    ) -> tuple[MessagesRequest, Ignored]:
        body = await self._exchange.body(request)
        ignored = self._exchange.ignored()
        defaults, most = self._exchange.service.model.defaults, self._exchange.limits.messages
        parsed = await self._exchange.understood(
            request,
            body,
            lambda: read_messages_request(body, defaults, most, ignored, counts=counts),
        )
        return parsed, ignored
