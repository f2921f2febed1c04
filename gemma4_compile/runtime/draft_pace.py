"""The number of tokens to guess in a round: as many as pay, measured in this reply."""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST = 3
"""Guesses of the first round."""
_PLAIN_STEPS = 2  # without guesses, to know what they cost; the first one is not counted
_ROUNDS = 8  # until it is asked whether guesses pay
_PAUSE, _LONGEST_PAUSE = 64, 1024  # tokens without guesses, where they did not
_WEIGHT = 0.25  # of the newest in a running mean


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
    _plain_s: float = 0.0  # of a step without guesses
    _tokens: int = 0  # of the rounds since the last question
    _seconds: float = 0.0
    _rounds: int = 0
    _known: set[int] = field(default_factory=set)  # numbers of guesses that there were
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
        if self.fixed:
            return self.most
        if self._plain_steps < _PLAIN_STEPS or self._pause:
            return 0
        return self._count

    def note_step(self, seconds: float) -> None:
        """Hear of a step without guesses."""
        self._plain_steps += 1
        if self._plain_steps == _PLAIN_STEPS:
            self._plain_s = seconds
        elif self._plain_steps > _PLAIN_STEPS:
            self._plain_s += _WEIGHT * (seconds - self._plain_s)
        if self._pause:
            self._pause -= 1

    def note_round(self, guessed: int, accepted: int, seconds: float) -> None:
        """Hear of a round, which gave one token more than was accepted.

        The first round of a number of guesses is not timed: a CUDA graph is recorded for it.
        """
        if self.fixed or not guessed:
            return
        if accepted == guessed:
            self._count = min(max(self._count, guessed) + 1, self.most)
        elif 2 * accepted < guessed:
            self._count = max(guessed - 1, 1)
        if guessed not in self._known:
            self._known.add(guessed)
            return
        self._rounds += 1
        self._tokens += accepted + 1
        self._seconds += seconds
        if self._rounds >= _ROUNDS:
            self._ask()

    def _ask(self) -> None:
        """Pause where the last rounds took longer than their tokens would have alone."""
        if self._seconds > self._tokens * self._plain_s:
            self._pause = self._next_pause
            self._next_pause = min(2 * self._next_pause, _LONGEST_PAUSE)
            self._count = min(FIRST, self.most)
        else:
            self._next_pause = _PAUSE
        self._rounds = self._tokens = 0
        self._seconds = 0.0


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
