from __future__ import annotations

from random import Random

from tests.unit.tools.training.test_pictures import scenes
from tools.training.tiny import picture_questions
from tools.training.tiny.picture_questions import NUMBERS, PLACES, listed, question
from tools.training.tiny.pictures import BLOCK, Scene, Shape


def scene_of(*shapes: tuple[str, str, float, float]) -> Scene:
    """Shapes of 20 pixels in a picture of ten by ten blocks, in reading order."""
    made = tuple(
        Shape(kind, colour, x * BLOCK, y * BLOCK, 20, 20, 0.0, (1, 1, 1))
        for kind, colour, x, y in shapes
    )
    whole = (0.0, 0.0, 10.0 * BLOCK, 10.0 * BLOCK)
    return Scene(10, 10, made, whole, ((0, 0, 0), (0, 0, 0)), 0.0, 0.0)


TWO = scene_of(("circle", "red", 1, 1), ("square", "orange", 8, 5))


def test_shapes_are_listed_in_order() -> None:
    assert listed(TWO) == "A red circle and an orange square."
    assert listed(scene_of()) == "Nothing."
    three = scene_of(("star", "blue", 1, 1), ("star", "red", 5, 1), ("circle", "white", 9, 1))
    assert listed(three) == "A blue star, a red star and a white circle."


def asked(scene: Scene, kind: str, count: int = 6000) -> dict[str, str]:
    rng = Random(kind)
    found = [question(rng, scene) for _ in range(count)]
    return {text: answer for name, text, answer in found if name == f"picture: {kind}"}


def test_answers_are_right() -> None:
    assert asked(TWO, "count")["How many shapes are there?"] == "Two."
    assert asked(TWO, "count")["Count the stars."] == "None."
    assert asked(TWO, "colour")["What colour is the square?"] == "The square is orange."
    assert asked(TWO, "shape")["Which shape is red?"] == "The circle is red."
    assert asked(TWO, "where")["Where is the circle?"] == "At the top left."
    assert asked(TWO, "where")["Where is the orange square?"] == "On the right."
    there = asked(TWO, "is there")
    assert there["Is there a star?"] == "No."
    assert there["Is there a circle?"] == "Yes."
    assert there["Is there anything orange?"] == "Yes."
    assert there["Is there an orange circle?"] == "No."
    beside = asked(TWO, "beside")
    assert beside["What is left of the square?"] == "The red circle."
    assert beside["What is right of the square?"] == "Nothing."
    assert beside["What is on the right?"] == "The orange square."


def test_only_what_one_answer_fits_is_asked() -> None:
    stars = scene_of(("star", "blue", 1, 1), ("star", "red", 1, 8))
    assert not asked(stars, "colour")
    assert not asked(stars, "beside"), "they lie in one column"
    assert all("star" not in text or "red" in text or "blue" in text
               for text in asked(stars, "where"))  # fmt: skip


def test_every_answer_is_a_sentence() -> None:
    rng = Random(2)
    for scene in scenes(200):
        for make in (picture_questions.what, picture_questions.how_many, question):
            found = make(rng, scene)
            assert found[2].endswith(".")
            assert found[2][0].isupper()
            assert "{" not in found[1]
    assert len(NUMBERS) == 6
    assert len(PLACES) == 9
