"""How a prompt is cut into prefill chunks."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from gemma4_compile import abi
from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.engine.chunks import chunks, whole_rows

LETTERS = {"t": abi.MODALITY_TEXT, "p": abi.MODALITY_MEDIA, "s": abi.MODALITY_AUDIO}


def rows(letters: str) -> list[int]:
    return [LETTERS[letter] for letter in letters]


def cut(letters: str, longest: int, *, whole_images: bool = True) -> list[str]:
    found = chunks(rows(letters), longest, whole_images=whole_images)
    return [letters[part] for part in found]


@pytest.mark.parametrize(
    ("letters", "expected"),
    [
        ("", []),
        ("t", ["t"]),
        ("tttt", ["tttt"]),
        ("ttttt", ["tttt", "t"]),
        ("pppp", ["pppp"]),
        ("ttppp", ["tt", "ppp"]),
        ("tpppt", ["tppp", "t"]),
        ("ttpptpppttttt", ["ttpp", "tppp", "tttt", "t"]),
        ("tttppppttt", ["ttt", "pppp", "ttt"]),
        ("ssssssss", ["ssss", "ssss"]),
        ("tsssspps", ["tsss", "spps"]),
        ("sppptttt", ["sppp", "tttt"]),
    ],
)
def test_pictures_stay_whole(letters: str, expected: list[str]) -> None:
    assert cut(letters, 4) == expected


def test_causal_pictures_are_cut_anywhere() -> None:
    assert cut("tpppppppt", 4, whole_images=False) == ["tppp", "pppp", "t"]
    assert cut("p" * 9, 4, whole_images=False) == ["pppp", "pppp", "p"]


@pytest.mark.parametrize(
    ("letters", "begin", "places", "expected"),
    [
        ("ttttttttt", 0, [2, 7], ["tt", "tttt", "t", "tt"]),
        ("ttttttttt", 3, [2, 3, 7, 9, 20], ["tttt", "tt"]),
        ("tppptttt", 0, [2, 6], ["t", "pppt", "t", "tt"]),  # before a picture, not within it
        ("pppptttt", 0, [2], ["pppp", "tttt"]),
        ("ttpppttt", 2, [3], ["pppt", "tt"]),
    ],
)
def test_chunks_end_at_places_too(
    letters: str, begin: int, places: list[int], expected: list[str]
) -> None:
    found = chunks(rows(letters), 4, whole_images=True, begin=begin, places=places)
    assert [letters[part] for part in found] == expected


def test_chunks_of_any_prompt_are_all_of_it_within_the_limit() -> None:
    rng = random.Random(0)
    for _ in range(300):
        longest = rng.randint(1, 9)
        letters = "".join(
            rng.choice("tps") * rng.randint(1, longest) + "t" for _ in range(rng.randint(0, 8))
        )
        found = cut(letters, longest)
        assert "".join(found) == letters
        assert all(1 <= len(part) <= longest for part in found)
        assert not any(a[-1] == b[0] == "p" for a, b in pairwise(found))
        # No more of them than needed: what follows never fits as a whole into the one before.
        for a, b in pairwise(found):
            atom = len(b) - len(b.lstrip("p")) or 1
            assert len(a) + atom > longest


@pytest.mark.parametrize("letters", ["ppppp", "tppppp", "ttttppppptt", "pptppppp"])
def test_a_picture_longer_than_a_chunk_is_refused_with_the_option(letters: str) -> None:
    with pytest.raises(
        UsageError, match="picture of 5 rows does not fit into a prefill chunk of 4"
    ) as error:
        cut(letters, 4)
    assert "--prefill-chunk 5" in str(error.value.hint)


@pytest.mark.parametrize(
    ("letters", "count", "expected"),
    [
        ("tpppt", 5, 5),
        ("tpppt", 4, 4),
        ("tpppt", 3, 1),
        ("tpppt", 2, 1),
        ("tpppt", 1, 1),
        ("tpppt", 0, 0),
        ("ppp", 2, 0),
        ("ppp", 3, 3),
        ("tsst", 2, 2),
    ],
)
def test_what_is_kept_ends_before_or_after_a_picture(
    letters: str, count: int, expected: int
) -> None:
    assert whole_rows(rows(letters), count) == expected
