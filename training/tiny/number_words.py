"""Numbers from 0 to 100 in words, for questions whose numbers are written out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from random import Random

from training.tiny.question import Maker, Question
from training.tiny.world import word_list

_SMALL = word_list(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
_TENS = word_list("twenty thirty forty fifty sixty seventy eighty ninety")
_NUMBER = re.compile(r"[0-9]+")
_SIGNS = re.compile(r"[-+*/=]|[0-9] x [0-9]")  # nobody writes `three + four`
LARGEST = 100


def number_word(number: int) -> str:
    """A number from 0 to 100 as a word."""
    if number < len(_SMALL):
        return _SMALL[number]
    if number == LARGEST:
        return "one hundred"
    tens, ones = divmod(number, 10)
    word = _TENS[tens - 2]
    return f"{word}-{_SMALL[ones]}" if ones else word


def _in_words(text: str) -> str:
    return _NUMBER.sub(lambda found: number_word(int(found[0])), text)


def sometimes_in_words(make: Maker, share: float) -> Callable[[Random], Question]:
    """The same questions, in `share` of which the numbers are words; answers keep their digits."""

    def worded(rng: Random) -> Question:
        question = make(rng)
        numbers = [int(found) for found in _NUMBER.findall(question.text)]
        if rng.random() >= share or _SIGNS.search(question.text) or max(numbers) > LARGEST:
            return question
        text = _in_words(question.text)
        return replace(question, text=text[0].upper() + text[1:])

    return worded
