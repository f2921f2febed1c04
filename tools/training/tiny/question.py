"""One question with its answer, and which questions are kept from training."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

HELD_OUT_OF = 10  # one key in ten is never trained on

Choice = TypeVar("Choice")
Medium = TypeVar("Medium")

Asked = tuple[str, str, str]
"""Kind, question and answer, about a picture or a sound."""


@dataclass(frozen=True)
class Question:
    """A question that needs no earlier turn.

    Attributes
    ----------
    kind : row of the table of accuracies
    key : what decides whether it is held out, for example `add 17 5`: the same numbers are held out
        in every wording; None if it never is
    answer : the reply, word for word
    short : the reply where the system turn asks to be brief; None if `answer` is used
    value : number that a later turn may go on from
    """

    kind: str
    key: str | None
    text: str
    answer: str
    short: str | None = None
    value: int | None = None


Maker = Callable[[Random], Question]


OPENINGS = (
    "", "", "", "", "Please tell me: ", "Hi! ", "Hello, ", "I wonder: ", "One question: ",
    "Quick question: ", "Excuse me, ", "Can you tell me: ",
)  # fmt: skip


def held_out(key: str | None) -> bool:
    """Return whether the questions of this key are for the evaluation alone."""
    return key is not None and zlib.crc32(key.encode()) % HELD_OUT_OF == 0


def opened(rng: Random, text: str) -> str:
    """A question that may begin politely. Fixed questions are held out with their opening."""
    opening = rng.choice(OPENINGS)
    return opening + (text[0].lower() + text[1:] if opening.endswith(", ") else text)


def draw(rng: Random, make: Maker, *, test: bool) -> Question:
    """A question of the wanted side of the split."""
    while True:
        question = make(rng)
        if held_out(question.key) == test:
            return question


def any_about(
    rng: Random,
    medium: Medium,
    makers: Sequence[tuple[Callable[[Random, Medium], Asked | None], float]],
) -> Asked:
    """Draw a question about a picture or a sound, from a maker that has one for it.

    Parameters
    ----------
    makers : with their weights; None is for a medium that a maker has no question about
    """
    choices, weights = [maker for maker, _ in makers], [weight for _, weight in makers]
    while True:
        (make,) = rng.choices(choices, weights)
        found = make(rng, medium)
        if found is not None:
            return found


def pick(rng: Random, options: Sequence[Choice]) -> tuple[int, Choice]:
    """A random option and its index, which goes into keys."""
    index = rng.randrange(len(options))
    return index, options[index]
