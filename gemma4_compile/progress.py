"""Progress of a run: the protocol that every stage knows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

ByteProgress = Callable[[int], None]
"""Called with each number of finished bytes; the first call gives those of an earlier run."""


class Reporter(Protocol):
    """Receiver of a run's progress."""

    def stage(self, text: str) -> None:
        """Report what begins."""

    def progress(self, text: str, total_bytes: int) -> AbstractContextManager[ByteProgress]:
        """Show the bytes of a long stage."""
