"""Packages that share a device's memory: loaded when they are asked for, unloaded for others."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gemma4_compile.errors import Gemma4CompileError
from gemma4_compile.runtime.package.room import size_in_words
from gemma4_compile.runtime.server.api_error import ApiError, stopping
from gemma4_compile.runtime.server.memory import return_memory
from gemma4_compile.runtime.server.models.offered import (
    Load,
    LoadedModel,
    ModelStatus,
    OfferedModel,
)
from gemma4_compile.runtime.server.models.threads import in_thread

_log = logging.getLogger("gemma4_compile.serve")


@dataclass(eq=False)
class _Entry:
    """A model of the pool.

    Attributes
    ----------
    users : requests that it answers
    waiters : requests that wait until it is loaded
    leaving : it is to be unloaded for another, as soon as nobody uses it
    makes_room : its loading waits for others to be unloaded
    used : when it was used last, by `time.monotonic`
    loads : how often it was loaded
    """

    offered: OfferedModel
    loaded: LoadedModel | None = None
    users: int = 0
    waiters: list[asyncio.Future[LoadedModel]] = field(default_factory=list)
    leaving: bool = False
    makes_room: bool = False
    used: float = 0.0
    loads: int = 0
    loading: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_ready(self) -> bool:
        """Return whether a request can begin now."""
        return self.loaded is not None and not self.leaving and self.loaded.is_alive


class ModelPool:
    """Used in the event loop alone; loading and unloading run in threads."""

    def __init__(
        self,
        models: Sequence[OfferedModel],
        load: Load,
        *,
        memory: int | None,
        free: Callable[[OfferedModel], int | None],
        idle_s: float,
        queue: int,
        release: Callable[[], None] = return_memory,
    ) -> None:
        """Prepare; nothing is loaded.

        Parameters
        ----------
        memory : bytes that loaded models may take of a device; None for what is free there
        free : bytes that are free on a model's device; None where the system does not tell
        idle_s : seconds after which a model that nobody uses is unloaded
        queue : most requests that wait for models to be loaded
        release : called when nothing of a model is left, in a thread
        """
        self._release = release
        self._entries = {model.card.name: _Entry(model) for model in models}
        self._load = load
        self._memory = memory
        self._free = free
        self._idle_s = idle_s
        self._queue = queue
        self._turn = asyncio.Lock()  # one at a time is loaded or unloaded
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    def statuses(self) -> list[ModelStatus]:
        """All models, in the order in which they were named."""
        return [self._status(entry) for entry in self._entries.values()]

    def _status(self, entry: _Entry) -> ModelStatus:
        loaded = entry.loaded
        is_loading = entry.loading is not None and not entry.loading.done()
        word = "loading" if is_loading else "unloaded" if loaded is None else "loaded"
        state = None if loaded is None else loaded.state()
        rest = None
        if entry.timer is not None and loaded is not None:
            rest = max(0.0, self._idle_s - (time.monotonic() - entry.used))
        return ModelStatus(entry.offered.card, word, state, entry.loads, rest)

    @asynccontextmanager
    async def using(self, name: str) -> AsyncIterator[LoadedModel]:
        """The model of this name, which stays loaded meanwhile.

        Raises
        ------
        ApiError
            503 if the server is stopping, or the model cannot be loaded, 429 if too many wait.
        """
        entry = self._entries[name]
        loaded = await self._take(entry)
        try:
            yield loaded
        finally:
            del loaded
            self._leave(entry)

    async def _take(self, entry: _Entry) -> LoadedModel:
        self._check_open()
        if entry.is_ready:
            return self._given(entry)
        waiting = sum(len(one.waiters) for one in self._entries.values())
        if waiting >= max(1, self._queue):
            why = f"{waiting} requests wait already for models to be loaded: try again"
            raise ApiError(429, why, code="queue_full")
        turn: asyncio.Future[LoadedModel] = asyncio.get_running_loop().create_future()
        entry.waiters.append(turn)
        self._want(entry)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._leave(entry)  # it was given in the same moment
            raise
        finally:
            if turn in entry.waiters:
                entry.waiters.remove(turn)
            if not entry.waiters and entry.makes_room and entry.loading is not None:
                entry.loading.cancel()  # nobody wants it any more

    def _given(self, entry: _Entry) -> LoadedModel:
        """The model for one more request."""
        assert entry.loaded is not None, "it is ready"
        entry.users += 1
        entry.idle.clear()
        self._stop_timer(entry)
        return entry.loaded

    def _want(self, entry: _Entry) -> None:
        """Begin to load it, if nobody has."""
        if entry.loading is None or entry.loading.done():
            entry.loading = self._begin(self._make_ready(entry))
            entry.loading.add_done_callback(lambda task: self._tell(entry, task))

    def _tell(self, entry: _Entry, loading: asyncio.Task[None]) -> None:
        """Tell those who wait how loading has failed, or begin again for those who came since."""
        if entry.loading is not loading:
            return
        failed = not loading.cancelled() and loading.exception() is not None
        if not failed and not self._stopping:
            if entry.waiters:
                self._want(entry)
            return
        error = loading.exception() if failed else None
        waiters, entry.waiters = entry.waiters, []
        for turn in waiters:
            if not turn.done():
                turn.set_exception(error or stopping())

    def _leave(self, entry: _Entry) -> None:
        entry.users -= 1
        entry.used = time.monotonic()
        if entry.users == 0:
            entry.idle.set()
            self._start_timer(entry)

    async def unload(self, name: str) -> None:
        """Unload a model, unless somebody uses it or waits for it."""
        entry = self._entries[name]
        async with self._turn:
            await self._close_unused(entry)

    async def _close_unused(self, entry: _Entry) -> None:
        if entry.users == 0 and not entry.waiters and entry.loaded is not None:
            await self._close(entry)

    def begin_stop(self) -> None:
        """Take no more requests, end what runs; returns at once."""
        self._stopping = True
        for entry in self._entries.values():
            self._stop_timer(entry)
            if entry.loaded is not None:
                entry.loaded.begin_stop()
            if entry.loading is not None:
                entry.loading.cancel()

    def close(self) -> None:
        """End all that are loaded, after the event loop has ended."""
        self._stopping = True
        for entry in self._entries.values():
            loaded, entry.loaded = entry.loaded, None
            if loaded is not None:
                loaded.close()

    async def _make_ready(self, entry: _Entry) -> None:
        async with self._turn:
            self._check_open()
            if not entry.waiters:
                return  # they went while another was loaded
            if not entry.is_ready:
                await self._replace(entry)
            # At once, before anybody drives it out again.
            waiters, entry.waiters = entry.waiters, []
            for turn in waiters:
                if not turn.done():
                    turn.set_result(self._given(entry))

    async def _replace(self, entry: _Entry) -> None:
        """Load it, instead of others where there is no room."""
        if entry.loaded is not None:  # its engine has ended
            await entry.idle.wait()
            await self._close(entry)
        entry.makes_room = True
        try:
            await self._make_room(entry)
        finally:
            entry.makes_room = False
        left = None if self._memory is None else self._memory - self._taken(entry)
        entry.loaded = await in_thread(lambda: self._loaded(entry.offered, left))
        entry.loads += 1
        entry.used = time.monotonic()
        entry.idle.set()
        self._start_timer(entry)

    def _loaded(self, offered: OfferedModel, left: int | None) -> LoadedModel:
        name = offered.card.name
        try:
            return self._load(offered, left)
        except Gemma4CompileError as error:
            hint = f"; {error.hint}" if error.hint else ""
            why = f"the model `{name}` cannot be loaded: {error}{hint}"
            failure = ApiError(503, why, code="model_not_loaded")
        except Exception as error:
            _log.error("loading `%s` failed", name, exc_info=error)
            why = f"loading the model `{name}` failed; the server's log has the reason"
            failure = ApiError(500, why, code="internal_error")
        # Without its cause, whose traceback holds what was loaded until then.
        gc.collect()
        self._release()
        raise failure

    async def _make_room(self, entry: _Entry) -> None:
        """Unload others until it fits: who is not used first, then who was not for longest."""
        self._check_ever(entry)
        while not self._fits(entry):
            others = [one for one in self._neighbours(entry) if one.loaded is not None]
            if not others:
                raise self._too_large(entry.offered, self._free(entry.offered) or 0)
            other = min(others, key=lambda one: (one.users > 0, one.used))
            other.leaving = True  # who asks for it from now on waits until it is loaded again
            try:
                await other.idle.wait()
                await self._close(other)
            finally:
                other.leaving = False

    def _fits(self, entry: _Entry) -> bool:
        need = entry.offered.nbytes
        if self._memory is not None:
            return self._taken(entry) + need <= self._memory
        free = self._free(entry.offered)
        return free is None or need <= free

    def _check_ever(self, entry: _Entry) -> None:
        """ApiError for a model that would not fit if it were alone."""
        offered, most = entry.offered, self._memory
        if most is None:
            free = self._free(offered)
            loaded = [one.loaded for one in self._neighbours(entry) if one.loaded is not None]
            if free is None or not all(one.nbytes for one in loaded):
                return  # nobody knows before the others have left
            most = free + self._taken(entry)
        if offered.nbytes > most:
            raise self._too_large(offered, most)

    def _too_large(self, offered: OfferedModel, most: int) -> ApiError:
        found = "--memory allows" if self._memory is not None else "at most there could be"
        return ApiError(
            503,
            f"the model `{offered.card.name}` needs {size_in_words(offered.nbytes)} on "
            f"{offered.device}, where {found} {size_in_words(most)}: start the server with a "
            "shorter --context-length, or compile the model with a smaller recipe",
            code="insufficient_memory",
        )

    def _neighbours(self, entry: _Entry) -> list[_Entry]:
        """The others on its device."""
        device = entry.offered.device
        return [
            one
            for one in self._entries.values()
            if one is not entry and one.offered.device == device
        ]

    def _taken(self, entry: _Entry) -> int:
        """Bytes of the others on its device."""
        found = [one.loaded for one in self._neighbours(entry)]
        return sum(loaded.nbytes for loaded in found if loaded is not None)

    async def _close(self, entry: _Entry) -> None:
        self._stop_timer(entry)
        closing = [entry.loaded]
        entry.loaded = None

        def close() -> None:
            loaded = closing.pop()
            assert loaded is not None, "it was loaded"
            loaded.close()
            del loaded
            gc.collect()  # engines and their states know each other
            self._release()

        closed = self._begin(in_thread(close))
        try:
            await asyncio.shield(closed)
        except asyncio.CancelledError:
            # The turn is kept until the memory is free: the next load counts on it.
            if not self._stopping:
                await closed
            raise
        _log.info("unloaded `%s`", entry.offered.card.name)

    def _start_timer(self, entry: _Entry) -> None:
        self._stop_timer(entry)
        if not self._stopping:
            loop = asyncio.get_running_loop()
            entry.timer = loop.call_later(
                self._idle_s, lambda: self._begin(self._unload_idle(entry))
            )

    async def _unload_idle(self, entry: _Entry) -> None:
        entry.timer, used = None, entry.used
        async with self._turn:
            if entry.used == used:  # not since, while another was loaded
                await self._close_unused(entry)

    def _stop_timer(self, entry: _Entry) -> None:
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None

    def _check_open(self) -> None:
        if self._stopping:
            raise stopping()

    def _begin(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # who waits for it has it; asyncio need not tell it again
