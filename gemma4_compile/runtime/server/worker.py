"""The thread that owns the engine: one generation at a time, the others wait in a queue."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Generic, TypeVar

from gemma4_compile.runtime.generation import Generation, Generator, PromptProgress
from gemma4_compile.runtime.reply import Event
from gemma4_compile.runtime.server.api_error import ApiError

Starter = Callable[[Generator], Generation]
"""Begins a generation; called in the worker's thread."""

_Item = TypeVar("_Item")
_log = logging.getLogger("gemma4_compile.serve")


class _Channel(Generic[_Item]):
    """Items from the worker's thread to the event loop, in order."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[_Item] = asyncio.Queue()

    def put(self, item: _Item) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody reads any more
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)

    async def get(self) -> _Item:
        return await self._queue.get()


class Ticket:
    """A generation that waits or runs: iterate over its events; `cancel` at any time.

    Attributes
    ----------
    generation : the finished generation, once the events have ended
    """

    def __init__(self, start: Starter) -> None:
        self._start = start
        self._cancelled = threading.Event()
        self._cause: Exception | None = None
        self._channel: _Channel[Event | BaseException | None] = _Channel()
        self.generation: Generation | None = None

    def cancel(self, cause: Exception | None = None) -> None:
        """End it after the token or the chunk of the prompt that runs now.

        Its reader gets `cause`; without one the events just end, for a reader who is gone.
        """
        self._cause = cause
        self._cancelled.set()

    async def events(self) -> AsyncIterator[Event]:
        """Yield the reply's events as they come; raise what the generation raised."""
        while (item := await self._channel.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    def run(self, generator: Generator) -> None:
        """Generate; in the worker's thread."""
        if self._cancelled.is_set():
            self._channel.put(self._cause)
            return
        try:
            self.generation = self._start(generator)
            for event in self.generation:
                if self._cancelled.is_set():
                    self.generation.close()
                    self._channel.put(self._cause)
                    return
                if not isinstance(event, PromptProgress):
                    self._channel.put(event)
            self._channel.put(None)
        except BaseException as error:  # a panic of the tokenizer is no Exception
            self._channel.put(error)  # the next request may well succeed: the state is rewound

    def fail(self, error: BaseException) -> None:
        """End it with an error, where nobody runs it any more."""
        self._channel.put(error)


class Place:
    """A request's place in the queue, from before its prompt is built; given back on leaving."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._held = True

    def __enter__(self) -> Place:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._held:
            self._held = False
            self._worker.give_back()

    def submit(self, start: Starter) -> Ticket:
        """Queue the generation; in the event loop. ApiError as of `Worker.reserve`."""
        assert self._held, "one place is for one request"
        self._held = False
        return self._worker.take_place(start)


class Worker:
    """Loads the model in a thread of its own, which alone touches it."""

    def __init__(self, load: Callable[[], Generator], queue_limit: int) -> None:
        """Prepare.

        Parameters
        ----------
        load : makes the generator; called in the worker's thread
        queue_limit : most requests that wait while one runs
        """
        self._load = load
        self._limit = queue_limit
        self._queue: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self._waiting = 0  # tickets that have not begun
        self._preparing = 0  # places whose tickets are still to come
        self._lock = threading.Lock()
        self._current: Ticket | None = None
        self._stopping = False
        self._cause_of_death: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._loaded: Future[None] = Future()

    def start(self) -> None:
        """Load the model; raises what loading raises."""
        self._thread.start()
        self._loaded.result()

    @property
    def is_alive(self) -> bool:
        """Whether generations can run."""
        return self._cause_of_death is None and (self._thread.is_alive() or self._stopping)

    def reserve(self) -> Place:
        """Take a place in the queue.

        Raises
        ------
        ApiError
            429 if the queue is full, 503 if the server is stopping or its engine has ended.
        """
        with self._lock:
            self._check_open()
            waiting = self._waiting + self._preparing
            if (self._current is not None or waiting > 0) and waiting >= self._limit:
                raise ApiError(
                    429, f"{waiting} requests wait already: try again", code="queue_full"
                )
            self._preparing += 1
            return Place(self)

    def submit(self, start: Starter) -> Ticket:
        """Queue a generation at once; in the event loop. ApiError as of `reserve`."""
        return self.reserve().submit(start)

    def give_back(self) -> None:
        """Free the place of a request that comes to nothing."""
        with self._lock:
            self._preparing -= 1

    def take_place(self, start: Starter) -> Ticket:
        """Queue a generation in a place that was reserved."""
        with self._lock:
            self._preparing -= 1
            self._check_open()
            ticket = Ticket(start)
            self._waiting += 1
            self._queue.put(ticket)
            return ticket

    def _check_open(self) -> None:
        if self._stopping:
            raise _stopping()
        if not self.is_alive:
            raise _dead()

    def begin_stop(self) -> None:
        """Take no more requests, end what runs, refuse what waits; returns at once."""
        with self._lock:
            self._stopping = True
            if self._current is not None:
                self._current.cancel(_stopping())
            self._queue.put(None)

    def stop(self) -> None:
        """Do so, and wait until the thread has ended."""
        self.begin_stop()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            generator = self._load()
        except BaseException as error:
            self._loaded.set_exception(error)
            return
        self._loaded.set_result(None)
        try:
            self._serve(generator)
        except BaseException as error:  # nothing is known that does this; if it happens, say so
            _log.critical("the engine's thread has ended", exc_info=error)
            self._die(error)

    def _serve(self, generator: Generator) -> None:
        while (ticket := self._queue.get()) is not None:
            with self._lock:
                self._waiting -= 1
                self._current = ticket
                if self._stopping:
                    ticket.cancel(_stopping())
            ticket.run(generator)
            with self._lock:
                self._current = None

    def _die(self, error: BaseException) -> None:
        """End what runs and what waits: nothing will run any more."""
        with self._lock:
            self._cause_of_death = error
            current, self._current = self._current, None
            if current is not None:
                current.fail(_dead())
            while not self._queue.empty():
                if (ticket := self._queue.get()) is not None:
                    self._waiting -= 1
                    ticket.fail(_dead())


def _stopping() -> ApiError:
    return ApiError(503, "the server is stopping")


def _dead() -> ApiError:
    return ApiError(503, "the engine has ended: start the server again", code="engine_ended")
