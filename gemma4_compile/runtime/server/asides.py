"""Replies that give their slots to short requests for a while, and then go on as if they had not.

Where no slot is free, a request that is soon answered would wait for the end of a reply that may
be long. So a reply that has written `QUANTUM` tokens since it got its slot can be put aside: all
that its sequence holds is copied to the host's memory. It comes back into the same slot, to the
same bytes, when the other reply has ended, or has written as many tokens itself: then those two go
on in turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gemma4_compile.runtime.engine.slots import Slot, Slots
from gemma4_compile.runtime.server.counts import Counts
from gemma4_compile.runtime.server.run import Run

QUANTUM = 128
"""Tokens between two copies of a reply, so that they take little of its time."""
SHORT_CHUNKS = 4
"""A prompt of more has the other reply wait longer than a quantum takes."""


class Asides:
    """The replies that are put aside; in the engine's thread.

    Attributes
    ----------
    runs : in the order in which they were put aside
    """

    def __init__(self, slots: Slots, counts: Counts) -> None:
        """Begin without any."""
        self.runs: list[Run] = []
        self._slots, self._counts = slots, counts

    def is_short(self, keys: Sequence[int]) -> bool:
        """Return whether little of a prompt has to be read: a reply may be put aside for it."""
        shelf = self._slots.shelf
        if shelf is None:
            return False
        chunk = self._slots.held[0].generator.engine.prefill_chunk
        return len(keys) - shelf.kept(keys) <= SHORT_CHUNKS * chunk

    def is_time(self, run: Run) -> bool:
        """Return whether a reply has had its slot for long, and waits for its next token."""
        due = run.due
        waits = not run.has_ended and due is not None and due.last is not None
        return waits and run.written - run.since >= QUANTUM

    def longest(self, runs: Iterable[Run]) -> Run | None:
        """The reply to put aside: first of those behind which none waits for the slot."""
        if self._slots.shelf is None:
            return None
        able = (run for run in runs if self.is_time(run))
        return max(able, key=lambda run: (-run.slot.lent, run.written - run.since), default=None)

    def put(self, run: Run) -> bool:
        """Free a reply's slot; False, and nothing has changed, where a copy has no room."""
        run.aside = self._slots.put_aside(run.slot)
        if run.aside is None:
            return False
        self.runs.append(run)
        self._counts.put_aside += 1
        return True

    def take_back(self, slot: Slot) -> Run:
        """The reply that has waited longest for a slot, there again, or failed."""
        run = next(run for run in self.runs if run.slot is slot)
        aside, due = run.aside, run.due
        assert aside is not None, "it is put aside"
        assert due is not None, "it waits for its next token"
        self.runs.remove(run)
        run.aside, run.since = None, run.written
        try:
            self._slots.take_back(slot, aside)
        except BaseException as error:  # nothing is left of it
            due.fail(error)
            run.advance()
        return run

    def cancelled(self) -> Iterator[Run]:
        """End those that nobody wants any more."""
        for run in list(self.runs):
            if not run.ticket.is_cancelled:
                continue
            assert run.aside is not None, "it is put aside"
            present = run.generator.swap(run.aside.known)
            run.cancel()
            run.generator.swap(present)
            self._slots.drop(run.slot, run.aside)
            self.runs.remove(run)
            yield run
