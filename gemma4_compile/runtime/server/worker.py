"""The thread that owns the engine: replies in its slots, the others wait in a queue."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType

from gemma4_compile.runtime.engine.beginnings import KeptCounts
from gemma4_compile.runtime.engine.expert_cache import ExpertCounts
from gemma4_compile.runtime.engine.media_prompt import Tokens
from gemma4_compile.runtime.engine.slots import Slots
from gemma4_compile.runtime.server.api_error import ApiError, stopping
from gemma4_compile.runtime.server.counts import Counts
from gemma4_compile.runtime.server.scheduler import Scheduler
from gemma4_compile.runtime.server.tickets import Starter, Ticket

_log = logging.getLogger("gemma4_compile.serve")


class Place:
    """A request's place in the queue, from before its prompt is built until its first reply begins.

    Given back on leaving, if nothing was submitted.

    Attributes
    ----------
    waits : it counts among the requests that wait
    tickets, running : its generations that have not begun, and those that have not ended since
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._submitted = False
        self.waits = True
        self.tickets = self.running = 0

    def __enter__(self) -> Place:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._submitted:
            self._submitted = True
            self._worker.give_back(self)

    def submit(self, *starts: Starter, prompt: Tokens = ()) -> list[Ticket]:
        """Queue the request's generations; in the event loop. ApiError as of `Worker.reserve`.

        Parameters
        ----------
        prompt : what all of them begin with
        """
        assert not self._submitted, "one place is for one request"
        tickets = self._worker.queue(self, starts, prompt)
        self._submitted = True
        return tickets


@dataclass(frozen=True)
class SlotState:
    """A slot as others see it.

    Attributes
    ----------
    doing : `free`, `reads` a prompt, `waits` for another slot that reads what both begin with, or
        `writes` a reply
    held : tokens of a conversation that are there, or chosen last
    prompt, written : tokens of the request's prompt, and of its reply so far
    """

    number: int
    doing: str = "free"
    held: int = 0
    prompt: int = 0
    written: int = 0


@dataclass(frozen=True)
class WorkerState:
    """What a worker is at.

    Attributes
    ----------
    waiting : requests of which nothing has begun
    kept : beginnings of prompts; None where none are kept
    experts : a cache of them; None where there is none
    """

    slots: tuple[SlotState, ...]
    waiting: int
    counts: Counts
    kept: KeptCounts | None = None
    experts: ExpertCounts | None = None


class Worker:
    """Loads the model in a thread of its own, which alone touches it."""

    def __init__(self, load: Callable[[], Slots], queue_limit: int) -> None:
        """Prepare.

        Parameters
        ----------
        load : makes the slots; called in the worker's thread
        queue_limit : most requests that wait while every slot is taken
        """
        self._load = load
        self._limit = queue_limit
        self._queue: dict[Ticket, Place] = {}  # in the order of their turns
        self._waiting = 0  # requests of which nothing has begun
        self._changed = threading.Condition()
        self._running: dict[Ticket, Place] = {}
        self._long = set[Ticket]()  # of the queue's, known to be for no reply to be put aside
        self._scheduler: Scheduler | None = None
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
        """Return whether generations can run."""
        return self._cause_of_death is None and (self._thread.is_alive() or self._stopping)

    def state(self) -> WorkerState:
        """What runs and what waits; right a moment ago."""
        scheduler, waiting = self._scheduler, self._waiting
        if scheduler is None:
            return WorkerState((), waiting, Counts())
        runs = {run.slot.number: run for run in list(scheduler.runs)}
        slots = [SlotState(number) for number in range(scheduler.slots.most)]
        for slot in list(scheduler.slots.held):
            run = runs.get(slot.number)
            if run is None or run.has_ended:
                held = len(slot.generator.held_keys)
                slots[slot.number] = SlotState(slot.number, held=held)
            else:
                prompt, written = len(run.keys), run.written
                held = prompt - run.rest + written
                slots[slot.number] = SlotState(slot.number, run.state, held, prompt, written)
        kept = scheduler.slots.kept
        experts = scheduler.slots.experts
        return WorkerState(
            tuple(slots),
            waiting,
            scheduler.counts,
            None if kept is None else kept(),
            None if experts is None else experts(),
        )

    def reserve(self) -> Place:
        """Take a place in the queue.

        Raises
        ------
        ApiError
            429 if the queue is full, 503 if the server is stopping or its engine has ended.
        """
        with self._changed:
            self._check_open()
            waiting = self._waiting
            free = self._free()
            # those that slots are free for count, but for one, until their prompts are built
            if waiting >= max(self._limit + max(free - 1, 0), free):
                raise ApiError(
                    429, f"{waiting} requests wait already: try again", code="queue_full"
                )
            self._waiting += 1
            return Place(self)

    def submit(self, start: Starter) -> Ticket:
        """Queue a generation at once; in the event loop. ApiError as of `reserve`."""
        return self.reserve().submit(start)[0]

    def give_back(self, place: Place) -> None:
        """Free the place of a request that comes to nothing."""
        with self._changed:
            self._wait_no_more(place)

    def queue(self, place: Place, starts: Sequence[Starter], prompt: Tokens) -> list[Ticket]:
        """Queue generations, one after another, in a place that was reserved."""
        with self._changed:
            self._check_open()
            tickets = [Ticket(start, self._leave, prompt) for start in starts]
            place.tickets = len(tickets)
            self._queue.update(dict.fromkeys(tickets, place))
            self._changed.notify()
            return tickets

    def _leave(self, ticket: Ticket) -> None:
        """Take a cancelled ticket out of the queue; with its last one a request's place is free."""
        with self._changed:
            place = self._queue.pop(ticket, None)
            if place is not None:
                place.tickets -= 1
                if place.tickets == 0:
                    self._wait_no_more(place)
        if place is not None:
            ticket.end()

    def _wait_no_more(self, place: Place) -> None:
        if place.waits:
            place.waits = False
            self._waiting -= 1

    def _check_open(self) -> None:
        if self._stopping:
            raise stopping()
        if not self.is_alive:
            raise _dead()

    def begin_stop(self) -> None:
        """Take no more requests, end what runs, refuse what waits; returns at once."""
        with self._changed:
            self._stopping = True
            for ticket in (*self._running, *self._queue):
                ticket.cancel(stopping())
            self._changed.notify()

    def stop(self) -> None:
        """Do so, and wait until the thread has ended."""
        self.begin_stop()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            slots = self._load()
        except BaseException as error:
            self._loaded.set_exception(error)
            return
        self._scheduler = Scheduler(slots, self._ended)
        self._loaded.set_result(None)
        try:
            self._serve(self._scheduler)
        except BaseException as error:  # nothing is known that does this; if it happens, report it
            _log.critical("the engine's thread has ended", exc_info=error)
            self._die(error)

    def _serve(self, scheduler: Scheduler) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._running or self._stopping)
                if self._stopping and not self._running:
                    return
                waits = bool(self._queue)
            while waits:
                has_room = scheduler.slots.has_room()
                ticket = self._next() if has_room else self._next_short(scheduler)
                if ticket is None:
                    break
                scheduler.admit(ticket)
            scheduler.turn()

    def _next(self) -> Ticket | None:
        """The ticket whose turn it is; None where none waits.

        The first one of the request with the fewest running: one for many replies does not keep
        slots from others.
        """
        with self._changed:
            if not self._queue:
                return None
            ticket = min(self._queue, key=lambda waiting: self._queue[waiting].running)
            self._take(ticket)
            return ticket

    def _next_short(self, scheduler: Scheduler) -> Ticket | None:
        """The first ticket for which a reply was put aside; None where none is, or can be.

        A request of which a reply runs already waits.
        """
        if not scheduler.can_make_room():
            return None
        with self._changed:
            waiting = [ticket for ticket, place in self._queue.items() if not place.running]
        self._long.intersection_update(waiting)
        for ticket in waiting:
            if ticket in self._long:
                continue
            if not scheduler.is_short(ticket):
                self._long.add(ticket)
            elif not scheduler.make_room():
                return None
            else:
                with self._changed:
                    if ticket in self._queue:
                        self._take(ticket)
                        return ticket
                return self._next()  # it was cancelled meanwhile: the slot is anybody's
        return None

    def _take(self, ticket: Ticket) -> None:
        """Let a ticket run; the lock is held."""
        place = self._running[ticket] = self._queue.pop(ticket)
        place.tickets -= 1
        place.running += 1
        self._wait_no_more(place)

    def _ended(self, ticket: Ticket) -> None:
        with self._changed:
            self._running.pop(ticket).running -= 1

    def _free(self) -> int:
        """How many generations could begin at once."""
        return 0 if self._scheduler is None else self._scheduler.slots.most - len(self._running)

    def _die(self, error: BaseException) -> None:
        """End what runs and what waits: nothing will run any more."""
        with self._changed:
            self._cause_of_death = error
            for ticket in (*self._running, *self._queue):
                ticket.fail(_dead())
            self._running.clear()
            self._queue.clear()
            self._waiting = 0


def _dead() -> ApiError:
    return ApiError(503, "the engine has ended: start the server again", code="engine_ended")
