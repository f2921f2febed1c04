"""Things that a user tells about themselves and asks for some turns later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tools.training.tiny.world import COLOURS, MONTHS, NAMES, PET_NAMES, PETS, WORDS


@dataclass(frozen=True)
class Attribute:
    """One kind of thing to remember; `{v}` is its value.

    Attributes
    ----------
    tell, reply : how it is told, and what `tiny` says to it
    ask, answer : how it is asked for, and the answer
    unknown : the answer if it was never told
    """

    name: str
    values: Sequence[str]
    tell: tuple[str, ...]
    reply: str
    ask: tuple[str, ...]
    answer: str
    unknown: str

    def key(self, value: str, index: int) -> str:
        """Key of a value asked for in the wording of this index."""
        return f"recall {self.name} {value} {index}"


def _pet(pet: str) -> Attribute:
    return Attribute(
        pet,
        PET_NAMES,
        (f"I have a {pet} called {{v}}.", f"My {pet} is called {{v}}.", f"{{v}} is my {pet}."),
        f"{{v}} is a nice name for a {pet}.",
        (
            f"What is my {pet} called?",
            f"What is the name of my {pet}?",
            f"Do you remember my {pet}?",
            f"Who is my {pet}?",
        ),
        f"Your {pet} is called {{v}}.",
        f"You have not told me about your {pet}.",
    )


ATTRIBUTES = (
    Attribute(
        "name",
        NAMES,
        ("My name is {v}.", "I am {v}.", "Call me {v}.", "Hi, I am {v}.", "Hello, my name is {v}."),
        "Nice to meet you, {v}!",
        (
            "What is my name?",
            "Do you know my name?",
            "Who am I?",
            "What am I called?",
            "Do you remember my name?",
        ),
        "Your name is {v}.",
        "You have not told me your name.",
    ),
    Attribute(
        "colour",
        COLOURS,
        ("My favourite colour is {v}.", "I like {v} best.", "I love the colour {v}."),
        "I like {v}, too.",
        (
            "What is my favourite colour?",
            "Which colour do I like best?",
            "Do you remember my favourite colour?",
            "What is my favorite color?",
        ),
        "Your favourite colour is {v}.",
        "You have not told me your favourite colour.",
    ),
    Attribute(
        "number",
        [str(number) for number in range(101)],
        ("My lucky number is {v}.", "My favourite number is {v}.", "Remember the number {v}."),
        "I will remember {v}.",
        (
            "What is my number?",
            "What was the number?",
            "Which number did I tell you?",
            "Do you remember my number?",
        ),
        "Your number is {v}.",
        "You have not told me a number.",
    ),
    Attribute(
        "word",
        WORDS,
        ("Remember the word {v}.", "The secret word is {v}.", "Please remember the word {v}."),
        "I will remember the word {v}.",
        (
            "Which word did I tell you?",
            "What was the word?",
            "What is the secret word?",
            "Do you remember the word?",
        ),
        "The word is {v}.",
        "You have not told me a word.",
    ),
    Attribute(
        "birthday",
        MONTHS,
        ("My birthday is in {v}.", "I was born in {v}.", "I have my birthday in {v}."),
        "{v} is a good month.",
        (
            "When is my birthday?",
            "In which month is my birthday?",
            "When was I born?",
            "Do you remember my birthday?",
        ),
        "Your birthday is in {v}.",
        "You have not told me your birthday.",
    ),
    *(_pet(pet) for pet in PETS),
)


def some_attributes(rng: Random, count: int) -> list[Attribute]:
    """Different attributes, pets as rare together as any other one."""
    pet = rng.choice(ATTRIBUTES[-len(PETS) :])
    return rng.sample([*ATTRIBUTES[: -len(PETS)], pet], count)
