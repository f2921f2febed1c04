"""OpenAI's endpoints of chats and texts: HTTP in, JSON or a stream of events out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from gemma4_compile.runtime.server.answers import Answer, ChatAnswer, TextAnswer
from gemma4_compile.runtime.server.api_error import as_api_error
from gemma4_compile.runtime.server.cards import card_list, card_object, no_embeddings
from gemma4_compile.runtime.server.exchange import Exchange
from gemma4_compile.runtime.server.requests import (
    Request,
    read_chat_request,
    read_completion_requests,
)
from gemma4_compile.runtime.server.server_sent import data_event
from gemma4_compile.runtime.server.service import Reply
from gemma4_compile.runtime.server.streams import ReplyStream, ended, finished


def openai_routes(exchange: Exchange) -> list[BaseRoute]:
    """The routes of chats, texts and the list of models."""
    api, guarded = _Api(exchange), exchange.guarded
    return [
        Route("/v1/models", guarded(api.models), methods=["GET"]),
        Route("/v1/models/{name:path}", guarded(api.model), methods=["GET"]),
        Route("/v1/chat/completions", guarded(api.chat), methods=["POST"]),
        Route("/v1/completions", guarded(api.complete), methods=["POST"]),
        Route("/v1/embeddings", guarded(api.embeddings), methods=["POST"]),
    ]


class _Api:
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._service = exchange.service

    async def models(self, request: HttpRequest) -> Response:
        own = card_object(self._service.model.card, request.headers)
        return JSONResponse(card_list([own], request.headers))

    async def model(self, request: HttpRequest) -> Response:
        self._service.check_model(request.path_params["name"])
        return JSONResponse(card_object(self._service.model.card, request.headers))

    async def chat(self, request: HttpRequest) -> Response:
        body = await self._exchange.body(request)
        model, ignored = self._service.model, self._exchange.ignored()
        most = self._exchange.limits.messages
        parsed = await self._exchange.understood(
            request, body, lambda: read_chat_request(body, model.defaults, most, ignored)
        )
        asked = await self._exchange.chat(request, parsed, ignored)
        answer = ChatAnswer(model.name, asked.note, parsed.tools, parsed.custom)
        return await _answer(request, parsed, asked.replies, answer)

    async def complete(self, request: HttpRequest) -> Response:
        body = await self._exchange.body(request)
        model, ignored = self._service.model, self._exchange.ignored()
        parsed = read_completion_requests(body, model.defaults, ignored)
        asked = await self._exchange.texts(request, parsed, ignored)
        answer = TextAnswer(
            model.name,
            asked[0].note,
            of_a_prompt=parsed[0].replies,
            echoed=[self._service.echoed(one) for one in parsed],
        )
        replies = [reply for one in asked for reply in one.replies]
        return await _answer(request, parsed[0], replies, answer)

    async def embeddings(self, _: HttpRequest) -> Response:
        """Answer that the model makes none."""
        raise no_embeddings(self._service.model.name)


async def _answer(
    http: HttpRequest, request: Request, replies: Sequence[Reply], answer: Answer
) -> Response:
    if request.stream:
        return ReplyStream(_stream(replies, answer, request.include_usage), replies)
    await ended(http, replies)
    logprobs = [reply.logprobs for reply in replies]
    return JSONResponse(answer.whole([finished(reply) for reply in replies], logprobs))


async def _stream(
    replies: Sequence[Reply], answer: Answer, include_usage: bool
) -> AsyncIterator[str]:
    """The replies, one after another, as server-sent events."""
    try:
        for index, reply in enumerate(replies):
            first = answer.first(index, reply.logprobs)
            if first is not None:
                yield data_event(first)
            silent, is_read = True, False
            async for item in reply.ticket.paced_events():
                if item is None:
                    if silent:
                        yield data_event(answer.pause(index))
                    silent = True
                    continue
                silent = False
                if not is_read and (begun := answer.begun(index, reply.logprobs)) is not None:
                    yield data_event(begun)
                is_read = True
                yield data_event(answer.chunk(index, item[0], reply.logprobs, item[1]))
            generation = finished(reply)
            if not is_read and (begun := answer.begun(index, reply.logprobs)) is not None:
                yield data_event(begun)
            yield data_event(answer.last(index, generation, reply.logprobs))
        if include_usage:
            yield data_event(answer.count([finished(reply) for reply in replies]))
        yield "data: [DONE]\n\n"
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        yield data_event(as_api_error(error).body())
