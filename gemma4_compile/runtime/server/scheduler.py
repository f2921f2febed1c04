"""Which replies get on: in each turn a token of all that are being written, and one prompt's chunk.

So a reply that is being written waits for one chunk at a time, however long the prompts are. The
chunks go in turns to the prompt that came first and to the one with the least left: a long one
takes at most twice as long as alone among short ones, and short ones do not wait for its end. A
prompt's last rows need no chunk where they ride in the step of the others (ride_pace.py).
Where no slot is free, a short request gets that of a reply which has written for a while
(asides.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gemma4_compile.runtime.engine.beginnings import beginning
from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.runtime.engine.rows_due import RowsDue
from gemma4_compile.runtime.engine.slots import Slot, Slots
from gemma4_compile.runtime.engine.token_due import TokenDue
from gemma4_compile.runtime.server.asides import Asides
from gemma4_compile.runtime.server.counts import Counts
from gemma4_compile.runtime.server.ride_pace import MOST_TURNS, RidePace
from gemma4_compile.runtime.server.run import Run
from gemma4_compile.runtime.server.tickets import Ticket
from gemma4_compile.runtime.speculative.draft_turns import DraftTurns, Turn


class Scheduler:
    """The replies in the slots; in the worker's thread alone.

    Attributes
    ----------
    runs : in the order of their beginnings
    counts : what they have done
    draft_turns : whether several that are written at a time make guesses
    rides : whether a prompt's last rows are read in their step
    asides : the replies that gave their slots to others for a while
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
        self.rides = RidePace()
        self.asides = Asides(slots, self.counts)
        self._ended = ended
        self._is_oldest = False
        self._last_turn = Turn.STEP

    def admit(self, ticket: Ticket) -> None:
        """Give a ticket a slot; there has to be room for one."""
        self._leave_ways()
        begin = Prompt.of(ticket.prompt).keys()[:-1]
        read = (beginning(run.keys, begin) for run in self.runs if run.reads)
        slot = self.slots.take(ticket.prompt, max(read, default=0))
        run = Run(ticket, slot, self.counts)
        if not slot.lent:  # it takes no copy
            run.follow(self.runs)
        self.runs.append(run)
        run.begin()

    def is_short(self, ticket: Ticket) -> bool:
        """Return whether a reply may be put aside for a ticket."""
        return self.asides.is_short(Prompt.of(ticket.prompt).keys())

    def can_make_room(self) -> bool:
        """Return whether a reply could be put aside."""
        return self.asides.longest(self.runs) is not None

    def make_room(self) -> bool:
        """Put a reply aside, if one has written long enough; return whether a slot is free now."""
        run = self.asides.longest(self.runs)
        return run is not None and self._put_aside(run)

    def _put_aside(self, run: Run) -> bool:
        self._leave_ways()
        if not self.asides.is_time(run):  # it has failed
            return False
        try:
            is_aside = self.asides.put(run)
        except BaseException as error:  # of the device: nothing is known of what it holds
            assert run.due is not None, "it waits for its next token"
            run.due.fail(error)
            run.advance()
            run.generator.clear()
            return False
        if is_aside:
            self.runs.remove(run)
        return is_aside

    def _take_back(self, slot: Slot) -> None:
        """Let the reply go on that has waited longest for a slot, which is free."""
        run = self.asides.take_back(slot)
        self.runs.append(run)

    def turn(self) -> None:
        """A chunk of a prompt, then a token of each reply that is being written; or both in one."""
        if len(self.runs) == 1 and self._is_alone(self.runs[0]):
            self.runs[0].advance()
            self._release()
            return
        for run in self.runs:
            if run.ticket.is_cancelled and not run.has_ended:
                run.cancel()
        for run in self.asides.cancelled():
            self._ended(run.ticket)
            run.tell_end()
        for slot in self.slots.held:
            if slot.lent and slot.is_free:  # for whom it was freed has been cancelled
                self._take_back(slot)
        for run in list(self.runs):
            if run.slot.lent and self.asides.is_time(run) and self._put_aside(run):
                self._take_back(run.slot)
        reading, riders, begin = self._next_reading(), 0, time.perf_counter()
        could_ride = False
        if reading is not None:
            self._leave_ways()
            riders, could_ride = self._read(reading)
        going_on, waiting = [run for run in self.runs if not run.has_ended], self._waiting()
        if len(waiting) == len(going_on) == 1:
            going_on[0].advance()
        elif reading is not None and riders:
            if self._ride(waiting, reading, riders):
                self.rides.note_ride(_added(waiting) + riders, time.perf_counter() - begin)
        elif waiting:
            self._take_turn(waiting)
            if could_ride and self._last_turn is Turn.STEP:
                self.rides.note_chunk(time.perf_counter() - begin)
        self._release()

    def _waiting(self) -> list[tuple[Run, TokenDue]]:
        """Those that are being written."""
        return [(run, run.due) for run in self.runs if run.due is not None and not run.has_ended]

    def _take_turn(self, waiting: list[tuple[Run, TokenDue]]) -> None:
        """Give each a token, or several, in the way that is fastest as measured."""
        guesses = self._joint_guesses(waiting)
        self._last_turn = self._kind_of_turn(waiting, joins=guesses > 0)
        match self._last_turn:
            case Turn.JOINT_ROUND:
                self._take_joint_round(waiting, guesses)
            case Turn.ROUNDS:
                self._take_rounds([run for run, _ in waiting])
            case Turn.STEP:
                self._step(waiting)

    def _is_alone(self, run: Run) -> bool:
        """Return whether its next token is all there is to do; looked at before each one."""
        writes = run.due is not None and not run.ticket.is_cancelled
        return writes and not run.slot.lent and not self.asides.runs

    def _release(self) -> None:
        """Free the slots of replies that have ended."""
        for run in [run for run in self.runs if run.has_ended]:
            self.runs.remove(run)
            run.slot.is_free = True
            self._ended(run.ticket)
            run.tell_end()  # now: who hears of it may ask for the slot at once
            if run.slot.lent:
                self._take_back(run.slot)

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

    def _read(self, run: Run) -> tuple[int, bool]:
        """Read a chunk, or return how many of the prompt's last rows ride in the turn's step.

        And whether they could have, where they were read as a chunk.
        """
        if not run.has_begun:
            self._copy(run)
        if not run.has_ended and run.rows is None:
            run.advance()
        riders, could_ride = 0, False
        if run.rows is not None:
            riders = self._riders(run.rows)
            if not riders:
                could_ride = self.slots.engines.most_riding(_added(self._waiting())) > 0
                run.advance()
        self._copy_to_followers(run)
        return riders, could_ride and not run.has_ended

    def _riders(self, rows: RowsDue) -> int:
        """How many rows of a prompt ride in the next step; 0 where it has a chunk for them.

        None where the others have rounds of guesses, which a step would end.
        """
        added = _added(self._waiting())
        most = self.slots.engines.most_riding(added)
        if not most or self._last_turn is not Turn.STEP:
            return 0
        riders, turns = min(len(rows), most), -(-len(rows) // most)
        step_s = self.draft_turns.step_seconds(added)
        pays = turns <= MOST_TURNS and self.rides.pays(added + riders, turns, step_s)
        return riders if pays else 0

    def _ride(self, waiting: list[tuple[Run, TokenDue]], reading: Run, riders: int) -> bool:
        """Have a step of all read rows of a prompt, too; after the last one, choose its token.

        Return whether they were read.
        """
        rows = reading.rows
        assert rows is not None, "they wait"
        left = len(rows)
        self._step(waiting, (rows, riders))
        reading.rest = len(rows)
        if rows.is_over:
            reading.advance()  # which only reads the logits
        is_read = reading.rest < left
        if is_read:
            self.counts.ridden_tokens += riders
        self._copy_to_followers(reading)
        if reading.due is not None:
            self.counts.rows += 1
            self._choose([(reading, reading.due)])
        return is_read

    def _copy_to_followers(self, run: Run) -> None:
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

    def _kind_of_turn(self, waiting: list[tuple[Run, TokenDue]], *, joins: bool) -> Turn:
        """A step of all, or rounds of guesses in its place where they are hoped to be faster."""
        hoped_rate = None
        for run, _ in waiting:
            pace = run.generator.pace  # one that all share
            if pace is None or pace.is_pausing:
                return Turn.STEP
            hoped_rate = pace.hoped_rate
        return self.draft_turns.turn(len(waiting), hoped_rate, joins=joins)

    def _joint_guesses(self, waiting: list[tuple[Run, TokenDue]]) -> int:
        """Guesses of each in a forward of all; 0 where there is none of the kind now."""
        pace = waiting[0][0].generator.pace  # which all share
        if pace is None or any(due.last is None for _, due in waiting):
            return 0
        return min(pace.wanted, self.slots.engines.most_guesses(len(waiting)))

    def _take_joint_round(self, waiting: list[tuple[Run, TokenDue]], guesses: int) -> None:
        """Have one forward check the guesses of all, and let each go to the end of its round."""
        draftings = [run.generator.drafting for run, _ in waiting]
        written = sum(run.written for run, _ in waiting)
        guessed, begin = sum(one.guessed for one in draftings), time.perf_counter()
        try:
            self.slots.begin_rounds([(run.slot, due) for run, due in waiting], guesses)
        except BaseException as error:  # of all of them, for the forward was one
            for _, due in waiting:
                due.fail(error)
        for run, _ in waiting:
            self._finish_round(run)
        seconds = time.perf_counter() - begin
        tokens = sum(run.written for run, _ in waiting) - written
        self.counts.joint_rounds += 1
        self.counts.joint_round_tokens += tokens
        guessed = sum(one.guessed for one in draftings) - guessed
        self.draft_turns.note_joint_round(len(waiting), guessed, tokens, seconds)

    def _finish_round(self, run: Run) -> None:
        """Let a reply go its own way to the end of a round."""
        run.advance()
        while run.due is not None and run.due.in_round:
            run.advance()
        self._leave_way(run)  # a step that it launched ahead, where it made no guesses

    def _take_rounds(self, writing: list[Run]) -> None:
        """Let one after the other go its own way to the end of a round."""
        for run in writing:
            drafting = run.generator.drafting
            written, guessed, begin = run.written, drafting.guessed, time.perf_counter()
            self._finish_round(run)
            seconds = time.perf_counter() - begin
            guesses, tokens = drafting.guessed - guessed, run.written - written
            self.counts.turn_rounds += 1
            self.counts.turn_tokens += tokens
            self.draft_turns.note_round(guesses, tokens, seconds)

    def _step(
        self, waiting: list[tuple[Run, TokenDue]], reading: tuple[RowsDue, int] | None = None
    ) -> None:
        self.counts.steps += 1
        self.counts.rows += len(waiting)
        begin, is_whole = time.perf_counter(), all(due.last is not None for _, due in waiting)
        is_whole = self._choose(waiting, reading) and is_whole
        if is_whole and reading is None:  # the first token after a prompt has no forward
            self.draft_turns.note_step(len(waiting), time.perf_counter() - begin)
        pace = waiting[0][0].generator.pace  # which all share
        if pace is not None:
            pace.note_joint_step()

    def _choose(
        self, waiting: list[tuple[Run, TokenDue]], reading: tuple[RowsDue, int] | None = None
    ) -> bool:
        """Have a step choose a token for each, and let them go on; False after an error."""
        is_done = True
        try:
            self.slots.step([(run.slot, due) for run, due in waiting], reading)
        except BaseException as error:  # of all of them, for the step was one
            for _, due in waiting:
                due.fail(error)
            if reading is not None:
                reading[0].fail(error)
            is_done = False
        for run, _ in waiting:
            run.advance()
        return is_done

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


def _added(waiting: list[tuple[Run, TokenDue]]) -> int:
    """How many have a token to add: the first one after a prompt has no forward."""
    return sum(due.last is not None for _, due in waiting)
