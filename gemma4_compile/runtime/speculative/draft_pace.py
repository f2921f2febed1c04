"""How many tokens are guessed in a round: as many as give most tokens a second, as measured.

web/src/speculative/draft_pace.ts is the same for browsers; draft_paces.json, beside this module's
test, holds both to the same numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

FIRST = 3
"""Guesses of the first round."""
_PLAIN_STEPS = 4  # without guesses, to know what they cost; the first one is not timed
_PAUSE, _LONGEST_PAUSE = 64, 1024  # tokens without guesses, where they did not pay
_SETTLED = 16  # rounds after which the next pause is short again
_WEIGHT = 0.25  # of the newest in a running mean
_OUTLIER = 3.0  # times a mean: one time moves it no more than if it had been this
_STALE = 64  # rounds after which a time is measured again
_LEAST_SLOPE = 0.05  # of a plain step, what one guess more is taken to cost before it is measured
_MEMORY = 40.0  # guesses: those before count 1/e at most
_PRIOR_SHARE, _PRIOR_GUESSES = 0.6, 4.0  # that come true before any did, and how many that counts


def _running(mean: float, newest: float, plain_s: float) -> float:
    """A running mean of seconds that one hiccup does not spoil."""
    return mean + _WEIGHT * (min(newest, _OUTLIER * max(mean, plain_s)) - mean)


class RoundTimes:
    """Seconds of rounds by their number of guesses, measured or taken from the numbers around."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._measured_at: dict[int, int] = {}  # the round
        self._begun: set[int] = set()
        self._doubted: set[int] = set()
        self._rounds = 0

    def note(self, guesses: int, seconds: float, plain_s: float) -> bool:
        """Count a round; return whether it was timed.

        The first round of a number is not: a CUDA graph, or a browser's launches, are recorded. Nor
        is a first time far above what was expected, until it comes again.
        """
        self._rounds += 1
        if guesses not in self._begun:
            self._begun.add(guesses)
            return False
        is_fresh, expected = self._is_fresh(guesses), self.of(guesses, plain_s)
        if not is_fresh and seconds > _OUTLIER * expected and guesses not in self._doubted:
            self._doubted.add(guesses)
            return False
        first = max(seconds, plain_s)  # less is no round: two of a browser's were read at once
        self._seconds[guesses] = _running(expected, seconds, plain_s) if is_fresh else first
        self._measured_at[guesses] = self._rounds
        self._doubted.discard(guesses)
        return True

    @property
    def most(self) -> int:
        """Return the largest number of guesses that was timed, 0 for none."""
        return max(self._seconds, default=0)

    def of(self, guesses: int, plain_s: float) -> float:
        """Seconds of a round.

        Between two numbers that were measured lately times are interpolated, a step without guesses
        being one of none; beyond them another guess costs little until it is measured, so that it
        is measured where it would pay.
        """
        known = [n for n in sorted(self._seconds) if self._is_fresh(n)]
        below = max((n for n in known if n <= guesses), default=0)
        above = min((n for n in known if n >= guesses), default=None)
        low = self._seconds[below] if below else plain_s
        if above is None:
            return low + _LEAST_SLOPE * plain_s * (guesses - below)
        if above == below:
            return low
        return low + (self._seconds[above] - low) * (guesses - below) / (above - below)

    def _is_fresh(self, guesses: int) -> bool:
        return guesses in self._seconds and self._rounds - self._measured_at[guesses] < _STALE


class Acceptance:
    """Share of guesses that come true, of those whose predecessors did; recent ones count most."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, with what is usual."""
        self._accepted, self._tried = _PRIOR_SHARE * _PRIOR_GUESSES, _PRIOR_GUESSES

    def note(self, accepted: int, tried: int) -> None:
        """Count a round's guesses up to the first wrong one."""
        kept = (1 - 1 / _MEMORY) ** tried
        self._accepted = self._accepted * kept + accepted
        self._tried = self._tried * kept + tried

    @property
    def share(self) -> float:
        """Return the estimate."""
        return self._accepted / self._tried

    @property
    def hopeful_share(self) -> float:
        """Return the estimate and its standard error."""
        return min(self.share + math.sqrt(self.share * (1 - self.share) / self._tried), 1.0)


def tokens_of_round(share: float, guesses: int) -> float:
    """Mean of the tokens that a round gives: one, and guesses up to the first wrong one."""
    return sum(share**i for i in range(guesses + 1))


@dataclass
class DraftPace:
    """The number of guesses, from what was accepted and how long rounds took.

    Attributes
    ----------
    most : guesses of a round, at most
    fixed : always guess so many
    """

    most: int
    fixed: bool = False
    _count: int = 0
    _plain_steps: int = 0
    _plain_s: float = math.inf  # of a step without guesses
    _times: RoundTimes = field(default_factory=RoundTimes)
    _acceptance: Acceptance = field(default_factory=Acceptance)
    _rounds: int = 0  # since the last pause
    _pause: int = 0  # tokens that are left of it
    _next_pause: int = _PAUSE

    def __post_init__(self) -> None:
        """Begin with a usual number."""
        self._count = self.most if self.fixed else min(FIRST, self.most)

    @classmethod
    def of(cls, drafts: int | None, most: int) -> DraftPace:
        """A pace for a wish, None for as many as pay, where `most` can be had."""
        return cls(most if drafts is None else min(drafts, most), fixed=drafts is not None)

    @property
    def count(self) -> int:
        """Guesses of the next round; 0 is a step without them."""
        if not self.fixed and (self._plain_steps < _PLAIN_STEPS or self._pause):
            return 0
        return self._count

    @property
    def wanted(self) -> int:
        """Guesses of a round, whether rounds of one reply alone pay or not."""
        return self._count

    @property
    def is_pausing(self) -> bool:
        """Return whether rounds did not pay lately; also one alone goes without them then."""
        return self._pause > 0

    @property
    def hoped_rate(self) -> float | None:
        """Tokens a second of rounds, with as many guesses as give most; None where none was timed.

        Of guesses it takes as many to come true as may well do.
        """
        if self.fixed or not self._times.most:
            return None
        return self._best(self._acceptance.hopeful_share)[0]

    def note_joint_step(self) -> None:
        """Hear of a step that several shared, which goes on with a pause and is no time of one."""
        if self._pause:
            self._pause -= 1

    def note_step(self, seconds: float) -> None:
        """Hear of a step without guesses."""
        self._plain_steps += 1
        if self._plain_steps > _PLAIN_STEPS:
            self._plain_s = _running(self._plain_s, seconds, 0.0)
        elif self._plain_steps > 1:
            self._plain_s = min(self._plain_s, seconds)  # the others may have been disturbed
        if self._pause:
            self._pause -= 1

    def note_round(self, guessed: int, accepted: int, seconds: float) -> None:
        """Hear of a round, which gave one token more than was accepted."""
        if self.fixed or not guessed:
            return
        self._rounds += 1
        self._acceptance.note(accepted, min(accepted + 1, guessed))
        is_timed = self._times.note(guessed, seconds, self._plain_s)
        if not self._times.most:
            return
        if is_timed and self._best(self._acceptance.hopeful_share)[0] * self._plain_s < 1:
            self._pause, self._rounds = self._next_pause, 0
            self._next_pause = min(2 * self._next_pause, _LONGEST_PAUSE)
            self._acceptance.forget()
        elif self._rounds >= _SETTLED:
            self._next_pause = _PAUSE
        self._count = self._best(self._acceptance.share)[1]

    def note_shared_round(self, guessed: int, accepted: int) -> None:
        """Hear of a round whose forward others shared: what came true, and no time."""
        if self.fixed or not guessed:
            return
        self._acceptance.note(accepted, min(accepted + 1, guessed))
        if self._times.most:
            self._count = self._best(self._acceptance.share)[1]

    def _best(self, share: float) -> tuple[float, int]:
        """Most tokens a second that a round gives, and the number of its guesses."""
        return max(
            (tokens_of_round(share, n) / max(self._times.of(n, self._plain_s), 1e-9), n)
            for n in range(1, min(self._times.most + 1, self.most) + 1)
        )


@dataclass
class Drafting:
    """Counts of guesses and of those that were right.

    Attributes
    ----------
    steps : forwards of the model for tokens of replies, each of which gave one token or more
    guessed, accepted : tokens
    """

    steps: int = 0
    guessed: int = 0
    accepted: int = 0

    def note(self, guessed: int, accepted: int) -> None:
        """Count a round."""
        self.steps += 1
        self.guessed += guessed
        self.accepted += accepted

    def since(self, before: Drafting) -> Drafting:
        """The difference to an earlier count."""
        return Drafting(
            self.steps - before.steps,
            self.guessed - before.guessed,
            self.accepted - before.accepted,
        )

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a forward gave in the mean; 0 where there was none."""
        return (self.steps + self.accepted) / self.steps if self.steps else 0.0
