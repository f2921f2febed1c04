"""Work beside the event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gemma4_compile.runtime.server.models.threads import in_thread


def test_results_and_errors_come_back() -> None:
    async def body() -> None:
        here = threading.get_ident()
        assert await in_thread(threading.get_ident) != here
        with pytest.raises(ZeroDivisionError):
            await in_thread(lambda: 1 // 0)

    asyncio.run(body())


def test_who_does_not_wait_any_longer_gets_nothing() -> None:
    ended, begun = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert ended.wait(60)

    async def body() -> None:
        waits = asyncio.create_task(in_thread(work))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits

    asyncio.run(body())
    ended.set()
