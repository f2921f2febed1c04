"""Whether replies that are written at a time take rounds of guesses, or steps of all: as measured.

A round of guesses reads the weights for one reply, and gives it several tokens where guesses come
true; a joint step reads them for all replies, and gives each one token.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

_STEPS = 4  # joint steps of a number of replies before a trial of rounds; the first is not timed
_KEPT_STEPS, _KEPT_ROUNDS = 8, 32  # times that are remembered
_ROUNDS = 8  # rounds with guesses that a trial judges by
_MOST_TRIED = 32  # rounds of a trial, those without guesses included
_STALE = 512  # rounds after which a joint step is timed again
_PAUSE, _LONGEST_PAUSE = 64, 1024  # joint steps until the next trial, where rounds did not pay
_SETTLED = 64  # rounds that paid, after which the next pause is short again


@dataclass
class _Steps:
    """Joint steps of one number of replies."""

    begun: bool = False
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_STEPS))
    pause: int = 0
    next_pause: int = _PAUSE


class DraftTurns:
    """Compares the tokens a second of all replies.

    Rounds follow each other, so that what they give does not depend on how many replies there are;
    what a joint step gives does. Medians, so that a hiccup decides nothing.
    """

    def __init__(self) -> None:
        """Begin without a time."""
        self._steps: dict[int, _Steps] = {}
        self._rounds: deque[tuple[int, float]] = deque(maxlen=_KEPT_ROUNDS)  # tokens, seconds
        self._tried = 0  # rounds since there was a joint step

    def pays(self, replies: int, hoped_rate: float | None = None) -> bool:
        """Return whether the next tokens of so many replies are to come from rounds.

        Where they turn out not to pay, a pause begins; a long one where they are not even tried.

        Parameters
        ----------
        hoped_rate : tokens a second that rounds of a reply alone are known to give, at best
        """
        steps = self._steps.get(replies)
        if steps is None or steps.pause or len(steps.seconds) < _STEPS - 1:
            return False
        if self._tried >= _STALE:
            return False
        is_hopeless = hoped_rate is not None and hoped_rate * median(steps.seconds) <= replies
        if is_hopeless and not self._tried and steps.next_pause < _LONGEST_PAUSE:
            steps.pause = steps.next_pause = _LONGEST_PAUSE  # and then a trial: texts change
            return False
        if len(self._rounds) < _ROUNDS:
            if self._tried < _MOST_TRIED:
                return True
        elif self._round_rate * median(steps.seconds) > replies:
            if self._tried >= _SETTLED:
                steps.next_pause = _PAUSE
            return True
        steps.pause, steps.next_pause = (
            steps.next_pause,
            min(2 * steps.next_pause, _LONGEST_PAUSE),
        )
        self._rounds.clear()
        return False

    @property
    def _round_rate(self) -> float:
        """Tokens a second that rounds give."""
        tokens = sum(tokens for tokens, _ in self._rounds) / len(self._rounds)
        return tokens / max(median(seconds for _, seconds in self._rounds), 1e-9)

    def note_step(self, replies: int, seconds: float) -> None:
        """Hear of a joint step; the first of a number is not timed: a CUDA graph is recorded."""
        steps = self._steps.setdefault(replies, _Steps())
        self._tried, steps.pause = 0, max(0, steps.pause - 1)
        if steps.begun:
            steps.seconds.append(seconds)
        steps.begun = True

    def note_round(self, guesses: int, tokens: int, seconds: float) -> None:
        """Hear of a round of one reply; one without guesses is there for the state of the next."""
        self._tried += 1
        if guesses:
            self._rounds.append((tokens, seconds))
