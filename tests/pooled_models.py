"""Packages of a pool that do nothing: what is loaded, closed and stopped, and in which order."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from starlette.routing import Router

from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.server.cards import ModelCard
from gemma4_compile.runtime.server.counts import Counts
from gemma4_compile.runtime.server.models.offered import OfferedModel
from gemma4_compile.runtime.server.models.pool import ModelPool
from gemma4_compile.runtime.server.worker import WorkerState

LONG_S = 3600.0


@dataclass(eq=False)
class Fake:
    """A loaded model that does nothing."""

    house: House
    name: str
    nbytes: int
    taken: int
    is_alive: bool = True
    app: Any = field(default_factory=Router)

    def state(self) -> WorkerState:
        return WorkerState((), 0, Counts())

    def begin_stop(self) -> None:
        self.house.told.append(f"stop {self.name}")

    def close(self) -> None:
        self.house.closing.set()
        assert self.house.exit.wait(60)
        self.house.told.append(f"-{self.name}")
        self.house.taken -= self.taken


@dataclass
class House:
    """Loads fakes, and knows what they take.

    Attributes
    ----------
    told : what was loaded (+), closed (-) and stopped, in order
    gate, exit : loading waits for the one, closing for the other
    unknown : those that do not say what they take
    remains : of each that began to be loaded
    """

    sizes: dict[str, int]
    memory: int | None = None
    idle_s: float = LONG_S
    queue: int = 16
    free: int | None = None
    told: list[str] = field(default_factory=list)
    taken: int = 0
    failing: set[str] = field(default_factory=set)
    gate: threading.Event = field(default_factory=threading.Event)
    begun: threading.Event = field(default_factory=threading.Event)
    closing: threading.Event = field(default_factory=threading.Event)
    exit: threading.Event = field(default_factory=threading.Event)
    unknown: set[str] = field(default_factory=set)
    remains: list[weakref.ref[Fake]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()
        self.exit.set()

    def load(self, model: OfferedModel, left: int | None) -> Fake:
        name = model.card.name
        fake = Fake(self, name, 0 if name in self.unknown else model.nbytes, model.nbytes)
        self.remains.append(weakref.ref(fake))
        self.begun.set()
        assert self.gate.wait(60)
        if name in self.failing:
            raise ArtifactError("it is damaged", hint="make it again")
        if self.memory is not None:
            assert left == self.memory - self.taken >= model.nbytes
        self.taken += model.nbytes
        self.told.append(f"+{name}")
        return fake

    def pool(self) -> ModelPool:
        models = [
            OfferedModel(ModelCard(name, 512, ("completion",)), "a device", nbytes)
            for name, nbytes in self.sizes.items()
        ]
        return ModelPool(
            models,
            self.load,
            memory=self.memory,
            free=lambda _: None if self.free is None else self.free - self.taken,
            idle_s=self.idle_s,
            queue=self.queue,
        )


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(body(), 60)

    asyncio.run(bounded())


async def touch(pool: ModelPool, name: str) -> None:
    async with pool.using(name):
        pass


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def waiting(pool: ModelPool) -> int:
    return sum(len(entry.waiters) for entry in pool._entries.values())
