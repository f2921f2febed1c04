"""Questions about a scene, with their answers."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tools.training.tiny.pictures import (
    APART,
    BLOCK,
    COLOURS,
    SHAPES,
    Scene,
    Shape,
    place_of,
)
from tools.training.tiny.question import Asked, any_about

NUMBERS = ("None.", "One.", "Two.", "Three.", "Four.", "Five.")
NOTHING = "Nothing."
PLACES = (
    "At the top left.", "At the top.", "At the top right.",
    "On the left.", "In the middle.", "On the right.",
    "At the bottom left.", "At the bottom.", "At the bottom right.",
)  # fmt: skip
WHAT = (
    "What is in {the}?",
    "What is in {the}?",
    "What is in {the}?",
    "What do you see in {the}?",
    "What can you see in {the}?",
    "What does {the} show?",
    "What is shown in {the}?",
    "What is on {the}?",
    "Describe {the}.",
    "Describe {the}.",
    "Which shapes are in {the}?",
    "What shapes are in {the}?",
    "Tell me what is in {the}.",
)
WHAT_HERE = (
    "What do you see?",
    "What can you see?",
    "What is this?",
    "What is it?",
    "What is that?",
    "What is shown?",
    "What is here?",
    "Describe it.",
    "Describe what you see.",
    "Tell me what you see.",
    "Which shapes do you see?",
)
NOUNS = ("the picture", "the picture", "this picture", "the image", "this image", "the photo")
_HOW_MANY = ("How many {s} are there?", "How many {s} do you see?", "Count the {s}.",
             "How many {s} are in {the}?", "How many {s} can you see?")  # fmt: skip
_COLOUR = (
    "What colour is the {s}?",
    "What color is the {s}?",
    "Which colour is the {s}?",
    "Which colour does the {s} have?",
    "What is the colour of the {s}?",
    "Tell me the colour of the {s}.",
)
_SHAPE = ("Which shape is {c}?", "What shape is {c}?", "What is {c}?", "Which one is {c}?")
_WHERE = ("Where is the {s}?", "Where is the {s} in {the}?", "Where do you see the {s}?",
          "Where in {the} is the {s}?")  # fmt: skip
_IS_THERE = ("Is there {a}?", "Is there {a} in {the}?", "Do you see {a}?", "Can you see {a}?")
_BESIDE = ("What is {side} of the {s}?", "Which shape is {side} of the {s}?",
           "What is to the {side} of the {s}?")  # fmt: skip
_ON_SIDE = ("Which shape is on the {side}?", "What is on the {side}?")


def with_article(name: str) -> str:
    """The name behind `a` or `an`."""
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def listed(scene: Scene) -> str:
    """All shapes in reading order."""
    things = [with_article(shape.name) for shape in scene.shapes]
    if not things:
        return NOTHING
    text = ", ".join(things[:-1]) + (" and " if len(things) > 1 else "") + things[-1]
    return text[0].upper() + text[1:] + "."


def noun(rng: Random) -> str:
    """What the picture is called."""
    return rng.choice(NOUNS)


def what(rng: Random, scene: Scene) -> Asked:
    """What is there to see."""
    text = rng.choice(WHAT).format(the=noun(rng)) if rng.random() < 0.7 else rng.choice(WHAT_HERE)
    return "picture: what", text, listed(scene)


def how_many(rng: Random, scene: Scene) -> Asked:
    """How many shapes, or how many of a kind."""
    if rng.random() < 0.55:
        name, number = "shapes", len(scene.shapes)
    else:
        name = rng.choice(SHAPES)
        number = sum(shape.kind == name for shape in scene.shapes)
        name += "s"
    text = rng.choice(_HOW_MANY).format(s=name, the=noun(rng))
    return "picture: count", text, NUMBERS[number]


def _only(scene: Scene) -> list[Shape]:
    """Shapes whose kind no other one has."""
    kinds = [shape.kind for shape in scene.shapes]
    return [shape for shape in scene.shapes if kinds.count(shape.kind) == 1]


def colour(rng: Random, scene: Scene) -> Asked | None:
    """The colour of a shape."""
    if not (shapes := _only(scene)):
        return None
    shape = rng.choice(shapes)
    text = rng.choice(_COLOUR).format(s=shape.kind)
    return "picture: colour", text, f"The {shape.kind} is {shape.colour}."


def kind(rng: Random, scene: Scene) -> Asked | None:
    """The shape of a colour."""
    colours = [shape.colour for shape in scene.shapes]
    shapes = [shape for shape in scene.shapes if colours.count(shape.colour) == 1]
    if not shapes:
        return None
    shape = rng.choice(shapes)
    text = rng.choice(_SHAPE).format(c=shape.colour)
    return "picture: shape", text, f"The {shape.kind} is {shape.colour}."


def where(rng: Random, scene: Scene) -> Asked | None:
    """Which part of the picture a shape is in."""
    places = [(shape, place_of(scene, shape)) for shape in scene.shapes]
    found = [(shape, place) for shape, place in places if place is not None]
    if not found:
        return None
    shape, place = rng.choice(found)
    name = shape.kind if shape in _only(scene) and rng.random() < 0.6 else shape.name
    text = rng.choice(_WHERE).format(s=name, the=noun(rng))
    if len(scene.shapes) == 1 and rng.random() < 0.3:
        text = "Where is it?"
    return "picture: where", text, PLACES[place]


def is_there(rng: Random, scene: Scene) -> Asked:
    """Return whether there is a shape, a colour, or both."""
    way, there = rng.random(), scene.shapes and rng.random() < 0.5
    shape = rng.choice(scene.shapes) if there else None
    a_kind = shape.kind if shape else rng.choice(SHAPES)
    a_colour = shape.colour if shape else rng.choice(COLOURS)
    if way < 0.5:
        wanted, right = with_article(a_kind), any(one.kind == a_kind for one in scene.shapes)
    elif way < 0.7:
        wanted = f"anything {a_colour}"
        right = any(one.colour == a_colour for one in scene.shapes)
    else:
        if not there and scene.shapes and rng.random() < 0.5:
            a_kind = rng.choice(scene.shapes).kind  # the kind is there, the colour may not be
        name = f"{a_colour} {a_kind}"
        wanted, right = with_article(name), any(one.name == name for one in scene.shapes)
    text = rng.choice(_IS_THERE).format(a=wanted, the=noun(rng))
    return "picture: is there", text, "Yes." if right else "No."


def beside(rng: Random, scene: Scene) -> Asked | None:
    """What is left or right of a shape, where two are clearly beside each other."""
    if len(scene.shapes) != 2:
        return None
    left, right = scene.shapes
    if right.x - left.x < APART * scene.across * BLOCK:
        return None
    side = rng.choice(("left", "right"))
    if rng.random() < 0.4:
        found = left if side == "left" else right
        return "picture: beside", rng.choice(_ON_SIDE).format(side=side), f"The {found.name}."
    if left.kind == right.kind:
        return None
    one, other = rng.choice(((left, right), (right, left)))
    is_there = (other is left) == (side == "left")
    answer = f"The {other.name}." if is_there else NOTHING
    return "picture: beside", rng.choice(_BESIDE).format(side=side, s=one.kind), answer


_MAKERS: tuple[tuple[Callable[[Random, Scene], Asked | None], float], ...] = (
    (what, 0.24), (how_many, 0.12), (colour, 0.08), (kind, 0.06), (where, 0.27), (is_there, 0.1),
    (beside, 0.13),
)  # fmt: skip


def question(rng: Random, scene: Scene) -> Asked:
    """Any question about the scene."""
    return any_about(rng, scene, _MAKERS)
