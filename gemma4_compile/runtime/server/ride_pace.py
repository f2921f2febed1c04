"""Whether a prompt's last rows ride in a step of the replies beside it: as measured.

They cost a chunk of their own otherwise, which reads the weights once more; a step with more rows
takes longer than one with few.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

_TRIALS = 3  # times of each kind before they are compared
_KEPT = 8  # times that are remembered
_STALE = 64  # prompts until the way is tried again that was found slower
MOST_TURNS = 3
"""Steps that the rows of a prompt may be spread over: its first token waits for all of them."""


@dataclass
class _Times:
    """Seconds of one kind of forward; the first is not counted: a CUDA graph is recorded."""

    begun: bool = False
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def note(self, seconds: float) -> None:
        if self.begun:
            self.seconds.append(seconds)
        self.begun = True

    @property
    def are_known(self) -> bool:
        return len(self.seconds) >= _TRIALS

    @property
    def median(self) -> float:
        return median(self.seconds)


class RidePace:
    """Compares steps with riders to a chunk and as many steps without; medians, as `DraftTurns`.

    What is not known yet is tried, and what was found slower again after a while.
    """

    def __init__(self) -> None:
        """Begin without a time."""
        self._chunk = _Times()
        self._rides: dict[int, _Times] = {}
        self._since = 0  # prompts for which the times decided, all one way

    def pays(self, rows: int, turns: int, step_s: float | None) -> bool:
        """Return whether a prompt's rows ride.

        Parameters
        ----------
        rows : of a step with riders, all replies' tokens included
        turns : steps that the riders are spread over
        step_s : seconds of a step without them; None where that is not known
        """
        ride = self._rides.setdefault(rows, _Times())
        if not ride.are_known or step_s is None:
            return True
        if not self._chunk.are_known:
            return False
        pays = turns * ride.median < self._chunk.median + turns * step_s
        self._since += 1
        if self._since >= _STALE:
            self._since = 0
            return not pays
        return pays

    def note_ride(self, rows: int, seconds: float) -> None:
        """Hear of a step with so many rows, riders among them."""
        self._rides.setdefault(rows, _Times()).note(seconds)

    def note_chunk(self, seconds: float) -> None:
        """Hear of a chunk of rows that could have ridden."""
        self._chunk.note(seconds)
