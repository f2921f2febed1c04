"""Which replies get on: in each turn a token of all that are being written, and one prompt's chunk.

So a reply that is being written waits for one chunk at a time, however long the prompts are. The
chunks go in turns to the prompt that came first and to the one with the least left: a long one
takes at most twice as long as alone among short ones, and short ones do not wait for its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

from gemma4_compile.runtime.engine.generation import Generator
from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.runtime.engine.prompt_reading import PromptProgress
from gemma4_compile.runtime.engine.slots import LEAST_FORK, Slot, Slots, beginning
from gemma4_compile.runtime.engine.token_due import TokenDue
from gemma4_compile.runtime.reply.reply import Event
from gemma4_compile.runtime.server.counts import Counts
from gemma4_compile.runtime.server.tickets import Ticket
from gemma4_compile.runtime.speculative.draft_turns import DraftTurns


class Run:
    """A ticket's generation in a slot.

    Attributes
    ----------
    due : where it waits for its next token; None while it does not
    rest : tokens of the prompt that are still to be read, as far as is known
    written : tokens of the reply so far
    leader : another one that reads what the prompt begins with, until that can be copied
    has_begun, has_read, has_ended : whether a chunk of the prompt was read, and all of it, and
        whether the reply is over
    """

    def __init__(self, ticket: Ticket, slot: Slot, counts: Counts) -> None:
        """Take a slot, which is no longer free."""
        self.ticket, self.slot = ticket, slot
        self.written = 0
        self._counts = counts
        self._begun_s = time.perf_counter()
        counts.waited_s.add(self._begun_s - ticket.queued_s)
        self.keys = Prompt.of(ticket.prompt).keys()
        self.due: TokenDue | None = None
        self.rest = len(self.keys) - slot.shared(self.keys)
        self.has_begun = self.has_read = self.has_ended = False
        self.leader: Run | None = None
        self._shared = 0
        self._tell_end: Callable[[], None] | None = None
        self._events: Iterator[Event | PromptProgress | TokenDue] = iter(())

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
        """Go on to the end of a chunk of the prompt, or to where a token is due."""
        self.due, begins, self.has_begun = None, not self.has_begun, True
        try:
            for event in self._events:
                if self.ticket.is_cancelled:
                    self.cancel()
                    return
                if isinstance(event, TokenDue):
                    self.due, self.has_read = event, True
                    self._count()
                    return
                if not isinstance(event, PromptProgress):
                    self.ticket.tell(event)
                    self._count()  # the reader has it: the prompt's end may be kept next
                    continue
                self.rest = event.total - event.done
                self._counts.read_tokens += event.read
                if begins:
                    self._counts.held_tokens += event.done - event.read
                    begins = False
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
        self.due, self.has_ended, self._tell_end = None, True, tell
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


class Scheduler:
    """The replies in the slots; in the worker's thread alone.

    Attributes
    ----------
    runs : in the order of their beginnings
    counts : what they have done
    draft_turns : whether several that are written at a time make guesses
    """

    def __init__(self, slots: Slots, ended: Callable[[Ticket], None]) -> None:
        """Begin without any.

        Parameters
        ----------
        ended : is told of every ticket whose slot is free again
        """
        self.slots = slots
        self.runs: list[Run] = []
        self.counts = Counts()
        self.draft_turns = DraftTurns()
        self._ended = ended
        self._is_oldest = False

    def admit(self, ticket: Ticket) -> None:
        """Give a ticket a slot; there has to be room for one."""
        self._leave_ways()
        begin = Prompt.of(ticket.prompt).keys()[:-1]
        read = (beginning(run.keys, begin) for run in self.runs if run.reads)
        slot = self.slots.take(ticket.prompt, max(read, default=0))
        run = Run(ticket, slot, self.counts)
        run.follow(self.runs)
        self.runs.append(run)
        run.begin()

    def turn(self) -> None:
        """A chunk of a prompt, then a token of each reply that is being written."""
        for run in self.runs:
            if run.ticket.is_cancelled and not run.has_ended:
                run.cancel()
        reading = self._next_reading()
        if reading is not None:
            self._leave_ways()
            self._read(reading)
        going_on = [run for run in self.runs if not run.has_ended]
        waiting = [(run, run.due) for run in going_on if run.due is not None]
        if len(waiting) == len(going_on) == 1:
            going_on[0].advance()
        elif self._guesses(waiting):
            self._take_rounds([run for run, _ in waiting])
        elif waiting:
            self._step(waiting)
        for run in [run for run in self.runs if run.has_ended]:
            self.runs.remove(run)
            run.slot.is_free = True
            self._ended(run.ticket)
            run.tell_end()  # now: who hears of it may ask for the slot at once

    def _next_reading(self) -> Run | None:
        """The one whose prompt's chunk is next."""
        reading = [run for run in self.runs if run.reads]
        if not reading:
            return None
        self._is_oldest = not self._is_oldest
        found = reading[0] if self._is_oldest else min(reading, key=lambda run: run.before)
        while found.waits:  # its turn is that of the one that it waits for
            assert found.leader is not None, "what it waits for"
            found = found.leader
        return found

    def _read(self, run: Run) -> None:
        if not run.has_begun:
            self._copy(run)
        if not run.has_ended:
            run.advance()
        for other in self.runs:  # now: rings do not reach back far
            if other.leader is run and not other.waits and not other.has_ended:
                self._copy(other)

    def _copy(self, run: Run) -> None:
        """Give one that has not begun what another slot holds of its prompt."""
        run.leader = None
        try:
            self.slots.fork(run.slot, run.ticket.prompt)
        except BaseException as error:  # its slot is empty, and the others go on
            run.fail(error)
        run.rest = len(run.keys) - run.slot.shared(run.keys)

    def _guesses(self, waiting: list[tuple[Run, TokenDue]]) -> bool:
        """Return whether each is to have a round of guesses in the place of a step of all."""
        hoped_rate = None
        for run, _ in waiting:
            pace = run.generator.pace  # one that all share
            if pace is None or pace.is_pausing:
                return False
            hoped_rate = pace.hoped_rate
        return bool(waiting) and self.draft_turns.pays(len(waiting), hoped_rate)

    def _take_rounds(self, writing: list[Run]) -> None:
        """Let one after the other go its own way to the end of a round."""
        for run in writing:
            drafting = run.generator.drafting
            written, guessed, begin = run.written, drafting.guessed, time.perf_counter()
            run.advance()
            while run.due is not None and run.due.in_round:
                run.advance()
            self._leave_way(run)  # a step that it launched ahead, where it made no guesses
            seconds = time.perf_counter() - begin
            guesses, tokens = drafting.guessed - guessed, run.written - written
            self.counts.turn_rounds += 1
            self.counts.turn_tokens += tokens
            self.draft_turns.note_round(guesses, tokens, seconds)

    def _step(self, waiting: list[tuple[Run, TokenDue]]) -> None:
        self.counts.steps += 1
        self.counts.rows += len(waiting)
        begin, is_whole = time.perf_counter(), all(due.last is not None for _, due in waiting)
        try:
            self.slots.step([(run.slot, due) for run, due in waiting])
        except BaseException as error:  # of all of them, for the step was one
            for _, due in waiting:
                due.fail(error)
            is_whole = False
        for run, _ in waiting:
            run.advance()
        if is_whole:  # the first token after a prompt has no forward
            self.draft_turns.note_step(len(waiting), time.perf_counter() - begin)
        pace = waiting[0][0].generator.pace  # which all share
        if pace is not None:
            pace.note_joint_step()

    def _leave_ways(self) -> None:
        """End what a reply began ahead while it was alone."""
        for run in self.runs:
            self._leave_way(run)

    def _leave_way(self, run: Run) -> None:
        if run.due is not None:
            try:
                run.due.leave_way()
            except BaseException as error:
                run.fail(error)
