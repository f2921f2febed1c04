"""The endpoints below `/v1`: HTTP in, tickets of the worker, JSON or a stream of events out."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.engine.generation import Generation
from gemma4_compile.runtime.engine.sequence import ContextFullError
from gemma4_compile.runtime.grammar.grammar import GrammarError
from gemma4_compile.runtime.server.answers import Answer, ChatAnswer, TextAnswer
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.body import BodyReader, Limits
from gemma4_compile.runtime.server.fields import Ignored
from gemma4_compile.runtime.server.requests import (
    Request,
    read_chat_request,
    read_completion_request,
)
from gemma4_compile.runtime.server.service import Client, Reply, Service
from gemma4_compile.types import JsonObject

_log = logging.getLogger("gemma4_compile.serve")
_Result = TypeVar("_Result")
# Clients that part a stream by Unicode's line ends would cut an event at these; JSON escapes the
# others, below U+0020, by itself.
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
_CLIENT_IS_GONE = 499  # nobody reads it; the number is nginx's, for logs


def api_routes(service: Service, limits: Limits, api_key: str | None) -> list[BaseRoute]:
    """The routes of the API.

    Parameters
    ----------
    api_key : what requests must bring as a bearer token, or None
    """
    api = _Api(service, limits, api_key)
    return [
        Route("/v1/models", api.guarded(api.models), methods=["GET"]),
        Route("/v1/models/{name:path}", api.guarded(api.model), methods=["GET"]),
        Route("/v1/chat/completions", api.guarded(api.chat), methods=["POST"]),
        Route("/v1/completions", api.guarded(api.complete), methods=["POST"]),
    ]


Endpoint = Callable[[HttpRequest], Awaitable[Response]]


class _Api:
    def __init__(self, service: Service, limits: Limits, api_key: str | None) -> None:
        self._service = service
        self._limits = limits
        model = service.model
        self._bodies = BodyReader(
            limits, service.max_prompt_bytes, model.context_length, media=model.takes_media
        )
        self._api_key = api_key

    def guarded(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint, protected by the key, with errors in OpenAI's form."""

        async def answer(request: HttpRequest) -> Response:
            try:
                self._check_key(request)
                return await endpoint(request)
            except ClientDisconnect:
                return Response(status_code=_CLIENT_IS_GONE)
            except asyncio.CancelledError:  # by the server, which does not wait any longer
                return ApiError(503, "the server is stopping").response()
            except BaseException as error:  # a panic of native code is no Exception
                return _as_api_error(error).response()

        return answer

    async def models(self, _request: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [self._model_object()]})

    async def model(self, request: HttpRequest) -> Response:
        self._service.check_model(request.path_params["name"])
        return JSONResponse(self._model_object())

    async def chat(self, request: HttpRequest) -> Response:
        body = await self._bodies.read(request)
        model, service = self._service.model, self._service
        ignored = Ignored(strict=service.strict_request)
        parsed = read_chat_request(body, model.defaults, self._limits.messages, ignored)
        note = service.note_about(parsed, ignored)
        service.check_biases(parsed)
        with service.worker.reserve() as place:
            parsed = await _unless_gone(request, service.resolve(parsed))
            prompt = await _unless_gone(request, service.build_chat(parsed))
            constrain = await _unless_gone(
                request, run_in_threadpool(service.constraint, parsed, prompt)
            )
            replies = service.submit(
                place, prompt, parsed, constrain=constrain, client=_client(request)
            )
        return await _answer(request, parsed, replies, ChatAnswer(model.name, note, parsed.tools))

    async def complete(self, request: HttpRequest) -> Response:
        body = await self._bodies.read(request)
        model, service = self._service.model, self._service
        ignored = Ignored(strict=service.strict_request)
        parsed = read_completion_request(body, model.defaults, ignored)
        note = service.note_about(parsed, ignored)
        service.check_biases(parsed)
        with service.worker.reserve() as place:
            prompt = await _unless_gone(request, service.build_completion(parsed))
            replies = service.submit(place, prompt, parsed, client=_client(request))
        return await _answer(request, parsed, replies, TextAnswer(model.name, note))

    def _check_key(self, request: HttpRequest) -> None:
        if self._api_key is None:
            return
        sent = request.headers.get("authorization", "").encode("latin-1")  # its bytes as they came
        scheme, _, key = sent.partition(b" ")
        right = hmac.compare_digest(key.strip(), os.fsencode(self._api_key))
        if scheme.lower() != b"bearer" or not right:
            raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")

    def _model_object(self) -> JsonObject:
        model = self._service.model
        return {
            "id": model.name,
            "object": "model",
            "created": 0,
            "owned_by": "gemma4-compile",
            "context_length": model.context_length,
        }


def _client(request: HttpRequest) -> Client:
    address = "" if request.client is None else request.client.host
    # Of a proxy, whose clients all have its own address; one who lies is still at that address.
    forwarded = ",".join(request.headers.getlist("x-forwarded-for"))
    return f"{address} {forwarded}", request.headers.get("authorization", "")


async def _answer(
    http: HttpRequest, request: Request, replies: Sequence[Reply], answer: Answer
) -> Response:
    if request.stream:
        events = _stream(replies, answer, request.include_usage)
        return _EventStream(events, replies)
    await _while_connected(http, replies)
    logprobs = [reply.logprobs for reply in replies]
    return JSONResponse(answer.whole(_finished(replies), logprobs))


class _EventStream(StreamingResponse):
    """A stream whose replies end with it, also where the client leaves before the first event."""

    def __init__(self, events: AsyncIterator[str], replies: Sequence[Reply]) -> None:
        super().__init__(
            events, media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )
        self._replies = replies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            _cancel(self._replies)


def _finished(replies: Sequence[Reply]) -> list[Generation]:
    generations = [reply.ticket.generation for reply in replies]
    assert None not in generations, "the events have ended without an error"
    return [generation for generation in generations if generation is not None]


def _cancel(replies: Sequence[Reply]) -> None:
    for reply in replies:
        reply.ticket.cancel()


async def _while_connected(http: HttpRequest, replies: Sequence[Reply]) -> None:
    """Wait for the end of the replies; cancel them and raise if the client goes away."""

    async def finish() -> None:
        for reply in replies:
            async for _ in reply.ticket.events():
                pass

    try:
        await _unless_gone(http, finish())
    finally:
        _cancel(replies)


async def _unless_gone(http: HttpRequest, work: Coroutine[object, None, _Result]) -> _Result:
    """What `work` returns; if the client goes away first, cancel it and raise ClientDisconnect."""

    async def disconnect() -> None:
        while (await http.receive())["type"] != "http.disconnect":
            pass

    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(disconnect())
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        gone.cancel()
        # An error knows this frame: it would keep itself, and with it all of the request.
        del working, gone


async def _stream(
    replies: Sequence[Reply], answer: Answer, include_usage: bool
) -> AsyncIterator[str]:
    """The replies, one after another, as server-sent events."""
    try:
        for index, reply in enumerate(replies):
            first = answer.first(index)
            if first is not None:
                yield _event(first)
            async for event, tokens in reply.ticket.counted_events():
                yield _event(answer.chunk(index, event, reply.logprobs, tokens))
            assert reply.ticket.generation is not None, "its events have ended without an error"
            yield _event(answer.last(index, reply.ticket.generation))
        if include_usage:
            yield _event(answer.count(_finished(replies)))
        yield "data: [DONE]\n\n"
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        yield _event(_as_api_error(error).body())


def _as_api_error(error: BaseException) -> ApiError:
    """Answer to the client about an error; one that should not happen is logged."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextFullError):
        return ApiError(400, str(error), code="context_length_exceeded")
    if isinstance(error, UsageError):  # a picture that must be whole, and is too long for a chunk
        return ApiError(400, f"{error}; {error.hint}" if error.hint else str(error))
    if isinstance(error, GrammarError):
        return ApiError(400, str(error), param="response_format")
    return _internal_error(error)


def _internal_error(error: BaseException) -> ApiError:
    """Log what should not happen; the client learns no details."""
    _log.error("a request failed", exc_info=error)
    return ApiError(500, "the server failed; its log has the reason", code="internal_error")


def _event(content: Mapping[str, object]) -> str:
    text = json.dumps(content, ensure_ascii=False).translate(_LINE_ENDS)
    return f"data: {text}\n\n"
