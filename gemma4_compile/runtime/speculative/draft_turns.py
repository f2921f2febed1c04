"""Whether replies that are written at a time take rounds of guesses, or steps of all: as measured.

A round of guesses reads the weights for one reply, and gives it several tokens where guesses come
true; a joint step reads them for all replies, and gives each one token. A joint round reads them
once, and gives each several.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from statistics import median

_STEPS = 4  # joint steps of a number of replies before a trial of rounds; the first is not timed
_KEPT_STEPS, _KEPT_ROUNDS = 8, 32  # times that are remembered
_ROUNDS = 8  # rounds with guesses that a trial judges by
_MOST_TRIED = 32  # rounds of a trial, those without guesses included
_STALE = 512  # rounds after which a joint step is timed again
_PAUSE, _LONGEST_PAUSE = 64, 1024  # joint steps until the next trial, where rounds did not pay
_SETTLED = 64  # rounds that paid, after which the next pause is short again


class Turn(Enum):
    """What several replies that are written at a time do next."""

    STEP = auto()
    ROUNDS = auto()
    JOINT_ROUND = auto()


@dataclass
class _Steps:
    """Joint steps of one number of replies."""

    begun: bool = False
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_STEPS))
    pause: int = 0
    next_pause: int = _PAUSE


@dataclass
class _JointRounds:
    """Joint rounds of one number of replies."""

    begun: bool = False
    rounds: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_KEPT_ROUNDS))
    since_step: int = 0  # since all of them last had a joint step
    tried: int = 0  # since the last pause
    pause: int = 0  # turns of another kind that are left of it
    next_pause: int = _PAUSE

    @property
    def rate(self) -> float:
        """Tokens a second of all replies."""
        tokens = sum(tokens for tokens, _ in self.rounds) / len(self.rounds)
        return tokens / max(median(seconds for _, seconds in self.rounds), 1e-9)

    def begin_pause(self) -> None:
        """Rest, longer each time."""
        self.rounds.clear()
        self.tried = 0
        self.pause, self.next_pause = self.next_pause, min(2 * self.next_pause, _LONGEST_PAUSE)


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
        self._joint: dict[int, _JointRounds] = {}

    def turn(self, replies: int, hoped_rate: float | None, *, joins: bool) -> Turn:
        """Choose what so many replies do next.

        Joint rounds are tried once joint steps were timed, and then compared with these, and with
        rounds in turns where those were tried.

        Parameters
        ----------
        hoped_rate : as of `pays`
        joins : one forward can check the guesses of so many
        """
        steps = self._steps.get(replies)
        if joins and steps is not None and len(steps.seconds) >= _STEPS - 1:
            joint = self._joint.setdefault(replies, _JointRounds())
            if joint.since_step >= _STALE:
                return Turn.STEP
            if self._joint_pays(joint, replies / max(median(steps.seconds), 1e-9)):
                is_untried = len(joint.rounds) >= _ROUNDS > len(self._rounds)
                tries_turns = is_untried and self.pays(replies, hoped_rate)
                return Turn.ROUNDS if tries_turns else Turn.JOINT_ROUND
        return Turn.ROUNDS if self.pays(replies, hoped_rate) else Turn.STEP

    def _joint_pays(self, joint: _JointRounds, step_rate: float) -> bool:
        """Whether joint rounds are taken or tried; `step_rate` is of joint steps."""
        if joint.pause:
            joint.pause -= 1
            return False
        if len(joint.rounds) < _ROUNDS:
            if joint.tried < _MOST_TRIED:
                return True
        elif joint.rate > max(step_rate, self._round_rate if len(self._rounds) >= _ROUNDS else 0.0):
            if joint.since_step >= _SETTLED:
                joint.next_pause = _PAUSE
            return True
        joint.begin_pause()
        return False

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

    def step_seconds(self, replies: int) -> float | None:
        """Seconds of a joint step of so many, or of the nearest number; None before any was timed.

        A reply that is alone has none, so that one beside which prompts ride may never be timed.
        """
        timed = [number for number, steps in self._steps.items() if steps.seconds]
        nearest = min(timed, key=lambda number: abs(number - replies), default=None)
        return None if nearest is None else median(self._steps[nearest].seconds)

    def note_step(self, replies: int, seconds: float) -> None:
        """Hear of a joint step; the first of a number is not timed: a CUDA graph is recorded."""
        steps = self._steps.setdefault(replies, _Steps())
        self._tried, steps.pause = 0, max(0, steps.pause - 1)
        if replies in self._joint:
            self._joint[replies].since_step = 0
        if steps.begun:
            steps.seconds.append(seconds)
        steps.begun = True

    def note_round(self, guesses: int, tokens: int, seconds: float) -> None:
        """Hear of a round of one reply; one without guesses is there for the state of the next."""
        self._tried += 1
        if guesses:
            self._rounds.append((tokens, seconds))

    def note_joint_round(self, replies: int, guesses: int, tokens: int, seconds: float) -> None:
        """Hear of a joint round: guesses and tokens of all replies.

        The first with guesses is not timed, as of joint steps.
        """
        joint = self._joint.setdefault(replies, _JointRounds())
        joint.since_step += 1
        joint.tried += 1
        if guesses and joint.begun:
            joint.rounds.append((tokens, seconds))
        joint.begun = joint.begun or guesses > 0
