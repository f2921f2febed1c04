"""What the endpoints of every protocol share: the key, bodies, and how a chat gets its replies."""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.runtime.server.api_error import ApiError, as_api_error
from gemma4_compile.runtime.server.body import BodyReader, Limits
from gemma4_compile.runtime.server.fields import Ignored
from gemma4_compile.runtime.server.requests import ChatRequest, CompletionRequest
from gemma4_compile.runtime.server.service import Client, Reply, Service
from gemma4_compile.runtime.server.streams import cancel, unless_gone

Endpoint = Callable[[HttpRequest], Awaitable[Response]]
Refusal = Callable[[ApiError], Response]
"""An error in the form of a protocol."""

_CLIENT_IS_GONE = 499  # nobody reads it; the number is nginx's, for logs


@dataclass(frozen=True)
class Asked:
    """A chat or a text whose replies are queued.

    Attributes
    ----------
    note : what the client should know besides the answer, or None
    """

    prompt: Prompt
    replies: list[Reply]
    note: str | None


class Exchange:
    """Requests in, replies of the worker out.

    Attributes
    ----------
    limits : of one request
    """

    def __init__(self, service: Service, limits: Limits, api_key: str | None) -> None:
        """Prepare.

        Parameters
        ----------
        api_key : what requests must bring, or None
        """
        self.service = service
        self.limits = limits
        model = service.model
        self._bodies = BodyReader(
            limits, service.max_prompt_bytes, model.context_length, media=model.takes_media
        )
        self._api_key = api_key

    def guarded(self, endpoint: Endpoint, refusal: Refusal = ApiError.response) -> Endpoint:
        """The endpoint, protected by the key, with errors in the form of its protocol."""

        async def answer(request: HttpRequest) -> Response:
            try:
                self._check_key(request)
                return await endpoint(request)
            except ClientDisconnect:
                return Response(status_code=_CLIENT_IS_GONE)
            except asyncio.CancelledError:  # by the server, which does not wait any longer
                return refusal(ApiError(503, "the server is stopping"))
            except BaseException as error:  # a panic of native code is no Exception
                return refusal(as_api_error(error))

        return answer

    async def body(self, request: HttpRequest) -> object:
        """The parsed body of a request; ApiError as of `BodyReader.read`."""
        return await self._bodies.read(request)

    def ignored(self) -> Ignored:
        """Where fields of one request are counted that cannot change its reply."""
        return Ignored(strict=self.service.strict_request)

    async def chat(self, request: HttpRequest, parsed: ChatRequest, ignored: Ignored) -> Asked:
        """Queue the replies of a chat; ApiError where it cannot be served."""
        service = self.service
        note = service.note_about(parsed, ignored)
        service.check_biases(parsed)
        with service.worker.reserve() as place:
            parsed = await unless_gone(request, service.resolve(parsed))
            prompt = await unless_gone(request, service.build_chat(parsed))
            constrain = await unless_gone(
                request, run_in_threadpool(service.constraint, parsed, prompt)
            )
            replies = service.submit(
                place, prompt, parsed, constrain=constrain, client=client_of(request)
            )
        return Asked(prompt, replies, note)

    async def texts(
        self, request: HttpRequest, parsed: Sequence[CompletionRequest], ignored: Ignored
    ) -> list[Asked]:
        """Queue the replies to texts, each in a place of its own; errors as of `chat`."""
        service, client = self.service, client_of(request)
        note = service.note_about(parsed[0], ignored)
        service.check_biases(parsed[0])
        asked: list[Asked] = []
        with ExitStack() as stack:
            places = [stack.enter_context(service.worker.reserve()) for _ in parsed]
            prompts = [await unless_gone(request, service.build_completion(one)) for one in parsed]
            try:
                for place, prompt, one in zip(places, prompts, parsed, strict=True):
                    replies = service.submit(place, prompt, one, client=client)
                    asked.append(Asked(prompt, replies, note))
            except ApiError:  # the server stops meanwhile
                cancel([reply for one in asked for reply in one.replies])
                raise
        return asked

    async def prompt(self, request: HttpRequest, parsed: ChatRequest) -> Prompt:
        """The prompt of a chat that is not asked; it has a place in the queue meanwhile."""
        with self.service.worker.reserve():
            parsed = await unless_gone(request, self.service.resolve(parsed))
            return await unless_gone(request, self.service.build_chat(parsed))

    def _check_key(self, request: HttpRequest) -> None:
        if self._api_key is None:
            return
        right = hmac.compare_digest(_key(request), os.fsencode(self._api_key))
        if not right:
            raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")


def _key(request: HttpRequest) -> bytes:
    """The key that a request brings, its bytes as they came: a bearer token, or `x-api-key`."""
    sent = request.headers.get("authorization", "").encode("latin-1")
    scheme, _, key = sent.partition(b" ")
    if scheme.lower() == b"bearer":
        return key.strip()
    return request.headers.get("x-api-key", "").encode("latin-1").strip()


def client_of(request: HttpRequest) -> Client:
    """Who asks: the address, and the key."""
    address = "" if request.client is None else request.client.host
    # Of a proxy, whose clients all have its own address; one who lies is still at that address.
    forwarded = ",".join(request.headers.getlist("x-forwarded-for"))
    return f"{address} {forwarded}", _key(request).decode("latin-1")
