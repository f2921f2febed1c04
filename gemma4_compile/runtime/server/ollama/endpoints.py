"""Ollama's endpoints: `/api/chat`, `/api/generate`, and what tells of the model."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from gemma4_compile.runtime.server.exchange import Asked, Exchange
from gemma4_compile.runtime.server.fields import Ignored
from gemma4_compile.runtime.server.messages import Tools
from gemma4_compile.runtime.server.ollama.answers import (
    OllamaAnswer,
    Shape,
    now,
    of_chat,
    of_generate,
)
from gemma4_compile.runtime.server.ollama.fixed import fixed_routes, refusal
from gemma4_compile.runtime.server.ollama.lists import asked_name, processes, shown, tags
from gemma4_compile.runtime.server.ollama.requests import (
    OllamaRequest,
    read_chat,
    read_generate,
)
from gemma4_compile.runtime.server.requests import ChatRequest
from gemma4_compile.runtime.server.streams import ReplyStream, collected, finished, written


def ollama_routes(exchange: Exchange) -> list[BaseRoute]:
    """The routes of the protocol."""
    endpoints = _Ollama(exchange)
    served = [
        Route(f"/api/{name}", exchange.guarded(endpoint, refusal), methods=[method])
        for method, name, endpoint in (
            ("POST", "chat", endpoints.chat),
            ("POST", "generate", endpoints.generate),
            ("POST", "show", endpoints.show),
            ("GET", "tags", endpoints.tags),
            ("GET", "ps", endpoints.processes),
        )
    ]
    return [*served, *fixed_routes(exchange.guarded)]


class _Ollama:
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._service = exchange.service
        self._since = now()

    async def chat(self, request: HttpRequest) -> Response:
        ignored = self._exchange.ignored()
        body = await self._exchange.body(request)
        defaults, most = self._service.model.defaults, self._exchange.limits.messages
        parsed = await self._exchange.understood(
            request, body, lambda: read_chat(body, defaults, most, ignored)
        )
        return await self._answer(request, parsed, ignored, of_chat)

    async def generate(self, request: HttpRequest) -> Response:
        ignored = self._exchange.ignored()
        body = await self._exchange.body(request)
        parsed = read_generate(body, self._service.model.defaults, ignored)
        return await self._answer(request, parsed, ignored, of_generate)

    async def _answer(
        self, request: HttpRequest, parsed: OllamaRequest, ignored: Ignored, shape: Shape
    ) -> Response:
        model, wanted = self._service.model, parsed.asked
        if wanted is None:
            self._service.check_strict(parsed.model)
            reason = "unload" if parsed.unloads else "load"
            return JSONResponse(OllamaAnswer(model.name, shape).without_reply(reason))
        tools: Tools = ()
        if isinstance(wanted, ChatRequest):
            asked: Asked = await self._exchange.chat(request, wanted, ignored)
            tools = wanted.tools
        else:
            (asked,) = await self._exchange.texts(request, [wanted], ignored)
        (reply,) = asked.replies
        answer = OllamaAnswer(
            model.name, shape, note=asked.note, tools=tools, logprobs=reply.logprobs
        )
        if parsed.stream:
            return ReplyStream(written(reply, answer), asked.replies, "application/x-ndjson")
        events = await collected(request, reply)
        return JSONResponse(answer.whole(events, finished(reply)))

    async def tags(self, _: HttpRequest) -> Response:
        return JSONResponse(tags([self._service.model.card], self._since))

    async def processes(self, _: HttpRequest) -> Response:
        return JSONResponse(processes([self._service.model.card]))

    async def show(self, request: HttpRequest) -> Response:
        name = asked_name(await self._exchange.body(request), self._exchange.ignored())
        self._service.check_strict(name)
        return JSONResponse(shown(self._service.model.card, self._since))
