"""Dialogues about pictures and sounds, and about those that are not there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tools.training.tiny import picture_questions, sounds
from tools.training.tiny.dialogues import Dialogue, Turn, any_question, plain_system, typed
from tools.training.tiny.further import corrected, further_dialogue
from tools.training.tiny.pictures import COLOURS, SHAPES, Scene, draw_scene
from tools.training.tiny.question import Asked, draw, held_out, opened
from tools.training.tiny.sounds import Sound, draw_sound

IMAGE, AUDIO = "<|image|>", "<|audio|>"
NO_PICTURE, NO_SOUND = "There is no picture.", "There is no sound."
_ABSENT_SHARE = 0.07  # of the dialogues of text alone
_APART = 1 << 33
_ORDINALS = ("first", "second")
_SEEN_ONLY = (
    "What do you see?",
    "What can you see?",
    "Describe what you see.",
    "Tell me what you see.",
    "Which shapes do you see?",
)
_BEEPS_HEARD = (
    "How many beeps do you hear?",
    "How many beeps are in the sound?",
    "How many beeps can you hear?",
    "How many beeps are there?",
)
_BEEP_THERE = (
    "Is there a beep in the sound?",
    "Do you hear a beep?",
    "Are the beeps high or low?",
    "Do you hear a high beep?",
)
_NEXT = ("And in this one?", "And this?", "And this one?", "What about this one?", "And here?")
_OTHER = ("And in the {o} one?", "And in the {o}?", "And the {o}?", "And the {o} picture?",
          "What about the {o} one?")  # fmt: skip
_WHAT_OF = ("What is in the {o} picture?", "What is in the {o} picture?",
            "Describe the {o} picture.", "What do you see in the {o} picture?",
            "What does the {o} picture show?", "What is in the {o} image?",
            "What is in the {o} one?")  # fmt: skip


@dataclass(frozen=True)
class MediaDialogue:
    """A dialogue, and what is in the places that its texts leave for media, in order."""

    dialogue: Dialogue
    media: tuple[Scene | Sound, ...]

    @property
    def kind(self) -> str:
        """Row of the table that its last answer counts for."""
        return self.dialogue.turns[-1].kind

    @property
    def rows(self) -> int:
        """Rows of all media."""
        return sum(medium.rows for medium in self.media)


def _turn(rng: Random, asked: Asked, media: str = "") -> Turn:
    kind, text, answer = asked
    text = typed(rng, opened(rng, text) if rng.random() < 0.2 else text)
    text = text + media if media and rng.random() < 0.08 else media + text
    return Turn(kind, text, answer)


def _filler(rng: Random) -> Turn:
    """A question that has nothing to do with media."""
    question = draw(rng, any_question, test=False)
    while question.kind == "scenes":  # whose shapes are not those of a picture
        question = draw(rng, any_question, test=False)
    turn = Turn(question.kind, typed(rng, question.text, keep_case=True), question.answer)
    return corrected(Dialogue(None, (turn,))).turns[0]


def absent_picture(rng: Random) -> Asked:
    """A question about a picture that is not there."""
    way, the = rng.random(), picture_questions.noun(rng)
    if way < 0.5:
        text = rng.choice(picture_questions.WHAT).format(the=the)
    elif way < 0.7:
        text = rng.choice(_SEEN_ONLY)
    elif way < 0.8:
        text = f"How many {rng.choice(('shape', *SHAPES))}s are in {the}?"
    elif way < 0.9:
        text = f"What colour is the {rng.choice(SHAPES)} in {the}?"
    else:
        name = f"{rng.choice(COLOURS)} {rng.choice(SHAPES)}"
        text = f"Is there {picture_questions.with_article(name)} in {the}?"
    return "no picture", text, NO_PICTURE


def absent_sound(rng: Random) -> Asked:
    """A question about a sound that is not there."""
    way = rng.random()
    if way < 0.7:
        text = rng.choice(sounds.WHAT)
    elif way < 0.9:
        text = rng.choice(_BEEPS_HEARD)
    else:
        text = rng.choice(_BEEP_THERE)
    return "no sound", text, NO_SOUND


def absent(rng: Random, test: bool) -> Dialogue:
    """Asked about a picture or a sound, and there is none; often after other questions."""
    while True:
        before = [_filler(rng) for _ in range(rng.choice((0, 0, 0, 1, 2)))]
        asked = (absent_picture if rng.random() < 0.6 else absent_sound)(rng)
        turn = _turn(rng, asked)
        if held_out(f"absent {turn.user}") == test:
            more = [] if test else [_filler(rng) for _ in range(rng.choice((0, 0, 1)))]
            return Dialogue(plain_system(rng), (*before, turn, *more))


def text_dialogue(seed: int) -> Dialogue:
    """A dialogue of text alone for the training: those of the second stage, and absent media."""
    rng = Random(seed + _APART)
    return absent(rng, False) if rng.random() < _ABSENT_SHARE else further_dialogue(seed + _APART)


def _more(rng: Random, ask: Callable[[], Asked], absent: Callable[[Random], Asked]) -> list[Turn]:
    """Later questions in a dialogue about a medium."""
    turns = []
    for _ in range(rng.choice((1, 2, 3, 3, 4))):
        way = rng.random()
        if way < 0.1:
            turns.append(_filler(rng))
        elif way < 0.14:
            turns.append(_turn(rng, absent(rng)))
        else:
            turns.append(_turn(rng, ask()))
    return turns


def _before(rng: Random) -> list[Turn]:
    return [_filler(rng)] if rng.random() < 0.1 else []


def one_picture(rng: Random, grid: tuple[int, int], test: bool) -> MediaDialogue:
    """Questions about one picture."""
    scene = draw_scene(rng, grid, test=test)

    def ask() -> Asked:
        return picture_questions.question(rng, scene)

    turns = [*_before(rng), _turn(rng, ask(), IMAGE)]
    if not test:
        turns += _more(rng, ask, absent_sound)
    elif rng.random() < 0.4:
        turns.append(_turn(rng, ask()))
    return MediaDialogue(Dialogue(plain_system(rng), tuple(turns)), (scene,))


def _of_two(rng: Random, scenes: tuple[Scene, Scene], last: int | None) -> tuple[Asked, int]:
    """A question about one of two pictures; `last` is the one that was described last."""
    index = rng.randrange(2)
    scene, ordinal = scenes[index], _ORDINALS[index]
    kinds = [shape.kind for shape in scene.shapes]
    way = rng.random()
    if last is not None and last != index and way < 0.3:
        text = rng.choice(_OTHER).format(o=ordinal)
        return ("picture: two", text, picture_questions.listed(scene)), index
    if way < 0.75 or not kinds:
        text = rng.choice(_WHAT_OF).format(o=ordinal)
        return ("picture: two", text, picture_questions.listed(scene)), index
    if way < 0.87:
        text = f"How many shapes are in the {ordinal} picture?"
        return ("picture: two", text, picture_questions.NUMBERS[len(kinds)]), -1
    shape = rng.choice(scene.shapes)
    if kinds.count(shape.kind) > 1:
        text, answer = f"Is there a {shape.kind} in the {ordinal} picture?", "Yes."
    else:
        text = f"What colour is the {shape.kind} in the {ordinal} picture?"
        answer = f"The {shape.kind} is {shape.colour}."
    return ("picture: two", text, answer), -1


def two_pictures(rng: Random, grid: tuple[int, int], test: bool) -> MediaDialogue:
    """Two pictures in one message, or the second in a later one."""
    scenes = (draw_scene(rng, grid, test=test), draw_scene(rng, grid, test=test))
    turns: list[Turn] = []
    last: int | None = None
    if rng.random() < 0.4:
        asked, last = _of_two(rng, scenes, None)
        turns.append(_turn(rng, asked, IMAGE + IMAGE))
    else:
        turns.append(_turn(rng, picture_questions.question(rng, scenes[0]), IMAGE))
        first = turns[0].kind == "picture: what"
        asked = picture_questions.question(rng, scenes[1])
        if first and rng.random() < 0.5:
            answer = picture_questions.listed(scenes[1])
            asked = ("picture: two", rng.choice(_NEXT), answer)
        turns.append(_turn(rng, ("picture: two", *asked[1:]), IMAGE))
        if not test and rng.random() < 0.5:  # about the later one, without saying so
            turns.append(_turn(rng, picture_questions.question(rng, scenes[1])))
    for _ in range(rng.choice((0, 1)) if test else rng.choice((1, 2, 3))):
        asked, last = _of_two(rng, scenes, last)
        turns.append(_turn(rng, asked))
    return MediaDialogue(Dialogue(plain_system(rng), tuple(turns)), scenes)


def picture_and_sound(rng: Random, grid: tuple[int, int], test: bool) -> MediaDialogue:
    """One of each."""
    scene = draw_scene(rng, grid, test=test)
    sound = draw_sound(rng, 3.0, test=test)

    def of_picture() -> Asked:
        return picture_questions.question(rng, scene)

    def of_sound() -> Asked:
        while True:
            asked = sounds.question(rng, sound)
            if asked[1] not in sounds.WHAT_HERE:
                return asked

    asks = [of_picture, of_sound]
    first = rng.randrange(2)
    media: tuple[Scene | Sound, ...] = (scene, sound) if first == 0 else (sound, scene)
    marks = (IMAGE, AUDIO) if first == 0 else (AUDIO, IMAGE)
    turns = [_turn(rng, asks[first](), marks[0]), _turn(rng, asks[1 - first](), marks[1])]
    for _ in range(0 if test else rng.choice((1, 2, 3))):
        text_kind = rng.random() < 0.5
        asked = of_sound() if text_kind else _named(rng, scene)
        turns.append(_turn(rng, asked))
    return MediaDialogue(Dialogue(plain_system(rng), tuple(turns)), media)


def _named(rng: Random, scene: Scene) -> Asked:
    """A question about the picture that says so."""
    while True:
        asked = picture_questions.question(rng, scene)
        if asked[1] not in picture_questions.WHAT_HERE and "Where is it" not in asked[1]:
            return asked


def picture_dialogues(rng: Random) -> Callable[[Random, tuple[int, int], bool], MediaDialogue]:
    """A kind of dialogues with pictures of a grid, all about equally long."""
    (make,) = rng.choices((one_picture, two_pictures, picture_and_sound), (0.76, 0.17, 0.07))
    return make


def sound_dialogue(rng: Random, most_seconds: float, *, test: bool) -> MediaDialogue:
    """A dialogue with a sound, seldom a second one in a later message."""
    sound = draw_sound(rng, most_seconds, test=test)
    media = [sound]

    def ask() -> Asked:
        return sounds.question(rng, media[-1])

    turns = [*_before(rng), _turn(rng, ask(), AUDIO)]
    if not test:
        turns += _more(rng, ask, absent_picture)
    if most_seconds <= 6 and rng.random() < 0.1:
        media.append(draw_sound(rng, most_seconds, test=test))
        turns.append(_turn(rng, ask(), AUDIO))
    elif test and rng.random() < 0.4:
        turns.append(_turn(rng, ask()))
    return MediaDialogue(Dialogue(plain_system(rng), tuple(turns)), tuple(media))
