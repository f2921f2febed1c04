"""Work that takes long, beside the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

_log = logging.getLogger("gemma4_compile.serve")
_Result = TypeVar("_Result")


async def in_thread(work: Callable[[], _Result]) -> _Result:
    """What `work` returns, in a thread that does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[_Result] = loop.create_future()

    def tell(value: _Result | None, error: BaseException | None) -> None:
        if result.cancelled():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value, error = None, None
        try:
            value = work()
        except BaseException as caught:
            error = caught
        try:
            loop.call_soon_threadsafe(tell, value, error)
        except RuntimeError:  # the loop has ended
            _log.info("a model was loaded after the end")

    threading.Thread(target=run, name="models", daemon=True).start()
    return await result
