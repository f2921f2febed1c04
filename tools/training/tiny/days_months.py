"""Questions about days and months; what is held out is a fact in one wording."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tools.training.tiny.question import Question, opened, pick
from tools.training.tiny.world import DAYS, DAYS_IN_MONTH, MONTHS, ORDINALS

NUMBER_WORDS = ("two", "three", "four")


def _step(rng: Random, names: Sequence[str], unit: str, kind: str) -> Question:
    """The day or month some steps before or after another."""
    index, word = rng.randrange(len(names)), rng.choice(("after", "before"))
    steps = rng.choice((1, 1, 1, 2, 3))
    sign = 1 if word == "after" else -1
    found = names[(index + sign * steps) % len(names)]
    name = names[index]
    if steps == 1:
        choice, template = pick(
            rng,
            (
                "What {u} comes {w} {n}?",
                "Which {u} comes {w} {n}?",
                "Which {u} is {w} {n}?",
                "What comes {w} {n}?",
                "Tell me the {u} {w} {n}.",
                "What is the {u} {w} {n}?",
            ),
        )
        text = template.format(u=unit, w=word, n=name)
        answer = f"{found} comes {word} {name}."
    else:
        number = NUMBER_WORDS[steps - 2]
        choice, template = pick(
            rng,
            (
                "What {u} is {k} {u}s {w} {n}?",
                "Which {u} is {k} {u}s {w} {n}?",
                "Which {u} comes {k} {u}s {w} {n}?",
                "What is {k} {u}s {w} {n}?",
            ),
        )
        text = template.format(u=unit, w=word, n=name, k=number)
        answer = f"{found} is {number} {unit}s {word} {name}."
    return Question(kind, f"{unit} {word} {steps} {name} {choice}", text, answer, found)


def day_step(rng: Random) -> Question:
    """A day before or after another."""
    return _step(rng, DAYS, "day", "days")


def month_step(rng: Random) -> Question:
    """A month before or after another."""
    return _step(rng, MONTHS, "month", "months")


def by_number(rng: Random) -> Question:
    """The n-th day of the week or month of the year, and the other way round."""
    unit, names, whole = rng.choice((("day", DAYS, "week"), ("month", MONTHS, "year")))
    index = rng.randrange(len(names))
    place, name = ORDINALS[index], names[index]
    choice, template = pick(
        rng,
        (
            "What is the {p} {u} of the {y}?",
            "Which is the {p} {u} of the {y}?",
            "Name the {p} {u} of the {y}.",
            "Which {u} is {n}?",
            "What number is {n} in the {y}?",
        ),
    )
    text = template.format(p=place, u=unit, y=whole, n=name)
    if choice < 3:
        answer, short = f"The {place} {unit} of the {whole} is {name}.", name
    else:
        answer, short = f"{name} is the {place} {unit} of the {whole}.", place
    return Question(f"{unit}s", f"number {unit} {index} {choice}", text, answer, short)


def month_length(rng: Random) -> Question:
    """Days of a month."""
    index = rng.randrange(12)
    choice, template = pick(
        rng,
        (
            "How many days does {} have?",
            "How many days are in {}?",
            "How long is {}?",
            "Tell me how many days {} has.",
        ),
    )
    days = DAYS_IN_MONTH[index]
    text = template.format(MONTHS[index])
    answer = f"{MONTHS[index]} has {days} days."
    return Question("months", f"days in {index} {choice}", text, answer, str(days), days)


def weekend(rng: Random) -> Question:
    """Weekend or not."""
    index = rng.randrange(7)
    choice, template = pick(
        rng,
        (
            "Is {} a weekend day?",
            "Is {} on the weekend?",
            "Does {} belong to the weekend?",
            "Is {} part of the weekend?",
        ),
    )
    name = DAYS[index]
    yes = index >= 5
    answer = f"Yes, {name} is a weekend day." if yes else f"No, {name} is a weekday."
    key = f"weekend {name} {choice}"
    return Question("days", key, template.format(name), answer, "yes" if yes else "no")


def whole(rng: Random) -> Question:
    """Days of the week, months of the year, and how many there are."""
    options = (
        ("How many days are in a week?", "A week has 7 days.", "7"),
        ("How many days does a week have?", "A week has 7 days.", "7"),
        ("How long is a week?", "A week has 7 days.", "7"),
        ("How many months are in a year?", "A year has 12 months.", "12"),
        ("How many months does a year have?", "A year has 12 months.", "12"),
        ("How long is a year?", "A year has 12 months.", "12"),
        ("Name the days of the week.", ", ".join(DAYS), None),
        ("List the days of the week.", ", ".join(DAYS), None),
        ("What are the days of the week?", ", ".join(DAYS), None),
        ("Name the months of the year.", ", ".join(MONTHS), None),
        ("List the months of the year.", ", ".join(MONTHS), None),
        ("What are the months of the year?", ", ".join(MONTHS), None),
    )
    text, answer, short = rng.choice(options)
    kind = "days" if "week" in text else "months"
    text = opened(rng, text)
    return Question(kind, f"whole {text}", text, answer, short)


MAKERS = (
    (day_step, 2.0),
    (month_step, 2.0),
    (by_number, 1.0),
    (month_length, 0.8),
    (weekend, 0.5),
    (whole, 0.5),
)
