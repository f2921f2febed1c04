"""Ollama's endpoints: `/api/chat`, `/api/generate`, and what tells of the model."""

from __future__ import annotations

import hashlib

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.exchange import Asked, Exchange
from gemma4_compile.runtime.server.fields import Fields, Ignored
from gemma4_compile.runtime.server.messages import Tools
from gemma4_compile.runtime.server.ollama.answers import (
    OllamaAnswer,
    Shape,
    now,
    of_chat,
    of_generate,
)
from gemma4_compile.runtime.server.ollama.requests import (
    OllamaRequest,
    read_chat,
    read_generate,
)
from gemma4_compile.runtime.server.requests import LATEST, ChatRequest
from gemma4_compile.runtime.server.streams import ReplyStream, collected, finished, written
from gemma4_compile.types import JsonObject

VERSION = "0.12.6"
"""Of Ollama, whose API this is: clients ask for the version before they use what it brought."""

_REFUSED = {
    "blobs/{rest:path}": "files are not taken",
    "copy": "this server has one model",
    "create": "models are made by gemma4-compile",
    "delete": "this server has one model",
    "embed": "this package makes replies, and no embeddings",
    "embeddings": "this package makes replies, and no embeddings",
    "pull": "models are fetched by gemma4-serve owner/name",
    "push": "models are published by gemma4-compile",
}


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
            ("GET", "version", endpoints.version),
        )
    ]
    refused = [
        Route(
            f"/api/{name}",
            exchange.guarded(endpoints.refuse, refusal),
            methods=["GET", "HEAD", "POST", "DELETE"],
        )
        for name in _REFUSED
    ]
    # The `ollama` command asks so whether a server is there.
    heart = Route("/", exchange.guarded(endpoints.heartbeat, refusal), methods=["HEAD"])
    return [*served, *refused, heart]


def refusal(error: ApiError) -> Response:
    """An error in the form that Ollama's clients read."""
    return error.response_of({"error": error.message})


class _Ollama:
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._service = exchange.service
        self._since = now()

    async def chat(self, request: HttpRequest) -> Response:
        ignored = self._exchange.ignored()
        body = await self._exchange.body(request)
        defaults, most = self._service.model.defaults, self._exchange.limits.messages
        return await self._answer(
            request, read_chat(body, defaults, most, ignored), ignored, of_chat
        )

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
        answer = OllamaAnswer(model.name, shape, note=asked.note, tools=tools)
        if parsed.stream:
            return ReplyStream(written(reply, answer), asked.replies, "application/x-ndjson")
        events = await collected(request, reply)
        return JSONResponse(answer.whole(events, finished(reply)))

    async def tags(self, _: HttpRequest) -> Response:
        return JSONResponse({"models": [self._model() | {"modified_at": self._since}]})

    async def processes(self, _: HttpRequest) -> Response:
        running = {
            "expires_at": "9999-12-31T23:59:59Z",  # as Ollama says of what stays
            "size_vram": 0,
            "context_length": self._service.model.context_length,
        }
        return JSONResponse({"models": [self._model() | running]})

    async def heartbeat(self, _: HttpRequest) -> Response:
        return Response()

    async def version(self, _: HttpRequest) -> Response:
        return JSONResponse({"version": VERSION})

    async def show(self, request: HttpRequest) -> Response:
        fields = Fields(await self._exchange.body(request), ignored=self._exchange.ignored())
        fields.skip_unknown({"model", "name", "options", "system", "template", "verbose"}, {})
        name = fields.get("model", str) or fields.need("name", str)
        self._service.check_strict(name.removesuffix(LATEST))
        model = self._service.model
        return JSONResponse(
            {
                "modelfile": "",
                "parameters": "",
                "template": "",
                "details": _DETAILS,
                "model_info": {
                    "general.architecture": "gemma4",
                    "general.basename": model.name,
                    "gemma4.context_length": model.context_length,
                },
                "capabilities": self._capabilities(),
                "modified_at": self._since,
            }
        )

    async def refuse(self, request: HttpRequest) -> Response:
        name = request.url.path.removeprefix("/api/")
        why = _REFUSED.get(name, _REFUSED["blobs/{rest:path}"])
        raise ApiError(400, f"/api/{name[:60]} is not served: {why}", code="unsupported_value")

    def _capabilities(self) -> list[str]:
        """What Ollama's clients look for before they offer it."""
        model = self._service.model
        found = ["completion"]
        variables = frozenset() if model.template is None else model.template.variables
        for variable, name in (("tools", "tools"), ("enable_thinking", "thinking")):
            if variable in variables:
                found.append(name)
        if model.media.image is not None:
            found.append("vision")
        return found

    def _model(self) -> JsonObject:
        own = self._service.model.name
        name = own if ":" in own else own + LATEST  # pages ask for none but these
        return {
            "name": name,
            "model": name,
            "size": 0,
            "digest": hashlib.sha256(name.encode()).hexdigest(),
            "details": _DETAILS,
        }


_DETAILS: JsonObject = {
    "parent_model": "",
    "format": "gemma4-compile",
    "family": "gemma4",
    "families": ["gemma4"],
    "parameter_size": "",
    "quantization_level": "",
}
