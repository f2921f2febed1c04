"""Kinds of meanings over `tiny`'s world, each with the wordings that say the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tools.training.tiny.number_words import number_word
from tools.training.tiny.strangers import DISHES, LANGUAGES, PEOPLE, PLACES, TOPICS
from tools.training.tiny.world import (
    BOT_NAMES,
    COLOURS,
    DAYS,
    MONTHS,
    NAMES,
    ORDINALS,
    PET_NAMES,
    PETS,
    PROJECT_FACTS,
    SMALL_TALK,
    WORDS,
    word_list,
)

ROOMS = word_list("kitchen garden garage cellar school office park library market station")
_NUMBERS = tuple(str(number) for number in range(2, 100))


@dataclass(frozen=True)
class Kind:
    """A kind of meanings: slots that differ, and templates that say all of them.

    Attributes
    ----------
    slots : name of each slot, and the words that it takes
    statements : templates of every slot, each a paraphrase of the others
    questions : templates without some slots, which any statement with the same words answers
    """

    name: str
    slots: Mapping[str, Sequence[str]]
    statements: tuple[str, ...]
    questions: tuple[str, ...] = ()


KINDS = (
    Kind(
        "things",
        {"name": NAMES, "colour": COLOURS, "thing": WORDS},
        (
            "{name} has a {colour} {thing}.",
            "The {thing} of {name} is {colour}.",
            "{name}'s {thing} is {colour}.",
            "A {colour} {thing} belongs to {name}.",
            "{name} owns a {thing} that is {colour}.",
            "There is a {colour} {thing}. It is {name}'s.",
        ),
        ("What colour is {name}'s {thing}?", "Which colour has the {thing} of {name}?"),
    ),
    Kind(
        "pets",
        {"name": NAMES, "pet": PETS, "called": (*PET_NAMES, *BOT_NAMES)},
        (
            "{name} has a {pet} called {called}.",
            "The {pet} of {name} is named {called}.",
            "{called} is the {pet} of {name}.",
            "{name}'s {pet} is {called}.",
            "{called} is a {pet} and lives with {name}.",
        ),
        ("What is the name of {name}'s {pet}?", "How is the {pet} of {name} called?"),
    ),
    Kind(
        "meetings",
        {"name": NAMES, "room": ROOMS, "day": DAYS},
        (
            "On {day} we meet {name} in the {room}.",
            "We see {name} in the {room} on {day}.",
            "{name} waits for us in the {room} on {day}.",
            "The meeting with {name} is on {day}, in the {room}.",
            "In the {room}, on {day}: {name} comes.",
        ),
        ("When do we meet {name} in the {room}?", "On which day is the meeting with {name}?"),
    ),
    Kind(
        "birthdays",
        {"name": NAMES, "month": MONTHS, "place": ORDINALS},
        (
            "{name} was born on the {place} of {month}.",
            "The birthday of {name} is the {place} of {month}.",
            "On the {place} of {month} {name} has a birthday.",
            "{name}'s birthday: {month}, the {place}.",
        ),
        ("When was {name} born?", "When is {name}'s birthday?"),
    ),
    Kind(
        "places of things",
        {"colour": COLOURS, "thing": WORDS, "room": ROOMS},
        (
            "The {colour} {thing} is in the {room}.",
            "In the {room} there is a {colour} {thing}.",
            "You find the {colour} {thing} in the {room}.",
            "Somebody left a {colour} {thing} in the {room}.",
            "The {room} is where the {thing} is, the {colour} one.",
        ),
        ("Where is the {colour} {thing}?", "In which room is the {colour} {thing}?"),
    ),
    Kind(
        "sums",
        {"a": _NUMBERS, "b": _NUMBERS},
        (
            "What is {a} plus {b}?",
            "Add {b} to {a}.",
            "{a} + {b}",
            "The sum of {a} and {b}",
            "How much are {a} and {b} together?",
            "What is {a:word} plus {b:word}?",
        ),
    ),
    Kind(
        "differences",
        {"a": _NUMBERS, "b": _NUMBERS},
        (
            "What is {a} minus {b}?",
            "Take {b} from {a}.",
            "{a} - {b}",
            "The difference of {a} and {b}",
            "Subtract {b} from {a}.",
            "What is {a:word} minus {b:word}?",
        ),
    ),
    Kind(
        "lists",
        {"first": WORDS, "second": WORDS, "third": WORDS},
        (
            "Reverse these words: {first}, {second}, {third}",
            "Turn this list around: {first} {second} {third}",
            "Write {first}, {second} and {third} backwards.",
            "{first}, {second}, {third}, in reverse order",
        ),
    ),
    Kind(
        "counts",
        {"name": NAMES, "number": _NUMBERS, "thing": WORDS},
        (
            "{name} counted each {thing}: there were {number}.",
            "{number} times {name} saw a {thing}.",
            "A {thing} came to {name} {number} times.",
            "{name} saw a {thing} {number:word} times.",
        ),
        ("How many times did {name} see a {thing}?",),
    ),
    Kind(
        "journeys",
        {"name": NAMES, "place": PLACES, "month": MONTHS},
        (
            "{name} travels to {place} in {month}.",
            "In {month} {name} goes to {place}.",
            "{place} is where {name} will be in {month}.",
            "The journey of {name} to {place} is in {month}.",
        ),
        ("When does {name} go to {place}?", "In which month is {name} in {place}?"),
    ),
    Kind(
        "talks",
        {"person": PEOPLE, "topic": TOPICS, "place": PLACES},
        (
            "A talk about {topic} and {person} in {place}",
            "In {place} somebody speaks on {person} and {topic}.",
            "{person} and {topic}: a talk in {place}",
        ),
    ),
    Kind(
        "cooking",
        {"dish": DISHES, "name": NAMES, "day": DAYS},
        (
            "{name} cooks {dish} on {day}.",
            "On {day} there is {dish}, made by {name}.",
            "{dish} is what {name} makes on {day}.",
            "For {day} {name} has a recipe for {dish}.",
        ),
        ("What does {name} cook on {day}?", "Which meal is there on {day} from {name}?"),
    ),
    Kind(
        "languages",
        {"topic": TOPICS, "language": LANGUAGES},
        (
            "Translate {topic} into {language}.",
            "How do you say {topic} in {language}?",
            "What is {topic} in {language}?",
            "The {language} word for {topic}",
        ),
    ),
    Kind(
        "topics",
        {"topic": TOPICS, "place": PLACES},
        (
            "Tell me about {topic} in {place}.",
            "What do you know about {topic} in {place}?",
            "I want to read on {topic} in {place}.",
            "{place}: {topic}",
        ),
    ),
)
"""Kinds whose meanings are drawn; those of one key in ten are held out."""

FACTS: tuple[tuple[str, tuple[str, ...]], ...] = (*PROJECT_FACTS, *SMALL_TALK)
"""Answers of `tiny`, with ways to ask for each: trained as they are, and never held out."""


class _Slot(str):
    """A word of a slot; `{a:word}` writes a number in words."""

    __slots__ = ()

    def __format__(self, how: str) -> str:
        return number_word(int(self)) if how == "word" else str(self)


def written(template: str, words: Mapping[str, str]) -> str:
    """A template with a meaning's words, its first letter a capital one."""
    text = template.format(**{slot: _Slot(word) for slot, word in words.items()})
    return text[0].upper() + text[1:]
