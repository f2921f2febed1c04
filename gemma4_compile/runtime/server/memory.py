"""Memory of long requests goes back to the system: glibc keeps what a thread has freed."""

from __future__ import annotations

import asyncio
import ctypes
import sys

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LONG_BYTES = 1 << 20  # of a body after which memory is given back
_DELAY_SECONDS = 0.5  # until nothing of the request is left, and for others that end meanwhile


class MemoryReturner:
    """Gives memory back a moment after a long request has ended."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._timer: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as the application does."""
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            if received > LONG_BYTES and self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(_DELAY_SECONDS, self._return)

    def _return(self) -> None:
        self._timer = None
        asyncio.get_running_loop().run_in_executor(None, return_memory)


def return_memory() -> None:
    """Give back what is free; does nothing where the C library is another than glibc."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
