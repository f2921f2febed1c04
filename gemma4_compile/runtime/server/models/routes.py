"""The API of several packages: each request goes to the one that it names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import TypeGuard

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gemma4_compile.runtime.server.anthropic.endpoints import batch_routes
from gemma4_compile.runtime.server.anthropic.errors import refusal as of_anthropic
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.body import BodyReader, Limits
from gemma4_compile.runtime.server.cards import (
    ModelCard,
    card_list,
    card_object,
    is_called,
    no_embeddings,
    no_replies,
    unknown_model,
)
from gemma4_compile.runtime.server.embeddings.endpoints import without_texts
from gemma4_compile.runtime.server.fields import Ignored
from gemma4_compile.runtime.server.guard import Guard, Refusal
from gemma4_compile.runtime.server.metrics import slots_object
from gemma4_compile.runtime.server.models.offered import ModelStatus
from gemma4_compile.runtime.server.models.pool import ModelPool
from gemma4_compile.runtime.server.ollama.answers import OllamaAnswer, now, of_chat, of_generate
from gemma4_compile.runtime.server.ollama.fixed import fixed_routes
from gemma4_compile.runtime.server.ollama.fixed import refusal as of_ollama
from gemma4_compile.runtime.server.ollama.lists import (
    FOREVER,
    asked_name,
    processes,
    shown,
    tags,
)
from gemma4_compile.runtime.server.ollama.requests import lets_go
from gemma4_compile.runtime.server.openai_responses.store import ResponseStore
from gemma4_compile.runtime.server.openai_responses.stored import stored_routes
from gemma4_compile.runtime.server.streams import unless_gone
from gemma4_compile.types import JsonObject

_OF_OPENAI = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/responses/input_tokens",
)
_OF_ANTHROPIC = ("/v1/messages", "/v1/messages/count_tokens")
_OF_OLLAMA = {"/api/chat": of_chat, "/api/generate": of_generate}
_ASKING = ("prompt", "messages", "input")
_OF_ENCODERS: dict[str, Refusal] = {
    "/v1/embeddings": ApiError.response,
    "/api/embed": of_ollama,
    "/api/embeddings": of_ollama,
}


def model_routes(
    pool: ModelPool,
    limits: Limits,
    api_key: str | None,
    store: ResponseStore,
    *,
    strict_request: bool = False,
) -> list[BaseRoute]:
    """The routes of the API.

    Parameters
    ----------
    limits : of a request, whichever model it names
    api_key : what requests must bring, or None
    store : the one of all models: a response may be gone on from by another
    strict_request : refuse requests with fields that are not known
    """
    front, guarded = _Front(pool, limits, strict_request), Guard(api_key).guarded
    refusals: dict[str, Refusal] = dict.fromkeys(_OF_OPENAI, ApiError.response)
    refusals |= dict.fromkeys(_OF_ANTHROPIC, of_anthropic) | dict.fromkeys(_OF_OLLAMA, of_ollama)
    refusals |= _OF_ENCODERS
    own = [
        Route(path, guarded(endpoint, refusal), methods=[method])
        for method, path, endpoint, refusal in (
            ("GET", "/v1/models", front.models, ApiError.response),
            ("GET", "/v1/models/{name:path}", front.model, ApiError.response),
            ("GET", "/slots", front.slots, ApiError.response),
            ("GET", "/metrics", front.metrics, ApiError.response),
            ("GET", "/api/tags", front.tags, of_ollama),
            ("GET", "/api/ps", front.processes, of_ollama),
            ("POST", "/api/show", front.show, of_ollama),
        )
    ]
    asked = [
        Route(path, guarded(front.ask, refusal), methods=["POST"])
        for path, refusal in refusals.items()
    ]
    # Refused by every model: none is loaded to say so.
    refused = [*batch_routes(guarded), *fixed_routes(guarded)]
    return [*own, *asked, *stored_routes(store, guarded), *refused]


def models_health(pool: ModelPool, api_key: str | None) -> Callable[[HttpRequest], JsonObject]:
    """What `/health` says of the models, to who brings the key."""
    guard = Guard(api_key)

    def told(request: HttpRequest) -> JsonObject:
        if not guard.admits(request):
            return {}
        found = {one.card.name: _health(one) for one in pool.statuses()}
        return {"models": found}

    return told


def _health(one: ModelStatus) -> JsonObject:
    if one.status != "loaded":
        return {"status": one.status}
    return {"status": one.status, "idle": one.idle_s is not None}


class _Passed(Response):
    """A request that another application answers, while its model stays loaded."""

    def __init__(self, app: ASGIApp, body: bytes, using: AsyncExitStack) -> None:
        self._app = app
        self._body: bytes | None = body
        self._using = using

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; the body, which was read and unpacked already, comes once more."""

        async def again() -> Message:
            if self._body is None:
                return await receive()
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}

        headers = [each for each in scope["headers"] if each[0] != b"content-encoding"]
        async with self._using:
            await self._app({**scope, "headers": headers}, again, send)


class _Front:
    def __init__(self, pool: ModelPool, limits: Limits, strict_request: bool) -> None:
        self._pool, self._strict = pool, strict_request
        self._since = now()
        longest = max(card.context_length for card in self._cards())
        # what fits no prompt of the model that is named is refused by that one
        self._bodies = BodyReader(limits, limits.body_bytes, longest, media=True)

    async def ask(self, request: HttpRequest) -> Response:
        body = await self._bodies.written(request)
        asked = await self._bodies.parsed(body)
        path, name = request.url.path, _named(asked)
        last = asked if path.startswith("/api/") and _lets_go(asked) else None
        unloads = last is not None and not any(last.get(word) for word in _ASKING)
        if unloads and name is not None:  # an encoder, too
            card = self._card(name)
        else:
            card = self._able(name, embeds=path in _OF_ENCODERS)
        if unloads:
            await self._pool.unload(card.name)
            if path in _OF_ENCODERS:
                return JSONResponse(without_texts(path, card.name))
            answer = OllamaAnswer(card.name, _OF_OLLAMA[path])
            return JSONResponse(answer.without_reply("unload"))
        del asked
        async with AsyncExitStack() as stack:
            if last is not None:  # once it has answered, and nobody else uses it
                stack.push_async_callback(self._pool.unload, card.name)
            app = await unless_gone(request, self._loaded(card.name, stack))
            return _Passed(app, body, stack.pop_all())

    async def _loaded(self, name: str, stack: AsyncExitStack) -> ASGIApp:
        loaded = await stack.enter_async_context(self._pool.using(name))
        return loaded.app

    async def models(self, request: HttpRequest) -> Response:
        objects = [self._object(one, request) for one in self._pool.statuses()]
        return JSONResponse(card_list(objects, request.headers))

    async def model(self, request: HttpRequest) -> Response:
        card = self._card(request.path_params["name"])
        (status,) = [one for one in self._pool.statuses() if one.card == card]
        return JSONResponse(self._object(status, request))

    def _object(self, status: ModelStatus, request: HttpRequest) -> JsonObject:
        found = card_object(status.card, request.headers)
        return found | {"status": {"value": status.status}}

    async def slots(self, _: HttpRequest) -> Response:
        found = {
            one.card.name: {"status": one.status}
            | ({} if one.state is None else slots_object(one.state))
            for one in self._pool.statuses()
        }
        return JSONResponse({"models": found})

    async def metrics(self, request: HttpRequest) -> Response:
        from gemma4_compile.runtime.server.prometheus import exposition_of_models

        statuses = self._pool.statuses()
        states = {one.card.name: one.state for one in statuses if one.state is not None}
        loads = {one.card.name: one.loads for one in statuses}
        accept = request.headers.get("accept", "")
        text, content_type = exposition_of_models(states, loads, accept)
        return Response(text, headers={"Content-Type": content_type})

    async def tags(self, _: HttpRequest) -> Response:
        return JSONResponse(tags(self._cards(), self._since))

    async def processes(self, _: HttpRequest) -> Response:
        loaded = [one for one in self._pool.statuses() if one.status == "loaded"]
        times = [FOREVER if one.idle_s is None else now(one.idle_s) for one in loaded]
        return JSONResponse(processes([one.card for one in loaded], times))

    async def show(self, request: HttpRequest) -> Response:
        name = asked_name(await self._bodies.read(request), Ignored(strict=self._strict))
        return JSONResponse(shown(self._card(name), self._since))

    def _cards(self) -> Sequence[ModelCard]:
        return [one.card for one in self._pool.statuses()]

    def _able(self, name: str | None, *, embeds: bool) -> ModelCard:
        """The model of a request, by default the first that can; ApiError for one that cannot."""
        if name is None:
            able = [card for card in self._cards() if card.embeds == embeds]
            if able:
                return able[0]
        card = self._card(name)
        if card.embeds != embeds:  # known before it is loaded
            raise no_embeddings(card.name) if embeds else no_replies(card.name)
        return card

    def _card(self, name: str | None) -> ModelCard:
        """The model of this name, the first one where there is none; ApiError 404."""
        cards = self._cards()
        if name is None:
            return cards[0]
        for card in cards:
            if is_called(card.name, name):
                return card
        why = unknown_model(name, *(card.name for card in cards))
        raise ApiError(404, why, param="model", code="model_not_found")


def _named(body: object) -> str | None:
    """The name in a request; what is wrong with other values is told by the model's own API."""
    name = body.get("model") if isinstance(body, dict) else None
    return name if isinstance(name, str) else None


def _lets_go(body: object) -> TypeGuard[dict[str, object]]:
    """Return whether a request of Ollama's clients lets its model go."""
    return isinstance(body, dict) and lets_go(body.get("keep_alive"))
