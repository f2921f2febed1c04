"""Bodies of requests: read within limits of bytes and time, and parsed as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest

from gemma4_compile.runtime.server.api_error import TOO_LONG, ApiError
from gemma4_compile.runtime.server.json_decoders import SMALL_BYTES, make_decoder
from gemma4_compile.runtime.server.packed import unpacked

_Read = TypeVar("_Read")
# What programs send that do not say what they send: litellm to Ollama's API, and `curl -d`.
_UNTYPED = ("", "application/x-www-form-urlencoded")
# Node's fetch says its `sec-fetch-mode`, too; a browser that does so says `sec-fetch-site` as well.
_OF_BROWSERS = ("origin", "sec-fetch-site", "referer")
_LARGE_AT_A_TIME = 4
_HEARD = 4  # times the longest body are read, so that who writes all of it first hears why not
_ESCAPED = 6  # bytes of JSON for one of text, as in \u0041
_OTHER_BYTES = 1 << 20  # of a body besides its prompt
_OTHER_VALUES = 200_000
_VALUES_OF_A_TOKEN = 4
_BEFORE = 20  # characters before a damaged one that a message shows


@dataclass(frozen=True)
class Limits:
    """Limits of one request.

    Attributes
    ----------
    body_bytes : longest body
    body_seconds : longest time that a body may take to arrive
    messages : most messages of a chat request
    """

    body_bytes: int = 8 * 2**20
    body_seconds: float = 30.0
    messages: int = 2048


class BodyReader:
    """Reads bodies; nothing is parsed that cannot be a request for this context."""

    def __init__(
        self, limits: Limits, max_prompt_bytes: int, context_length: int, *, media: bool = False
    ) -> None:
        """Prepare.

        Parameters
        ----------
        max_prompt_bytes : bytes of text that no prompt which fits can exceed
        context_length : most tokens of a prompt
        media : there may be pictures and sounds in them, which are as long as they like
        """
        self._limits = limits
        self._media = media
        self._useful_bytes = limits.body_bytes
        if not media:
            text_bytes = _OTHER_BYTES + _ESCAPED * max_prompt_bytes
            self._useful_bytes = min(text_bytes, limits.body_bytes)
        self._most_values = _OTHER_VALUES + _VALUES_OF_A_TOKEN * context_length
        self._context_length = context_length
        self._large = asyncio.Semaphore(_LARGE_AT_A_TIME)

    async def read(self, request: HttpRequest) -> object:
        """The parsed body.

        Raises
        ------
        ApiError
            As of `written` and `parsed`.
        """
        return await self.parsed(await self.written(request))

    async def parsed(self, body: bytes) -> object:
        """Parse a body; a long one beside the event loop, when its turn comes.

        Raises
        ------
        ApiError
            400 if it is no JSON, or no prompt can have so many values; 503 if too many long ones
            are parsed.
        """
        if len(body) <= SMALL_BYTES:
            return self._parse(body)
        await self._take_turn()
        return await beside_holding(self._large, lambda: self._parse(body))

    async def written(self, request: HttpRequest) -> bytes:
        """The body as it was before it was packed; limits are those of that.

        Raises
        ------
        ApiError
            415 for another type than JSON, 408 if it does not arrive in time, 413 if it is too
            long, 503 if too many long ones arrive, 400 if no prompt is so long; as of `unpacked`.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        # A page of another origin cannot send JSON's type unasked. The others it can, and then its
        # browser says whose the request is, by the Fetch standard with every POST.
        if kind != "application/json" and not (kind in _UNTYPED and _is_of_program(request)):
            raise ApiError(415, f"expected a body of type application/json, found `{kind}`")
        body = bytearray()
        try:
            return await self._read(request, body)
        finally:
            body.clear()  # an error that has come out of a task holds it, and itself, for long

    async def _read(self, request: HttpRequest, body: bytearray) -> bytes:
        coding = request.headers.get("content-encoding", "")
        pieces = unpacked(request.stream(), coding, self._limits.body_bytes)
        count = await self._in_time(self._receive(pieces, body, 0, SMALL_BYTES))
        if count > SMALL_BYTES:
            await self._take_turn()
            try:
                count = await self._in_time(self._receive(pieces, body, count, None))
                return self._finish(body, count)
            finally:
                self._large.release()
        return self._finish(body, count)

    async def _take_turn(self) -> None:
        try:
            await asyncio.wait_for(self._large.acquire(), self._limits.body_seconds)
        except asyncio.TimeoutError as error:
            raise ApiError(503, "too many long requests arrive: try again", code="busy") from error

    async def _in_time(self, receiving: Coroutine[object, None, int]) -> int:
        try:
            return await asyncio.wait_for(receiving, self._limits.body_seconds)
        except asyncio.TimeoutError as error:
            raise ApiError(
                408,
                f"the body did not arrive within {self._limits.body_seconds:g} s",
                code="body_timeout",
            ) from error

    async def _receive(
        self, pieces: AsyncIterator[bytes], body: bytearray, count: int, until: int | None
    ) -> int:
        """Read on, to the end or until there is more than so much; return how much came so far."""
        async for piece in pieces:
            count += len(piece)
            if count > _HEARD * self._limits.body_bytes:
                raise self._too_large()
            if count <= self._useful_bytes:  # the rest is read to its end, so that all hear why
                body += piece
            if until is not None and count > until:
                break
        return count

    def _finish(self, body: bytearray, count: int) -> bytes:
        if count > self._limits.body_bytes:
            raise self._too_large()
        if count > self._useful_bytes:
            raise self._too_long(f"this request has {count} bytes")
        return bytes(body)

    def _parse(self, body: bytes) -> object:
        # Counting does not let another thread run meanwhile, so it is done in long strides.
        values = sum(body.count(mark) for mark in (b",", b"[", b"{"))
        if values > self._most_values:
            raise self._too_long(f"this request has more than {self._most_values} values")
        return parse_json(body)

    def _too_large(self) -> ApiError:
        most = self._limits.body_bytes
        return ApiError(413, f"the body is longer than {most} bytes", code="body_too_large")

    def _too_long(self, what: str) -> ApiError:
        return ApiError(
            400,
            f"{what}: no prompt can be so long, the context holds {self._context_length} tokens"
            + ("" if self._media else ", and this package takes no pictures and no sounds"),
            code=TOO_LONG,
        )


def is_long(request: HttpRequest) -> bool:
    """Return whether a body takes long to go through; one whose length is not said may."""
    if "content-encoding" in request.headers:
        return True
    length = request.headers.get("content-length", "")
    return not length.isdecimal() or int(length) > SMALL_BYTES


def _is_of_program(request: HttpRequest) -> bool:
    """Whether no browser can have sent a request, nor one that is older than the Fetch standard.

    Firefox before 70 names no origin with a form, and no referrer where the page asks for that; a
    page cannot change how its browser calls itself. Windows PowerShell calls itself nearly so.
    """
    agent = request.headers.get("user-agent", "").lower()
    if agent.startswith(("mozilla/", "opera/")) and "powershell/" not in agent:
        return False
    return not any(name in request.headers for name in _OF_BROWSERS)


async def beside(work: Callable[[], _Read]) -> _Read:
    """What work gives that is done beside the event loop, or its ApiError."""
    return await _given(run_in_threadpool(_result_or_error, work))


async def beside_in_turn(turns: asyncio.Semaphore, work: Callable[[], _Read]) -> _Read:
    """As `beside_holding`, when there is a turn."""
    await turns.acquire()
    return await beside_holding(turns, work)


async def beside_holding(turns: asyncio.Semaphore, work: Callable[[], _Read]) -> _Read:
    """As `beside`, with a turn that was taken, which lasts as long as the work.

    Also where this is cancelled, as for a client that has left: the work goes on, with its memory.
    """
    working = asyncio.ensure_future(run_in_threadpool(_result_or_error, work))
    working.add_done_callback(lambda _: turns.release())
    try:
        return await _given(asyncio.shield(working))
    finally:
        del working  # as below


async def _given(work: Awaitable[_Read | ApiError]) -> _Read:
    found = await work
    if not isinstance(found, ApiError):
        return found
    try:
        raise found
    finally:
        del found, work  # the error's traceback has this frame: body and all would wait for `gc`


def _result_or_error(work: Callable[[], _Read]) -> _Read | ApiError:
    """What work gives, or why it cannot: a future that raises it would be in its own traceback."""
    try:
        return work()
    except ApiError as error:
        return error


def parse_json(body: bytes) -> object:
    """Parse a body; ApiError 400 if it is no JSON, or holds text that is no Unicode."""
    try:
        text = body.decode("utf-8-sig")
        value = make_decoder(len(body), _refuse_constant).decode(text)
        if "\\ud" in text or "\\uD" in text:  # half of a character can be written as an escape only
            _check_characters(value)
    except (ValueError, RecursionError) as error:  # a UnicodeError is a ValueError
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from error
    return value


def _check_characters(value: object) -> None:
    """Raise ValueError for half of a character, as a text has at its end that was cut by length."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            _check_text(item)
        elif isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            waiting += item


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        before = text[max(0, error.start - _BEFORE) : error.start]
        half = f"\\u{ord(text[error.start]):04x}"
        raise ValueError(
            f"a text holds half of a character, `{half}` after `{before}`: it was cut within an "
            "emoji or the like, or read from bytes that are no text"
        ) from error


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")
