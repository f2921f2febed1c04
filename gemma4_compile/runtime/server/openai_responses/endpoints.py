"""`/v1/responses`: what is answered, and kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from gemma4_compile.runtime.reply.reply import MarkIds
from gemma4_compile.runtime.server.api_error import TOO_LONG, ApiError
from gemma4_compile.runtime.server.body import beside
from gemma4_compile.runtime.server.exchange import Exchange
from gemma4_compile.runtime.server.fields import Ignored
from gemma4_compile.runtime.server.openai_responses.answers import ResponseAnswer
from gemma4_compile.runtime.server.openai_responses.input_items import with_ids
from gemma4_compile.runtime.server.openai_responses.requests import (
    ResponseRequest,
    read_response_request,
)
from gemma4_compile.runtime.server.openai_responses.store import (
    NO_ITEMS,
    ResponseStore,
    written_items,
)
from gemma4_compile.runtime.server.openai_responses.stored import tenant_of
from gemma4_compile.runtime.server.streams import ReplyStream, collected, finished, written
from gemma4_compile.types import JsonObject


def response_routes(exchange: Exchange, store: ResponseStore) -> list[BaseRoute]:
    """The routes that make responses, and keep them; see `stored_routes` for the others."""
    endpoints = _Responses(exchange, store)
    return [
        Route(path, exchange.guarded(endpoint), methods=["POST"])
        for path, endpoint in (
            ("/v1/responses", endpoints.create),
            ("/v1/responses/input_tokens", endpoints.count),
        )
    ]


def _keep_nothing(response: JsonObject) -> None:
    """A response that did not begin is not stored."""


async def _each(events: Sequence[str]) -> AsyncIterator[str]:
    for event in events:
        yield event


def _names_others(body: object) -> bool:
    """Return whether a body goes on from what is kept, or holds a list that may refer to it."""
    if not isinstance(body, Mapping):
        return False
    return body.get("previous_response_id") is not None or isinstance(body.get("input"), list)


class _Responses:
    def __init__(self, exchange: Exchange, store: ResponseStore) -> None:
        self._exchange = exchange
        self._store = store

    async def create(self, request: HttpRequest) -> Response:
        parsed, ignored = await self._read(request)
        before = NO_ITEMS
        if parsed.stored:  # while there is time: once the answer has ended, all would wait
            before = await beside(lambda: written_items(with_ids(parsed.items)))
        model, tenant = self._exchange.service.model, tenant_of(request)
        try:
            asked = await self._exchange.chat(request, parsed.chat, ignored)
        except ApiError as error:
            if error.code != TOO_LONG or not parsed.chat.stream:
                raise
            refused = ResponseAnswer(model.name, parsed.echoed, _keep_nothing)
            return ReplyStream(_each(list(refused.refuse(error))), ())
        (reply,) = asked.replies

        def keep(response: JsonObject) -> None:
            if parsed.stored:
                output = response["output"]
                assert isinstance(output, list), "of `ResponseAnswer`"
                self._store.keep(response, output, tenant, before)

        answer = ResponseAnswer(
            model.name,
            parsed.echoed,
            keep,
            note=asked.note,
            tools=parsed.chat.tools,
            forms=parsed.forms,
            logprobs=reply.logprobs,
            marks=MarkIds.of(model.tokenizer),
            reasoning=parsed.reasoning,
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

    async def _read(self, request: HttpRequest) -> tuple[ResponseRequest, Ignored]:
        body = await self._exchange.body(request)
        ignored, tenant = self._exchange.ignored(), tenant_of(request)
        parsed = await self._exchange.understood(
            request,
            body,
            lambda: read_response_request(
                body,
                self._exchange.service.model.defaults,
                self._exchange.limits.messages,
                lambda name: self._store.find(name, tenant, "previous_response_id").items,
                ignored,
                lambda name, param: self._store.find_item(name, tenant, param),
            ),
            may_be_long=_names_others(body),
        )
        return parsed, ignored
