"""A reply of a server in its slot: how far it is, and what it waits for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

from gemma4_compile.runtime.engine.aside import Aside
from gemma4_compile.runtime.engine.beginnings import beginning
from gemma4_compile.runtime.engine.generation import Generator, Paused
from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.runtime.engine.prompt_reading import PromptProgress
from gemma4_compile.runtime.engine.rows_due import RowsDue
from gemma4_compile.runtime.engine.slots import LEAST_FORK, Slot
from gemma4_compile.runtime.engine.token_due import TokenDue
from gemma4_compile.runtime.server.counts import Counts
from gemma4_compile.runtime.server.tickets import Ticket


class Run:
    """A ticket's generation in a slot.

    Attributes
    ----------
    due : where it waits for its next token; None while it does not
    rows : where it waits for the last rows of its prompt; None while it does not
    rest : tokens of the prompt that are still to be read, as far as is known
    written : tokens of the reply so far
    since : how many of these it had when it got the slot, for the first time or again
    aside : what it goes on from; None while it has the slot
    leader : another one that reads what the prompt begins with, until that can be copied
    has_begun, has_read, has_ended : whether a chunk of the prompt was read, and all of it, and
        whether the reply is over
    """

    def __init__(self, ticket: Ticket, slot: Slot, counts: Counts) -> None:
        """Take a slot, which is no longer free."""
        self.ticket, self.slot = ticket, slot
        self.written = self.since = 0
        self.aside: Aside | None = None
        self._counts = counts
        self._begun_s = time.perf_counter()
        counts.waited_s.add(self._begun_s - ticket.queued_s)
        self.keys = Prompt.of(ticket.prompt).keys()
        self.due: TokenDue | None = None
        self.rows: RowsDue | None = None
        self.rest = len(self.keys) - slot.shared(self.keys)
        self.has_begun = self.has_read = self.has_ended = False
        self.leader: Run | None = None
        self._shared = 0
        self._tell_end: Callable[[], None] | None = None
        self._is_held_counted = False
        self._events: Iterator[Paused] = iter(())

    @property
    def generator(self) -> Generator:
        """What generates in its slot."""
        return self.slot.generator

    @property
    def reads(self) -> bool:
        """Return whether chunks of its prompt are to be read."""
        return not (self.has_read or self.has_ended)

    @property
    def state(self) -> str:
        """What is done in its slot, in a word."""
        return "writes" if not self.reads else "waits" if self.waits else "reads"

    @property
    def waits(self) -> bool:
        """Return whether another one reads what its prompt begins with, and it can have a copy."""
        leader = self.leader
        return leader is not None and leader.reads and leader.held < self._shared

    @property
    def before(self) -> int:
        """Tokens to read before its own first one is chosen, those that another reads for it, too.

        As far as that waits itself, less than it takes.
        """
        if not self.waits:
            return self.rest
        assert self.leader is not None, "what it waits for"
        return self.rest + self._shared - self.leader.held

    @property
    def held(self) -> int:
        """Tokens of its own that its slot holds: at first those that another prompt left there."""
        if not self.has_begun:
            return self.slot.shared(self.keys)
        return len(self.generator.held_keys)

    def begin(self) -> None:
        """Make the generation, of which nothing runs yet."""
        try:
            self._events = self.ticket.begin(self.generator).pausing()
        except BaseException as error:  # a panic of the tokenizer is no Exception
            self._end(error)

    def follow(self, others: list[Run]) -> None:
        """Wait for the other one that reads most of what the prompt begins with, if it is worth it.

        Only then: what another slot holds already can be copied at once.
        """
        shared = {run: beginning(run.keys, self.keys[:-1]) for run in others if run.reads}
        leader = max(shared, key=lambda run: shared[run], default=None)
        if leader is not None and shared[leader] >= self.slot.shared(self.keys) + LEAST_FORK:
            self.leader, self._shared = leader, shared[leader]
            self.rest = len(self.keys) - self._shared

    def advance(self) -> None:
        """Go on to the end of a chunk of the prompt, or to where last rows or a token are due."""
        self.due, self.rows, self.has_begun = None, None, True
        try:
            for event in self._events:
                if self.ticket.is_cancelled:
                    self.cancel()
                    return
                if isinstance(event, TokenDue):
                    self.due, self.has_read = event, True
                    self._count()
                    return
                if isinstance(event, RowsDue):
                    self.rows, self.rest = event, len(event)
                    return
                if not isinstance(event, PromptProgress):
                    self.ticket.tell(event)
                    self._count()  # the reader has it: the prompt's end may be kept next
                    continue
                self.rest = event.total - event.done
                self._counts.read_tokens += event.read
                if not self._is_held_counted:
                    self._counts.held_tokens += event.done - event.read
                    self._is_held_counted = True
                if self.rest:
                    return
            self._end(None)
        except BaseException as error:
            self._end(error)  # the next request may well succeed: the state is rewound

    def cancel(self) -> None:
        """End it here, for a reader who does not want more of it."""
        generation = self.ticket.generation
        try:
            if generation is not None:
                generation.close()
        except BaseException as error:  # of the device, as it takes back what was begun ahead
            self._end(error)
        else:
            self._leave("cancelled", self.ticket.end)

    def fail(self, error: BaseException) -> None:
        """End it with an error of what was done for it."""
        self._end(error)

    def tell_end(self) -> None:
        """Let the reader know that it is over."""
        tell, self._tell_end = self._tell_end, None  # an error knows this object
        assert tell is not None, "it is over, and nobody knows"
        tell()

    def _end(self, error: BaseException | None) -> None:
        generation = self.ticket.generation
        if error is not None or generation is None:
            cause = error or RuntimeError("a reply has ended that never began")
            self._leave("error", partial(self.ticket.fail, cause))
        else:
            self._leave(generation.finish_reason, self.ticket.finish)

    def _leave(self, how: str, tell: Callable[[], None]) -> None:
        self.due, self.rows, self.has_ended, self._tell_end = None, None, True, tell
        self._count()
        self._counts.ended[how] = self._counts.ended.get(how, 0) + 1
        generation = self.ticket.generation
        if generation is not None and generation.drafting is not None:
            self._counts.guessed_tokens += generation.drafting.guessed
            self._counts.accepted_tokens += generation.drafting.accepted
        if self.generator.is_interrupted:  # a state within a forward would hold up the others
            self.generator.clear()

    def _count(self) -> None:
        generation = self.ticket.generation
        if generation is None:
            return
        tokens = len(generation.token_ids)
        if tokens and not self.written:
            self._counts.first_token_s.add(time.perf_counter() - self.ticket.queued_s)
        self._counts.generated_tokens += tokens - self.written
        self.written = tokens
