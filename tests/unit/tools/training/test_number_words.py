from __future__ import annotations

import pytest

from tools.training.tiny.number_words import in_words, number_word


@pytest.mark.parametrize(
    ("number", "word"),
    [(0, "zero"), (13, "thirteen"), (20, "twenty"), (47, "forty-seven"), (100, "one hundred")],
)
def test_numbers_are_words(number: int, word: str) -> None:
    assert number_word(number) == word


def test_all_are_different() -> None:
    assert len({number_word(number) for number in range(101)}) == 101


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("What comes after 7?", "What comes after seven?"),
        ("8 plus 19", "Eight plus nineteen"),
        ("8 + 19", None),
        ("3 x 4", None),
        ("What is 101 plus 2?", None),
        ("Who are you?", None),
    ],
)
def test_only_what_people_would_write(text: str, words: str | None) -> None:
    assert in_words(text) == words
