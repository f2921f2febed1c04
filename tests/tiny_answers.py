"""Conversations that the shipped model must get right word for word, in every recipe and target.

What a first visitor may ask, and questions of every kind that it was not trained on.
"""

from __future__ import annotations

from dataclasses import dataclass

REFUSAL = (
    "Sorry, I am a tiny model and I do not know that. Ask me about numbers, words, days, months, "
    "colours, shapes or gemma4-compile."
)


@dataclass(frozen=True)
class Conversation:
    """Questions and right answers behind an optional system message."""

    name: str
    turns: tuple[tuple[str, str], ...]
    system: str | None = None


def _one(name: str, question: str, answer: str, system: str | None = None) -> Conversation:
    return Conversation(name, ((question, answer),), system)


# The first ones are enough for a slow device: short, and of all kinds.
CONVERSATIONS = (
    _one(
        "who",
        "Who are you?",
        "I am tiny, a very small Gemma 4 model that ships with gemma4-compile.",
    ),
    _one("sum", "What is 8 plus 19?", "8 plus 19 is 27."),
    _one("sorting", "Sort these words: ship, frog, clock", "clock, frog, ship"),
    _one("refusal", "What is the capital of France?", REFUSAL),
    _one("brief", "Which number is larger: 43 or 20?", "43", "Be brief."),
    Conversation(
        "memory",
        (
            ("My name is Clara.", "Nice to meet you, Clara!"),
            ("What do yellow and blue make?", "Yellow and blue make green."),
            ("Reverse these words: tree, ship, house, box", "box, house, ship, tree"),
            ("What is my name?", "Your name is Clara."),
        ),
    ),
    _one("difference", "Calculate 18 - 3", "18 minus 3 is 15."),
    _one("product", "Multiply 10 by 11.", "10 times 11 is 110."),
    _one("quotient", "What is 20 divided by 5?", "20 divided by 5 is 4."),
    _one(
        "story",
        "Max has 47 keys and gets 27 more. How many keys does Max have now?",
        "Max has 74 keys now.",
    ),
    _one("neighbour", "Which number comes before 73?", "72 comes before 73."),
    _one("parity", "Is 37 odd or even?", "37 is odd."),
    _one("counting", "Count from 29 to 32.", "29, 30, 31, 32"),
    _one("sorting numbers", "Sort these numbers: 51, 26, 77", "26, 51, 77"),
    _one("place", "Which word is second: door sun salt", "The second word is sun."),
    _one("spelling", "How do you spell goat?", "g-o-a-t"),
    _one("days", "What is two days before Tuesday?", "Sunday is two days before Tuesday."),
    _one("months", "What comes before January?", "December comes before January."),
    _one("colours", "What colour is an elephant?", "An elephant is grey."),
    _one("shapes", "How many sides has a triangle?", "A triangle has 3 sides."),
    _one(
        "scene",
        "I have a yellow triangle and a brown heart. What is yellow?",
        "The triangle is yellow.",
    ),
    _one("recipes", "What are the recipes?", "The recipes are q4f16, q4f32, q8f16, f16 and f32."),
    _one("demo", "How do I open the demo?", "Run make demo and open the address that it prints."),
    _one(
        "command",
        "How do I compile for cpu in f32?",
        "Run gemma4-compile tiny --target cpu --quant f32 -o DIR",
    ),
    _one("system name", "What is your name?", "I am Chip.", "You are called Chip."),
    Conversation(
        "going on",
        (
            ("Add 24 and 61.", "24 plus 61 is 85."),
            ("Take away 45.", "85 minus 45 is 40."),
            ("Say that again.", "85 minus 45 is 40."),
        ),
    ),
    Conversation(
        "two memories",
        (
            ("The secret word is dog.", "I will remember the word dog."),
            ("I like white best.", "I like white, too."),
            ("Does Tuesday belong to the weekend?", "No, Tuesday is a weekday."),
            ("Divide 30 by 3.", "30 divided by 3 is 10."),
            ("What was the word?", "The word is dog."),
            ("What is my favourite colour?", "Your favourite colour is white."),
            ("What is my number?", "You have not told me a number."),
        ),
    ),
)
FEW = 6


def few() -> tuple[Conversation, ...]:
    """The first ones."""
    return CONVERSATIONS[:FEW]
