"""Whether a prompt's last rows ride in a step of the replies beside it: as measured.

They cost a chunk of their own otherwise, which reads the weights once more; a step with more rows
takes longer than one with few. Either way is timed as a whole, from the prompt's turn to the tokens
of all: a ride throws away what was launched ahead (engine/turns.py), and waits for it, and the step
behind a chunk takes it, so that the times of a chunk and of a step would count it twice.
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
    """Compares turns with riders to one with a chunk and steps after it; medians, as `DraftTurns`.

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
        turns : that the riders are spread over
        step_s : seconds of a step without them; None where that is not known
        """
        ride = self._rides.setdefault(rows, _Times())
        if not ride.are_known or (turns > 1 and step_s is None):
            return True
        if not self._chunk.are_known:
            return False
        steps_s = 0.0 if step_s is None else (turns - 1) * step_s
        pays = turns * ride.median < self._chunk.median + steps_s
        self._since += 1
        if self._since >= _STALE:
            self._since = 0
            return not pays
        return pays

    def note_ride(self, rows: int, seconds: float) -> None:
        """Hear of a turn whose step had so many rows, riders among them."""
        self._rides.setdefault(rows, _Times()).note(seconds)

    def note_chunk(self, seconds: float) -> None:
        """Hear of a turn with a chunk of rows that could have ridden, and a step of the others."""
        self._chunk.note(seconds)
