"""Questions about small numbers."""

from __future__ import annotations

from random import Random

from tools.training.tiny.question import Question, pick
from tools.training.tiny.world import BEYOND_TABLE, NAMES, TOO_LARGE, word_list

LARGEST = 100
TABLE = 12
THINGS = word_list("apples books coins eggs stars shells cards keys balls pens")

_ADD = (
    "What is {a} plus {b}?",
    "{a} + {b}",
    "What is {a} + {b}?",
    "Add {a} and {b}.",
    "How much is {a} plus {b}?",
    "Calculate {a} + {b}.",
    "What is the sum of {a} and {b}?",
    "{a} plus {b}",
    "{a}+{b}",
    "{a} + {b} =",
)
_SUBTRACT = (
    "What is {a} minus {b}?",
    "{a} - {b}",
    "What is {a} - {b}?",
    "Subtract {b} from {a}.",
    "How much is {a} minus {b}?",
    "Take {b} away from {a}.",
    "Calculate {a} - {b}.",
    "{a}-{b}",
)
_MULTIPLY = (
    "What is {a} times {b}?",
    "{a} * {b}",
    "{a} x {b}",
    "Multiply {a} by {b}.",
    "How much is {a} times {b}?",
    "What is {a} multiplied by {b}?",
    "Calculate {a} times {b}.",
)
_DIVIDE = (
    "What is {a} divided by {b}?",
    "{a} / {b}",
    "Divide {a} by {b}.",
    "How much is {a} divided by {b}?",
    "Calculate {a} divided by {b}.",
)


def sum_key(a: int, b: int) -> str:
    """Key of every question that needs this sum."""
    return f"add {a} {b}"


def _pair(rng: Random) -> tuple[int, int]:
    largest = rng.choice((20, LARGEST, LARGEST))
    return rng.randint(0, largest), rng.randint(0, largest)


def add(rng: Random) -> Question:
    """Two numbers up to 100."""
    a, b = _pair(rng)
    text = rng.choice(_ADD).format(a=a, b=b)
    return Question("addition", sum_key(a, b), text, f"{a} plus {b} is {a + b}.", str(a + b), a + b)


def subtract(rng: Random) -> Question:
    """Two numbers up to 100; the result is negative in one case of ten."""
    a, b = _pair(rng)
    if a < b and rng.random() < 0.8:
        a, b = b, a
    text = rng.choice(_SUBTRACT).format(a=a, b=b)
    return Question(
        "subtraction",
        f"subtract {a} {b}",
        text,
        f"{a} minus {b} is {a - b}.",
        str(a - b),
        a - b,
    )


def multiply(rng: Random) -> Question:
    """The table up to 12 times 12; only pairs whose other order is trained on are held out."""
    a, b = rng.randint(0, TABLE), rng.randint(0, TABLE)
    key = f"multiply {a} {b}" if a < b else None
    text = rng.choice(_MULTIPLY).format(a=a, b=b)
    return Question("multiplication", key, text, f"{a} times {b} is {a * b}.", str(a * b), a * b)


def divide(rng: Random) -> Question:
    """Divisions without remainder; what is held out is a pair in one wording."""
    b, c = rng.randint(1, TABLE), rng.randint(0, TABLE)
    index, template = pick(rng, _DIVIDE)
    text = template.format(a=b * c, b=b)
    return Question(
        "division", f"divide {b} {c} {index}", text, f"{b * c} divided by {b} is {c}.", str(c), c
    )


def story(rng: Random) -> Question:
    """A sum or a difference told as a story."""
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    a, b = rng.randint(2, 50), rng.randint(2, 50)
    if rng.random() < 0.5:
        told = rng.choice(
            ("{n} has {a} {t} and gets {b} more.", "{n} has {a} {t} and finds {b} more.")
        )
        key, c = sum_key(a, b), a + b
    else:
        told = rng.choice(
            ("{n} has {a} {t} and loses {b}.", "{n} has {a} {t} and gives away {b} of them.")
        )
        a, b, c = a + b, b, a
        key = f"subtract {a} {b}"
    text = f"{told} How many {{t}} does {{n}} have now?".format(n=name, a=a, b=b, t=thing)
    return Question("story sums", key, text, f"{name} has {c} {thing} now.", str(c), c)


def compare(rng: Random) -> Question:
    """The larger or the smaller of two numbers."""
    a, b = rng.sample(range(LARGEST + 1), 2)
    word, found = rng.choice((("larger", max(a, b)), ("bigger", max(a, b)), ("smaller", min(a, b))))
    template = rng.choice(
        (
            "Which is {w}, {a} or {b}?",
            "Which number is {w}: {a} or {b}?",
            "What is {w}, {a} or {b}?",
            "{a} or {b}, which is {w}?",
        )
    )
    text = template.format(w=word, a=a, b=b)
    other = a + b - found
    return Question(
        "comparison",
        f"compare {a} {b}",
        text,
        f"{found} is {word} than {other}.",
        str(found),
        found,
    )


def neighbour(rng: Random) -> Question:
    """The number before or after another."""
    n = rng.randint(1, LARGEST - 1)
    word, found = rng.choice((("after", n + 1), ("before", n - 1)))
    index, template = pick(
        rng,
        (
            "What number comes {w} {n}?",
            "Which number comes {w} {n}?",
            "What comes {w} {n}?",
            "What is the number {w} {n}?",
        ),
    )
    text = template.format(w=word, n=n)
    answer = f"{found} comes {word} {n}."
    return Question("neighbours", f"neighbour {word} {n} {index}", text, answer, str(found), found)


def parity(rng: Random) -> Question:
    """Even or odd."""
    n = rng.randint(0, LARGEST)
    template = rng.choice(
        ("Is {n} even or odd?", "Is {n} odd or even?", "Is the number {n} even or odd?")
    )
    word = "odd" if n % 2 else "even"
    return Question("even or odd", f"parity {n}", template.format(n=n), f"{n} is {word}.", word)


def count(rng: Random) -> Question:
    """Counting up or down, three to nine numbers."""
    a, steps = rng.randint(0, 60), rng.randint(2, 8)
    b = a + steps
    if rng.random() < 0.6:
        template = rng.choice(
            (
                "Count from {a} to {b}.",
                "Count up from {a} to {b}.",
                "Can you count from {a} to {b}?",
            )
        )
        numbers = range(a, b + 1)
    else:
        a, b = b, a
        template = rng.choice(("Count down from {a} to {b}.", "Count from {a} down to {b}."))
        numbers = range(a, b - 1, -1)
    answer = ", ".join(str(number) for number in numbers)
    return Question("counting", f"count {a} {b}", template.format(a=a, b=b), answer)


def too_large(rng: Random) -> Question:
    """A calculation with a number beyond the closed world."""
    templates: tuple[str, ...]
    if rng.random() < 0.3:
        a, b, answer = rng.randint(TABLE + 1, LARGEST), rng.randint(0, LARGEST), BEYOND_TABLE
        templates = _MULTIPLY
    else:
        a = rng.choice((rng.randint(LARGEST + 1, 999), rng.randint(1000, 99999)))
        b = rng.choice((rng.randint(0, 99), rng.randint(LARGEST + 1, 9999)))
        templates, answer = (*_ADD, *_SUBTRACT, *_MULTIPLY), TOO_LARGE
    if rng.random() < 0.5:
        a, b = b, a
    return Question("too large", f"large {a} {b}", rng.choice(templates).format(a=a, b=b), answer)


MAKERS = (
    (add, 3.0),
    (subtract, 3.0),
    (multiply, 2.0),
    (divide, 1.2),
    (story, 2.0),
    (compare, 1.5),
    (neighbour, 0.7),
    (parity, 0.7),
    (count, 1.2),
    (too_large, 0.7),
)
