from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tools.training.tiny.dialogues import Dialogue
from tools.training.tiny.media_dialogues import (
    AUDIO,
    IMAGE,
    NO_PICTURE,
    NO_SOUND,
    MediaDialogue,
    absent,
    one_picture,
    picture_and_sound,
    sound_dialogue,
    text_dialogue,
    two_pictures,
)
from tools.training.tiny.picture_questions import listed
from tools.training.tiny.pictures import Scene

GRID = (9, 7)


def places(dialogue: Dialogue) -> list[str]:
    text = dialogue.text()
    marks = sorted((text.find(mark, at), mark) for mark in (IMAGE, AUDIO)
                   for at in range(len(text)) if text.startswith(mark, at))  # fmt: skip
    return [mark for _, mark in marks]


def made(test: bool, count: int = 60) -> list[MediaDialogue]:
    rng = Random(int(test))
    makers = (one_picture, two_pictures, picture_and_sound)
    found = [make(rng, GRID, test) for make in makers for _ in range(count)]
    return found + [sound_dialogue(rng, 4.0, test=test) for _ in range(count)]


@pytest.mark.parametrize("test", [False, True])
def test_every_medium_has_its_place(test: bool) -> None:
    for one in made(test):
        kinds = [IMAGE if isinstance(medium, Scene) else AUDIO for medium in one.media]
        assert places(one.dialogue) == kinds
        assert one.rows == sum(medium.rows for medium in one.media)


def test_the_first_and_the_second_picture_are_not_mixed_up() -> None:
    rng, seen = Random(5), Counter[str]()
    for _ in range(300):
        one = two_pictures(rng, GRID, True)
        turn = one.dialogue.turns[-1]
        for index, ordinal in enumerate(("first", "second")):
            if f"in the {ordinal} picture" in turn.user and "what" in turn.user.lower():
                scene = one.media[index]
                assert isinstance(scene, Scene)
                if "colour" not in turn.user:
                    assert turn.answer == listed(scene)
                    seen[ordinal] += 1
    assert min(seen.values()) > 10


def test_what_is_not_there_is_said_to_be_missing() -> None:
    rng = Random(0)
    answers = Counter(absent(rng, True).turns[-1].answer for _ in range(200))
    assert set(answers) == {NO_PICTURE, NO_SOUND}
    for one in made(False):
        for turn in one.dialogue.turns:
            if turn.answer == NO_PICTURE:
                assert IMAGE not in one.dialogue.text()
            if turn.answer == NO_SOUND:
                assert AUDIO not in one.dialogue.text()


def test_texts_are_mixed_in_and_hold_absent_media() -> None:
    dialogues = [text_dialogue(seed) for seed in range(600)]
    missing = sum(
        any(turn.answer in (NO_PICTURE, NO_SOUND) for turn in one.turns) for one in dialogues
    )
    assert 20 < missing < 80
    assert not any(IMAGE in one.text() or AUDIO in one.text() for one in dialogues)
