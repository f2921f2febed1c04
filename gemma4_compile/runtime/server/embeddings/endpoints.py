"""Endpoints of an encoder: `/v1/embeddings`, `/api/embed`, and what tells of the model."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from gemma4_compile.runtime.embedding.embedder import Float32Array
from gemma4_compile.runtime.server.anthropic.errors import refusal as of_anthropic
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.body import BodyReader, Limits
from gemma4_compile.runtime.server.cards import card_list, card_object, no_replies
from gemma4_compile.runtime.server.embeddings.requests import (
    EmbeddingRequest,
    read_embed,
    read_openai,
    read_prompt,
)
from gemma4_compile.runtime.server.embeddings.service import Embedded, EmbeddingService
from gemma4_compile.runtime.server.fields import Ignored
from gemma4_compile.runtime.server.guard import Guard, Refusal
from gemma4_compile.runtime.server.metrics import slots_object
from gemma4_compile.runtime.server.ollama.answers import now
from gemma4_compile.runtime.server.ollama.fixed import fixed_routes
from gemma4_compile.runtime.server.ollama.fixed import refusal as of_ollama
from gemma4_compile.runtime.server.ollama.lists import asked_name, processes, shown, tags
from gemma4_compile.runtime.server.streams import unless_gone
from gemma4_compile.types import JsonObject

OF_REPLIES: dict[str, Refusal] = {
    "/v1/chat/completions": ApiError.response,
    "/v1/completions": ApiError.response,
    "/v1/responses": ApiError.response,
    "/v1/responses/input_tokens": ApiError.response,
    "/v1/messages": of_anthropic,
    "/v1/messages/count_tokens": of_anthropic,
    "/api/chat": of_ollama,
    "/api/generate": of_ollama,
}
"""Paths of the API that a model of replies answers, with how each says what is wrong."""


def embedding_routes(
    service: EmbeddingService, limits: Limits, api_key: str | None
) -> list[BaseRoute]:
    """The routes of an encoder; those of replies say that it makes none."""
    api, guarded = _Embeddings(service, limits), Guard(api_key).guarded
    own = [
        Route(path, guarded(endpoint, refusal), methods=[method])
        for method, path, endpoint, refusal in (
            ("POST", "/v1/embeddings", api.openai, ApiError.response),
            ("GET", "/v1/models", api.models, ApiError.response),
            ("GET", "/v1/models/{name:path}", api.model, ApiError.response),
            ("GET", "/slots", api.slots, ApiError.response),
            ("GET", "/metrics", api.metrics, ApiError.response),
            ("POST", "/api/embed", api.embed, of_ollama),
            ("POST", "/api/embeddings", api.embeddings, of_ollama),
            ("GET", "/api/tags", api.tags, of_ollama),
            ("GET", "/api/ps", api.processes, of_ollama),
            ("POST", "/api/show", api.show, of_ollama),
        )
    ]
    refused = [
        Route(path, guarded(api.refuse, refusal), methods=["POST"])
        for path, refusal in OF_REPLIES.items()
    ]
    return [*own, *refused, *fixed_routes(guarded)]


class _Embeddings:
    def __init__(self, service: EmbeddingService, limits: Limits) -> None:
        self._service = service
        # Of many texts each may be as long as the context: what is too long is refused by name.
        longest = service.card.context_length
        self._bodies = BodyReader(limits, limits.body_bytes, longest, media=True)
        self._since = now()

    async def openai(self, request: HttpRequest) -> Response:
        ignored = self._ignored()
        parsed = read_openai(await self._bodies.read(request), ignored)
        found = await self._embedded(request, parsed)
        listed = (
            {"object": "embedding", "index": index, "embedding": _written(parsed, vector)}
            for index, vector in enumerate(found.vectors)
        )
        usage = {"prompt_tokens": found.tokens, "total_tokens": found.tokens}
        answer = {
            "object": "list",
            "model": self._service.card.name,
            "usage": usage,
            **self._noted(parsed, ignored),
        }
        return await run_in_threadpool(_with_list, answer, "data", listed)

    async def embed(self, request: HttpRequest) -> Response:
        begin, ignored = time.monotonic(), self._ignored()
        parsed = read_embed(await self._bodies.read(request), ignored)
        noted = self._noted(parsed, ignored)
        if not parsed.texts:  # it is asked to load the model alone
            return JSONResponse(without_texts("/api/embed", self._service.card.name) | noted)
        found = await self._embedded(request, parsed)
        answer = {
            "model": self._service.card.name,
            "total_duration": int((time.monotonic() - begin) * 1e9),
            "load_duration": 0,
            "prompt_eval_count": found.tokens,
            **noted,
        }
        numbers = (vector.tolist() for vector in found.vectors)
        return await run_in_threadpool(_with_list, answer, "embeddings", numbers)

    async def embeddings(self, request: HttpRequest) -> Response:
        ignored = self._ignored()
        parsed = read_prompt(await self._bodies.read(request), ignored)
        vector: list[float] = []
        if parsed.texts:
            found = await self._embedded(request, parsed)
            vector = found.vectors[0].tolist()
        return JSONResponse({"embedding": vector, **self._noted(parsed, ignored)})

    async def refuse(self, _: HttpRequest) -> Response:
        raise no_replies(self._service.card.name)

    async def models(self, request: HttpRequest) -> Response:
        own = card_object(self._service.card, request.headers)
        return JSONResponse(card_list([own], request.headers))

    async def model(self, request: HttpRequest) -> Response:
        self._service.check_model(request.path_params["name"])
        return JSONResponse(card_object(self._service.card, request.headers))

    async def slots(self, _: HttpRequest) -> Response:
        return JSONResponse(slots_object(self._service.state()))

    async def metrics(self, request: HttpRequest) -> Response:
        from gemma4_compile.runtime.server.prometheus import exposition

        text, kind = exposition(self._service.state(), request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": kind})

    async def tags(self, _: HttpRequest) -> Response:
        return JSONResponse(tags([self._service.card], self._since))

    async def processes(self, _: HttpRequest) -> Response:
        return JSONResponse(processes([self._service.card]))

    async def show(self, request: HttpRequest) -> Response:
        name = asked_name(await self._bodies.read(request), self._ignored())
        self._service.note_about(name)
        return JSONResponse(shown(self._service.card, self._since))

    async def _embedded(self, request: HttpRequest, parsed: EmbeddingRequest) -> Embedded:
        self._service.note_about(parsed.model)
        return await unless_gone(request, self._service.embed(parsed))

    def _ignored(self) -> Ignored:
        return Ignored(strict=self._service.strict_request)

    def _noted(self, parsed: EmbeddingRequest, ignored: Ignored) -> JsonObject:
        """The field that says what is not as it was asked for, if there is anything."""
        notes = (self._service.note_about(parsed.model), ignored.note())
        note = "; ".join(note for note in notes if note is not None)
        return {"note": note} if note else {}


def without_texts(path: str, model: str) -> JsonObject:
    """What Ollama's API answers where there is nothing to embed."""
    if path == "/api/embeddings":
        return {"embedding": []}
    counts = dict.fromkeys(("total_duration", "load_duration", "prompt_eval_count"), 0)
    return {"model": model, "embeddings": [], **counts}


def _with_list(answer: JsonObject, name: str, entries: Iterable[object]) -> Response:
    """An answer with a list of many numbers; runs in a thread, and lets others between entries.

    Encoded in one piece it would hold the interpreter, and with it the event loop, for seconds.
    """
    listed = ",".join(json.dumps(entry, separators=(",", ":")) for entry in entries)
    begin = json.dumps(answer, separators=(",", ":")).removesuffix("}")
    return Response(f'{begin},"{name}":[{listed}]}}', media_type="application/json")


def _written(request: EmbeddingRequest, vector: Float32Array) -> str | list[float]:
    if not request.as_base64:
        numbers: list[float] = vector.tolist()
        return numbers
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
