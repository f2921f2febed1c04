"""Questions about colours and shapes."""

from __future__ import annotations

from random import Random

from tools.training.tiny.question import Question, pick
from tools.training.tiny.world import COLOUR_OF, COLOURS, MIXES, SHAPES, SIDES


def colour_of(rng: Random) -> Question:
    """The usual colour of a thing; held out is a thing in one wording."""
    thing = rng.choice(list(COLOUR_OF))
    choice, template = pick(
        rng,
        (
            "What colour is {}?",
            "What color is {}?",
            "Which colour does {} have?",
            "Tell me the colour of {}.",
            "Which colour is {}?",
            "What is the colour of {}?",
        ),
    )
    colour = COLOUR_OF[thing]
    answer = f"{thing[0].upper()}{thing[1:]} is {colour}."
    key = f"colour of {thing} {choice}"
    return Question("colours of things", key, template.format(thing), answer, colour)


def mix(rng: Random) -> Question:
    """Question for the mix of two colours; held out is an ordered pair in one wording."""
    pair = rng.choice(list(MIXES))
    a, b = pair if rng.random() < 0.5 else pair[::-1]
    choice, template = pick(
        rng,
        (
            "What do {a} and {b} make?",
            "Mix {a} and {b}.",
            "What colour do you get from {a} and {b}?",
            "Which colour is {a} and {b} together?",
            "What happens if I mix {a} and {b}?",
            "{a} and {b} make which colour?",
        ),
    )
    text = template.format(a=a, b=b)
    text = text[0].upper() + text[1:]
    key = f"mix {a} {b} {choice}"
    return Question(
        "mixing colours", key, text, f"{a.capitalize()} and {b} make {MIXES[pair]}.", MIXES[pair]
    )


def sides(rng: Random) -> Question:
    """Sides and corners; held out is a shape in one wording."""
    shape = rng.choice(list(SIDES))
    word = rng.choice(("sides", "corners"))
    choice, template = pick(
        rng,
        (
            "How many {w} does a {s} have?",
            "How many {w} has a {s}?",
            "Tell me how many {w} a {s} has.",
            "A {s} has how many {w}?",
        ),
    )
    article = "an" if shape[0] in "aeiou" else "a"
    text = template.format(w=word, s=shape).replace(f"a {shape}", f"{article} {shape}")
    text = text.replace("A octagon", "An octagon")
    n = SIDES[shape]
    answer = f"{article.capitalize()} {shape} has {n} {word}."
    return Question("sides of shapes", f"sides {shape} {word} {choice}", text, answer, str(n), n)


def scene(rng: Random) -> Question:
    """Two or three coloured shapes, and one of them to find."""
    size = rng.choice((2, 2, 3))
    shapes, colours = rng.sample(SHAPES, size), rng.sample(COLOURS, size)
    pairs = list(zip(colours, shapes, strict=True))
    things = [f"{'an' if c[0] in 'aeiou' else 'a'} {c} {s}" for c, s in pairs]
    listed = ", ".join(things[:-1]) + " and " + things[-1]
    told = rng.choice(("There is {}.", "I see {}.", "Here is {}.", "I have {}.")).format(listed)
    colour, shape = rng.choice(pairs)
    if rng.random() < 0.5:
        ask = rng.choice(("What colour is the {s}?", "Which colour does the {s} have?"))
        answer, short = f"The {shape} is {colour}.", colour
    else:
        ask = rng.choice(("Which shape is {c}?", "What is {c}?"))
        answer, short = f"The {shape} is {colour}.", shape
    text = f"{told} {ask.format(c=colour, s=shape)}"
    return Question("scenes", f"scene {listed} {ask} {colour}", text, answer, short)


MAKERS = ((colour_of, 1.2), (mix, 0.7), (sides, 0.8), (scene, 3.0))
