"""Regular expressions that strangers wrote, held against names in bounded work.

`re` tries one way after the other, and of `(?:a|aa)` thirty times there are 2^30; what it has begun
cannot be stopped by a clock. Here the places in a name that an expression can have come to are the
bits of a number, and what is left of the expression is gone through once for all of them (Thompson,
Regular expression search algorithm, 1968). Work is counted, and ends with `TooMuchWork`.
"""

from __future__ import annotations

import importlib
import itertools
import re
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar, cast

FoundT = TypeVar("FoundT")

_Item = tuple[object, object]
"""A kind, whose text is its name, and what the kind says."""


class _State(Protocol):
    flags: int


class _Parsed(Protocol):
    state: _State

    def __iter__(self) -> Iterator[_Item]: ...


class _Parser(Protocol):
    """The parser of `re`, which has no types."""

    MAXREPEAT: int

    def parse(self, pattern: str) -> _Parsed: ...


_PARSER = cast(
    "_Parser",
    importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse"),
)
_MAX_LETTERS, _MAX_DEPTH = 4096, 40
LONGEST_NAME = 4096
_SECONDS = 60.0
_MAX_WORK = 100_000  # steps over 64 letters, a tenth of a second or less
_CATEGORIES = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}
_PLACES = {
    "AT_BEGINNING": r"\A",
    "AT_BEGINNING_STRING": r"\A",
    "AT_BOUNDARY": r"\b",
    "AT_NON_BOUNDARY": r"\B",
    "AT_END": "$",
    "AT_END_STRING": r"\Z",
}
_UNREAD = {
    "GROUPREF": "it refers to a group",
    "GROUPREF_EXISTS": "it refers to a group",
    "ATOMIC_GROUP": "it has an atomic group",
    "POSSESSIVE_REPEAT": "it has a possessive quantifier",
}


class UnreadPattern(ValueError):
    """A regular expression with what is not matched in bounded work."""


class TooMuchWork(ValueError):
    """A name takes more work than one may."""


class MatchClock:
    """The time that patterns take together, asked after each piece of bounded work."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds, self._spent = seconds, 0.0

    def timed(self, work: Callable[[], FoundT]) -> FoundT:
        """What a piece of work gives; TooMuchWork if all pieces took too long by now."""
        begin = time.monotonic()
        found = work()
        self._spent += time.monotonic() - begin
        if self._spent > self._seconds:
            raise TooMuchWork(f"they took more than {self._seconds:g} s in all")
        return found


class _Name:
    """A name, with the work that was done on it.

    Attributes
    ----------
    text : the name
    everywhere : a bit for each place: before each letter, and the end
    """

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST_NAME:
            raise TooMuchWork(f"a name has more than {LONGEST_NAME} letters")
        self.text, self.everywhere = text, (1 << (len(text) + 1)) - 1
        self.found: dict[tuple[object, int], int] = {}
        self._places: dict[str, int] = {}
        self._work = 0
        self._letters: dict[str, int] = {}
        for i, letter in enumerate(text):
            self._letters[letter] = self._letters.get(letter, 0) | 1 << i

    def step(self) -> None:
        """Count a step over the whole name; TooMuchWork at the limit."""
        self._work += 1 + len(self.text) // 64
        if self._work > _MAX_WORK:
            raise TooMuchWork("a name takes too many steps")

    def of_letters(self, fits: Callable[[str], bool] | str) -> int:
        """The places before a letter, or before those that fit."""
        if isinstance(fits, str):
            return self._letters.get(fits, 0)
        if (fits, 0) not in self.found:
            fitting = 0
            for letter, places in self._letters.items():
                self.step()
                fitting |= places if fits(letter) else 0
            self.found[fits, 0] = fitting
        return self.found[fits, 0]

    def matching(self, place: str) -> int:
        """The places that an expression for no letter fits, as that of a word's edge."""
        if place not in self._places:
            found = (one.start() for one in re.finditer(place, self.text))
            self._places[place] = sum(1 << i for i in found)
        return self._places[place]


_Node = Callable[[_Name, int], int]
"""From the places where it begins to those where it ends."""


class NamePattern:
    """A regular expression of names: letters, classes, groups, quantifiers, lookarounds, places."""

    def __init__(self, pattern: str) -> None:
        """Read it.

        Raises
        ------
        re.error, OverflowError, RecursionError
            If it is no regular expression.
        UnreadPattern
            If it is one that is not matched in bounded work; the text says why.
        """
        if len(pattern) > _MAX_LETTERS:
            raise UnreadPattern(f"it has {len(pattern)} letters of {_MAX_LETTERS} that it may have")
        re.compile(pattern)  # what is found only there, as lookbehinds of no fixed width
        parsed = _PARSER.parse(pattern)
        if parsed.state.flags != re.UNICODE:
            raise UnreadPattern("it has flags")
        self._node = _sequence(parsed, 0)

    def begins(self, name: str) -> bool:
        """Return whether a beginning of the name fits, as `re.match`; TooMuchWork."""
        return self._node(_Name(name), 1) != 0

    def is_whole(self, name: str) -> bool:
        """Return whether the whole name fits, as `re.fullmatch`; TooMuchWork."""
        return self._node(_Name(name), 1) >> len(name) != 0


def _sequence(parsed: Iterable[_Item], depth: int) -> _Node:
    if depth > _MAX_DEPTH:
        raise UnreadPattern(f"it has groups in more than {_MAX_DEPTH} groups")
    nodes = [_node(str(kind), value, depth) for kind, value in parsed]

    def ends(name: _Name, places: int) -> int:
        name.step()
        for node in nodes:
            if not places:
                break
            name.step()
            places = node(name, places)
        return places

    return ends


def _node(kind: str, value: object, depth: int) -> _Node:
    letters = _letters(kind, value)
    if letters is not None:
        return _one_of(letters)
    if kind == "SUBPATTERN":
        _, added, removed, inner = cast("tuple[object, int, int, _Parsed]", value)
        if added or removed:
            raise UnreadPattern("it has flags")
        return _sequence(inner, depth + 1)
    if kind == "BRANCH":
        return _any_of(
            [_sequence(one, depth + 1) for one in cast("tuple[None, list[_Parsed]]", value)[1]]
        )
    if kind in ("MAX_REPEAT", "MIN_REPEAT"):
        least, most, inner = cast("tuple[int, int, _Parsed]", value)
        return _repeat(int(least), int(most), inner, depth)
    if kind in ("ASSERT", "ASSERT_NOT"):
        direction, inner = cast("tuple[int, _Parsed]", value)
        look = _behind if direction < 0 else _ahead
        return _where(look(_sequence(inner, depth + 1)), fits=kind == "ASSERT")
    if kind == "AT" and str(value) in _PLACES:
        place = _PLACES[str(value)]
        return lambda name, places: places & name.matching(place)
    if kind == "FAILURE":  # `(?!)`
        return lambda name, places: 0
    raise UnreadPattern(_UNREAD.get(kind, f"it has {kind.lower()}"))


def _letters(kind: str, value: object) -> Callable[[str], bool] | str | None:
    """What a kind for one letter takes: it, or a function of letters; None for another kind."""
    if kind == "ANY":
        return _is_no_end
    if kind == "LITERAL":
        return chr(cast("int", value))
    if kind == "NOT_LITERAL":
        return lambda letter: ord(letter) != value
    return _class(cast("list[_Item]", value)) if kind == "IN" else None


def _is_no_end(letter: str) -> bool:
    """Return whether a letter ends no line."""
    return letter != "\n"


def _class(items: Iterable[_Item]) -> Callable[[str], bool]:
    """A function of a letter whose time does not grow with the items."""
    ranges: list[tuple[int, int]] = []
    classes: set[re.Pattern[str]] = set()
    is_negated = False
    for item, value in items:
        if str(item) == "NEGATE":
            is_negated = True
        elif str(item) == "LITERAL":
            ranges.append((cast("int", value),) * 2)
        elif str(item) == "RANGE":
            ranges.append(cast("tuple[int, int]", value))
        elif str(item) == "CATEGORY" and str(value) in _CATEGORIES:
            classes.add(re.compile(_CATEGORIES[str(value)]))
        else:
            raise UnreadPattern(f"it has {str(value).lower()}")

    ranges.sort()
    firsts = [first for first, _ in ranges]
    lasts = [-1, *itertools.accumulate((last for _, last in ranges), max)]

    def fits(letter: str) -> bool:
        is_in = ord(letter) <= lasts[bisect_right(firsts, ord(letter))]
        return (is_in or any(one.match(letter) for one in classes)) != is_negated

    return fits


def _one_of(fits: Callable[[str], bool] | str) -> _Node:
    """One letter that fits."""
    return lambda name, places: (places & name.of_letters(fits)) << 1


def _any_number_of(fits: Callable[[str], bool] | str) -> _Node:
    """Letters that fit, however many: an addition's carry runs through them."""

    def ends(name: _Name, places: int) -> int:
        through = name.of_letters(fits)
        return places | (((places & through) + through) ^ through)

    return ends


def _any_of(nodes: Sequence[_Node]) -> _Node:
    def ends(name: _Name, places: int) -> int:
        found = 0
        for node in nodes:
            found |= node(name, places)
        return found

    return ends


def _repeat(least: int, most: int, inner: Iterable[_Item], depth: int) -> _Node:
    """A node many times; greedy and lazy ones end at the same places."""
    items = list(inner)
    letters = _letters(str(items[0][0]), items[0][1]) if len(items) == 1 else None
    if letters is not None and least <= 1 and most == _PARSER.MAXREPEAT:
        one, more = _one_of(letters), _any_number_of(letters)
        return (lambda name, places: more(name, one(name, places))) if least else more
    body = _sequence(items, depth + 1)
    key = object()

    def ends(name: _Name, places: int) -> int:
        if (key, places) not in name.found:
            name.found[key, places] = _ends(name, places)
        return name.found[key, places]

    def _ends(name: _Name, places: int) -> int:
        for _ in range(least):
            after = body(name, places)
            if after == places:  # and so it stays
                break
            places = after
        reached = begun = places
        left = most - least
        while begun and left:
            begun = body(name, begun) & ~reached
            reached |= begun
            left -= 1
        return reached

    return ends


def _ahead(node: _Node) -> _Node:
    """The places of those given from which a node fits."""

    def fitting(name: _Name, places: int) -> int:
        found = 0
        while places:
            first = places & -places
            found |= first if node(name, first) else 0
            places ^= first
        return found

    return fitting


def _behind(node: _Node) -> _Node:
    """The places of those given to which a node of fixed width fits."""
    return lambda name, places: node(name, name.everywhere) & places


def _where(fitting: _Node, *, fits: bool) -> _Node:
    def ends(name: _Name, places: int) -> int:
        found = fitting(name, places)
        return found if fits else places & ~found

    return ends
