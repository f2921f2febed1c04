"""Numbers from 0 to 100 in words, for questions whose numbers are written out."""

from __future__ import annotations

import re

from tools.training.tiny.world import word_list

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


def in_words(text: str) -> str | None:
    """The text with its numbers as words; None where nobody would write it so."""
    numbers = [int(found) for found in _NUMBER.findall(text)]
    if _SIGNS.search(text) or not numbers or max(numbers) > LARGEST:
        return None
    text = _NUMBER.sub(lambda found: number_word(int(found[0])), text)
    return text[0].upper() + text[1:]
