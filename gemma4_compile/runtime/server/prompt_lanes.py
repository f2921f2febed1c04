"""Builds prompts in threads, away from the event loop: a long one keeps no short one waiting.

Each lane builds one prompt at a time, since a long one takes a core and memory. What is not done
soon in the lane of short prompts begins anew in the other one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.runtime.server.api_error import ApiError
from gemma4_compile.runtime.server.requests import ChatRequest, CompletionRequest
from gemma4_compile.template.watch import SlowRenderingError, Watch

SHORT_SECONDS, LONG_SECONDS = 0.2, 30.0
"""Of computing: what a template takes for a prompt, waiting left out."""
SHORT_CHARACTERS = 1 << 16
_SHORT_MESSAGES = 256

_Request = TypeVar("_Request", ChatRequest, CompletionRequest)


class PromptLanes:
    """Two lanes: a prompt waits for those of its own kind."""

    def __init__(self) -> None:
        self._short, self._long = _Lane("short-prompts"), _Lane("long-prompts")

    async def build(self, make: Callable[[_Request, Watch], Prompt], request: _Request) -> Prompt:
        """Make a prompt when its turn comes; errors are those of `make`, and ApiError.

        Where this is cancelled, so is the rendering of the prompt.
        """
        if _is_short(request):
            try:
                return await self._short.build(
                    make, request, Watch(SHORT_SECONDS, SHORT_CHARACTERS)
                )
            except SlowRenderingError:
                pass
        try:
            return await self._long.build(make, request, Watch(LONG_SECONDS))
        except SlowRenderingError as error:
            raise ApiError(
                400, f"{error}: {error.hint}", param="messages", code="prompt_too_slow"
            ) from error


class _Lane:
    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._turn = asyncio.Lock()

    async def build(
        self, make: Callable[[_Request, Watch], Prompt], request: _Request, watch: Watch
    ) -> Prompt:
        await self._turn.acquire()
        loop = asyncio.get_running_loop()
        building = loop.run_in_executor(self._thread, make, request, watch)
        building.add_done_callback(lambda _: self._turn.release())
        try:
            return await asyncio.shield(building)
        finally:
            watch.cancel()  # the client may have left: the next one is not to wait for nobody
            del building  # an error knows this frame, and would keep itself and the request


def _is_short(request: ChatRequest | CompletionRequest) -> bool:
    """Return whether a prompt may well be short; its tools are not looked at."""
    if isinstance(request, CompletionRequest):
        return len(request.prompt) <= SHORT_CHARACTERS
    if len(request.messages) > _SHORT_MESSAGES:
        return False
    characters = sum(len(message.content) for message in request.messages)
    return characters + len(request.begun) <= SHORT_CHARACTERS
