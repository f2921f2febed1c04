"""What the endpoints of every protocol share: the key, bodies, and how a chat gets its replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest

from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.body import BodyReader, Limits, beside_in_turn, is_long
from gemma4_compile.runtime.server.fields import Ignored
from gemma4_compile.runtime.server.guard import Guard, Guarded, client_of
from gemma4_compile.runtime.server.media import without_untaken
from gemma4_compile.runtime.server.requests import ChatRequest, CompletionRequest
from gemma4_compile.runtime.server.service import Reply, Service, tenant_of
from gemma4_compile.runtime.server.streams import cancel, unless_gone

_LONG_AT_A_TIME = 4  # requests that are understood: values of Python take 30 times their bytes
_Parsed = TypeVar("_Parsed", ChatRequest, CompletionRequest)
_Read = TypeVar("_Read")


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
    guarded : makes an endpoint of a method; see `Guard.guarded`
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
        self.guarded: Guarded = Guard(api_key).guarded
        self._long = asyncio.Semaphore(_LONG_AT_A_TIME)

    async def body(self, request: HttpRequest) -> object:
        """The parsed body of a request; ApiError as of `BodyReader.read`."""
        return await self._bodies.read(request)

    async def understood(
        self,
        request: HttpRequest,
        body: object,
        read: Callable[[], _Read],
        *,
        may_be_long: bool = False,
    ) -> _Read:
        """What a request asks for; of one that takes long beside the event loop.

        A body of some megabytes may hold 100,000 parts: a second in which nobody else would hear.
        Declarations of tools may put in as much by references, and so may what a short body names;
        `may_be_long` says so.
        """
        if not (may_be_long or is_long(request) or _declares(body)):
            return read()
        return await unless_gone(request, beside_in_turn(self._long, read))

    def ignored(self) -> Ignored:
        """Where fields of one request are counted that cannot change its reply."""
        return Ignored(strict=self.service.strict_request)

    async def chat(self, request: HttpRequest, parsed: ChatRequest, ignored: Ignored) -> Asked:
        """Queue the replies of a chat; ApiError where it cannot be served."""
        service = self.service
        parsed = self._taken(parsed, ignored)
        note = service.note_about(parsed, ignored)
        service.check_biases(parsed)
        with service.worker.reserve() as place:
            parsed = await unless_gone(request, service.resolve(_owned(parsed, request)))
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
            owned = [_owned(one, request) for one in parsed]
            prompts = [await unless_gone(request, service.build_completion(one)) for one in owned]
            try:
                for place, prompt, one in zip(places, prompts, owned, strict=True):
                    replies = service.submit(place, prompt, one, client=client)
                    asked.append(Asked(prompt, replies, note))
            except ApiError:  # the server stops meanwhile
                cancel([reply for one in asked for reply in one.replies])
                raise
        return asked

    async def prompt(self, request: HttpRequest, parsed: ChatRequest) -> Prompt:
        """The prompt of a chat that is not asked; it has a place in the queue meanwhile."""
        parsed = self._taken(parsed, self.ignored())
        with self.service.worker.reserve():
            owned = _owned(parsed, request)
            parsed = await unless_gone(request, self.service.resolve(owned))
            return await unless_gone(request, self.service.build_chat(parsed))

    def _taken(self, parsed: ChatRequest, ignored: Ignored) -> ChatRequest:
        """The chat, words in the place of what tools found and the package does not take."""
        if not parsed.media:
            return parsed
        settings = self.service.model.media
        messages, media = without_untaken(parsed.messages, parsed.media, settings, ignored)
        return replace(parsed, messages=messages, media=media)


def _declares(body: object) -> bool:
    """Return whether a body has declarations of tools."""
    return isinstance(body, Mapping) and bool(body.get("tools"))


def _owned(parsed: _Parsed, request: HttpRequest) -> _Parsed:
    return replace(parsed, tenant=tenant_of(client_of(request), parsed))
