"""A scheduler of a server over scripted engines, turn by turn; no clock is looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from gemma4_compile.runtime.engine.generation import Generation, Generator
from gemma4_compile.runtime.reply.reply import TextDelta
from gemma4_compile.runtime.sampling.sampling import TokenChooser
from gemma4_compile.runtime.server.scheduler import Scheduler
from gemma4_compile.runtime.server.tickets import Ticket
from tests.scripted_engine import (
    ScriptedEngine,
    ScriptedSequences,
    ScriptedShelf,
    greedy,
    slots_of,
)

CHUNK = 16  # tokens of a scripted engine's forward


class Served:
    """A scheduler over some engines, and what becomes of tickets; inside of an event loop."""

    def __init__(
        self, engines: Sequence[ScriptedEngine], shelf: ScriptedShelf | None = None
    ) -> None:
        self.sequences = ScriptedSequences(engines)
        self.ended: list[Ticket] = []
        self.scheduler = Scheduler(slots_of(self.sequences, shelf=shelf), self.ended.append)
        self.turns = 0

    def ask(
        self, prompt: Sequence[int], chooser: TokenChooser = greedy, most: int | None = None
    ) -> Ticket:
        found = self.offer(prompt, chooser, most)
        assert found is not None, "there is a slot"
        return found

    def offer(
        self, prompt: Sequence[int], chooser: TokenChooser = greedy, most: int | None = None
    ) -> Ticket | None:
        """As `ask`; None where no slot is free and no reply can be put aside."""

        def start(generator: Generator) -> Generation:
            return generator.start(prompt, chooser, max_tokens=most, plain=True)

        ticket, scheduler = Ticket(start, lambda _: None, prompt), self.scheduler
        if not scheduler.slots.has_room() and not (
            scheduler.can_make_room() and scheduler.is_short(ticket) and scheduler.make_room()
        ):
            return None
        scheduler.admit(ticket)
        return ticket

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            self.scheduler.turn()
            self.turns += 1

    def finish(self, *tickets: Ticket) -> int:
        """Go on until these have ended; how many turns that took."""
        begin = self.turns
        while not set(tickets) <= set(self.ended):
            assert self.turns < begin + 10_000, "it does not end"
            self.turn()
        return self.turns - begin

    @property
    def log(self) -> list[str]:
        return self.sequences.log


async def told(ticket: Ticket) -> str:
    return "".join([e.text async for e in ticket.events() if isinstance(e, TextDelta)])


def in_loop(body: Callable[[], object]) -> None:
    async def run() -> None:
        result = body()
        if asyncio.iscoroutine(result):
            await result

    asyncio.run(run())


def ids(count: int, seed: int) -> list[int]:
    """A prompt that shares nothing with another one's."""
    return [int(i) for i in np.random.default_rng(seed).integers(300, 1000, count)]


def replies(count: int, length: int = 400) -> list[ScriptedEngine]:
    return [ScriptedEngine([500] * length) for _ in range(count)]
