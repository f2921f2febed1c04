"""Packages that a server may load, and what the others see of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from starlette.types import ASGIApp

from gemma4_compile.runtime.server.cards import ModelCard
from gemma4_compile.runtime.server.worker import WorkerState


@dataclass(frozen=True)
class OfferedModel:
    """A package that can be asked for.

    Attributes
    ----------
    device : whose memory it takes, in words
    nbytes : of that, with the fewest slots; 0 where an old package does not say
    """

    card: ModelCard
    device: str
    nbytes: int


class LoadedModel(Protocol):
    """A package that answers.

    Attributes
    ----------
    app : its API
    nbytes : of the device's memory, with all its slots
    """

    app: ASGIApp
    nbytes: int

    @property
    def is_alive(self) -> bool:
        """Return whether it answers."""

    def state(self) -> WorkerState:
        """What it is at."""

    def begin_stop(self) -> None:
        """End what runs; returns at once."""

    def close(self) -> None:
        """End it, and let go of its memory."""


Load = Callable[[OfferedModel, "int | None"], LoadedModel]
"""Loads a package, in a thread, into so many bytes at most, or into what is free."""


@dataclass(frozen=True)
class ModelStatus:
    """A model of the pool as others see it.

    Attributes
    ----------
    status : `unloaded`, `loading` or `loaded`, as llama.cpp's server says it
    state : of its worker, where it is loaded
    loads : how often it was loaded
    idle_s : seconds until it is unloaded, if nobody asks; None where that is not known
    """

    card: ModelCard
    status: str
    state: WorkerState | None
    loads: int
    idle_s: float | None
