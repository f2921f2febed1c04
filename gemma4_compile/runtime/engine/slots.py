"""Slots of a server: each generates on a sequence of its own, and keeps it for the next prompt."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import count

from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.engine.aside import Aside, Known, Shelf
from gemma4_compile.runtime.engine.beginnings import KeptCounts, beginning
from gemma4_compile.runtime.engine.expert_cache import ExpertCounts
from gemma4_compile.runtime.engine.generation import Generator
from gemma4_compile.runtime.engine.media_prompt import Prompt, Tokens
from gemma4_compile.runtime.engine.rows_due import RowsDue
from gemma4_compile.runtime.engine.sequence_engine import SeveralEngines
from gemma4_compile.runtime.engine.token_due import TokenDue
from gemma4_compile.runtime.engine.token_engine import TokenEngine

LEAST_FORK = 32
"""Tokens that a fork must spare: fewer are as soon read."""
WORTH_ALL = 4
"""So many times the tokens that a prompt shares with a slot are copied at most, to have those."""

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Slot:
    """A place where one reply at a time is generated.

    Attributes
    ----------
    is_free : no reply has it
    used : a number that grows with every prompt of any slot
    lent : replies that are put aside and come back here
    """

    number: int
    generator: Generator
    is_free: bool = True
    used: int = 0
    lent: int = 0

    def shared(self, keys: Sequence[int]) -> int:
        """Tokens at the beginning of a prompt that it holds; the last one has to be read again."""
        return beginning(self.generator.held_keys, keys[:-1])

    def is_half_shared(self, keys: Sequence[int]) -> bool:
        """Return whether that is half of the prompt, or of what it holds."""
        return 2 * self.shared(keys) >= max(min(len(keys), len(self.generator.held_keys)), 1)


@dataclass
class Slots:
    """Up to `engines.most` of them; each is added, and its memory taken, with the first need.

    Attributes
    ----------
    engines : the engine's sequences
    make : a generator for one of these
    kept : what they share besides, counted; None where nothing is kept
    shelf : keeps replies that are put aside; None where none is
    experts : what became of a cache of experts; None where there is none
    most : how many there may be; fewer once the device has had no room for another
    """

    engines: SeveralEngines
    make: Callable[[TokenEngine], Generator]
    kept: Callable[[], KeptCounts] | None = None
    shelf: Shelf | None = None
    experts: Callable[[], ExpertCounts] | None = None
    most: int = field(init=False)
    held: list[Slot] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        """Begin with one, which the engine always has."""
        self.most = self.engines.most
        self._turns = count(1)
        self._add()

    @property
    def free(self) -> int:
        """How many replies could begin now."""
        return self.most - sum(not slot.is_free for slot in self.held)

    def has_room(self) -> bool:
        """Return whether a reply can begin; takes memory for a slot if it needs a new one."""
        return any(slot.is_free for slot in self.held) or self._add()

    def take(self, prompt: Tokens, read: int = 0) -> Slot:
        """The free slot that a prompt goes on from best, no longer free; there is one.

        The one that shares the longest beginning with it, if that is at least half of the prompt or
        of what the slot holds: a chat's template alone begins all prompts with the same. Else the
        first one, if no other reply runs and there are guesses: their graphs, which are a slot's
        own, are recorded there; else one that was not used yet; else the one
        whose last use is the longest ago. Of these, one that can have a copy of what a slot that is
        not free holds of the prompt, or is about to.

        Parameters
        ----------
        read : tokens at the beginning of the prompt that another reply is about to read
        """
        keys = Prompt.of(prompt).keys()
        free = [slot for slot in self.held if slot.is_free]
        found = max(free, key=lambda slot: slot.shared(keys), default=None)
        if found is None or not found.is_half_shared(keys):
            taken = (slot.shared(keys) for slot in self.held if not slot.is_free)
            if max(read, *taken, 0) >= LEAST_FORK:
                free = [slot for slot in free if self._takes_copies(slot)] or free
            found = self._unshared(free)
        found.is_free, found.used = False, next(self._turns)
        return found

    def _takes_copies(self, slot: Slot) -> bool:
        engine = slot.generator.engine
        return self.engines.can_fork(engine, engine, 0)

    def _unshared(self, free: Sequence[Slot]) -> Slot:
        """As `take`, for a prompt that goes on from nothing."""
        if len(free) == len(self.held):
            guessing = next((slot for slot in free if slot.generator.pace is not None), None)
            if guessing is not None:
                return guessing
        if all(slot.used for slot in free) and self._add():
            return self.held[-1]
        return min(free, key=lambda slot: slot.used)

    def _add(self) -> bool:
        """Add a slot, if there may be another one and the device has room for it."""
        if len(self.held) >= self.most:
            return False
        try:
            generator = self.make(self.engines.add())
        except ArtifactError as error:
            self.most = len(self.held)
            _log.warning("%d slots in the place of %d: %s", self.most, self.engines.most, error)
            return False
        if self.held and generator.pace is not None:  # a round takes as long in each of them
            generator.pace = self.held[0].generator.pace or generator.pace
        self.held.append(Slot(len(self.held), generator))
        return True

    def fork(self, child: Slot, prompt: Tokens) -> bool:
        """Copy a beginning of a prompt from the slot that can give most of it, if that is enough.

        Where no other one has enough more of it, the slot keeps what it holds. No reply may be
        within what it launched ahead. A slot that is lent keeps its sequence, and takes no copy.

        Where the rings of that one have gone on too far, and those are kept elsewhere, all that it
        holds is copied: then full layers have their rows when the rings come (`Generator.rewind`).
        """
        if child.lent:
            return False
        prompt = Prompt.of(prompt)
        keys = prompt.keys()
        own, engine = child.shared(keys), child.generator.engine
        shared = {slot.number: slot.shared(keys) for slot in self.held}
        are_kept = cache(partial(self._reaches, prompt, own))  # the same for every slot
        for parent in sorted(self.held, key=lambda slot: -shared[slot.number]):
            count = shared[parent.number]
            if count < own + LEAST_FORK:
                break
            copied = count
            can_fork = partial(self.engines.can_fork, parent.generator.engine, engine)
            if not can_fork(copied):
                copied = len(parent.generator.held_keys)
                if copied > WORTH_ALL * count or not can_fork(copied) or not are_kept():
                    continue
            child.generator.leave(own)
            return self._copy(parent, child, copied, count)
        return False

    def _reaches(self, prompt: Prompt, own: int) -> bool:
        """Return whether rings are kept of enough more than `own` tokens of a prompt."""
        return self.shelf is not None and self.shelf.reach(prompt) >= own + LEAST_FORK

    def _copy(self, parent: Slot, child: Slot, count: int, shared: int) -> bool:
        try:
            is_copied = self.engines.fork(parent.generator.engine, child.generator.engine, count)
        except BaseException:
            child.generator.clear()
            raise
        if is_copied:
            child.generator.adopt(parent.generator, count, shared)
        else:
            child.generator.clear()
        return is_copied

    def put_aside(self, slot: Slot) -> Aside | None:
        """Free a slot whose reply waits for its next token, and has launched nothing ahead.

        None, and nothing has changed, where there is no room for a copy.
        """
        generator = slot.generator
        if self.shelf is None or len(generator.held_keys) != generator.engine.length:
            return None
        copy = self.shelf.save(generator.engine)
        if copy is None:
            return None
        aside = Aside(generator.swap(Known()), copy)
        generator.clear()
        slot.lent += 1
        slot.is_free = True
        return aside

    def take_back(self, slot: Slot, aside: Aside) -> None:
        """Have a free slot be at a reply again that was put aside from it, with all that it held.

        After an error the slot holds nothing, and the reply cannot go on.
        """
        assert self.shelf is not None, "something was put aside"
        generator = slot.generator
        slot.lent -= 1
        slot.is_free = False
        generator.leave(0)
        generator.clear()
        try:
            self.shelf.restore(generator.engine, aside.copy)
        except BaseException:
            generator.clear()
            generator.swap(Known(client=aside.known.client, drafting=aside.known.drafting))
            raise
        generator.swap(aside.known)

    def drop(self, slot: Slot, aside: Aside) -> None:
        """Forget a reply that was put aside."""
        assert self.shelf is not None, "something was put aside"
        slot.lent -= 1
        self.shelf.drop(aside.copy)

    def step(
        self,
        dues: Iterable[tuple[Slot, TokenDue]],
        reading: tuple[RowsDue, int] | None = None,
    ) -> None:
        """Give each the token that a step of all chooses; an error is for all of them to `fail`.

        `reading` : another one, of whose prompt's last rows the step reads so many, too
        """
        slots, waiting = zip(*dues, strict=True)
        for due in waiting:
            due.join()
        engines = [slot.generator.engine for slot in slots]
        last = [due.last for due in waiting]
        riding = None if reading is None else reading[0].begin(reading[1])
        tokens = self.engines.step(engines, last, [due.chooser for due in waiting], riding)
        if reading is not None:
            reading[0].end()
        for due, token_id in zip(waiting, tokens, strict=True):
            due.give(token_id)

    def begin_rounds(self, dues: Iterable[tuple[Slot, TokenDue]], drafts: int) -> None:
        """Add the last token of each and guesses in one forward, whose tokens each takes next.

        None is after a prompt. An error is for all of them to `fail`.
        """
        slots, waiting = zip(*dues, strict=True)
        for due in waiting:
            due.join()
        engines = [slot.generator.engine for slot in slots]
        last = [due.last for due in waiting if due.last is not None]
        self.engines.begin_rounds(engines, last, drafts)
