"""What a server has done so far, in numbers; written by the engine's thread, read by any."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bounds of a distribution's parts."""


@dataclass
class Distribution:
    """Seconds, counted by the parts that they fall into.

    Attributes
    ----------
    counts : of values up to each of SECONDS and above the one before; the last one is of the rest
    total : sum of the values
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        """Count a value."""
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.total += seconds


@dataclass
class Counts:
    """All that is counted.

    Attributes
    ----------
    read_tokens, held_tokens : of prompts: those that ran, and those that a slot held or was given
    generated_tokens : of replies
    guessed_tokens, accepted_tokens : guesses of the drafter in replies that have ended
    steps, rows : joint steps of several replies, and tokens that these chose
    turn_rounds, turn_tokens : rounds of replies in turns, in the place of these, and their tokens
    joint_rounds, joint_round_tokens : forwards of several replies with guesses, and their tokens
    ridden_tokens : of prompts, those that were read in a step of other replies
    put_aside : times that a reply gave its slot to another one for a while
    ended : replies by how they ended: a finish reason, `cancelled` or `error`
    waited_s : from when a prompt is built to a slot
    first_token_s : from the same moment to the first token of its reply
    """

    read_tokens: int = 0
    held_tokens: int = 0
    generated_tokens: int = 0
    guessed_tokens: int = 0
    accepted_tokens: int = 0
    steps: int = 0
    rows: int = 0
    turn_rounds: int = 0
    turn_tokens: int = 0
    joint_rounds: int = 0
    joint_round_tokens: int = 0
    ridden_tokens: int = 0
    put_aside: int = 0
    ended: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("stop", "length", "context", "cancelled", "error"), 0
        )
    )
    waited_s: Distribution = field(default_factory=Distribution)
    first_token_s: Distribution = field(default_factory=Distribution)
