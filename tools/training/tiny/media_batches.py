"""Batches of dialogues with media, as arrays: made by worker processes, a pure function of a seed.

All pictures of a batch have one grid, so that the vision tower needs no padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from random import Random

import numpy as np
from tokenizers import Tokenizer

from tools.training.tiny import pictures, sounds
from tools.training.tiny.data import BoolArray, IntArray, answered, padded
from tools.training.tiny.media_dialogues import (
    AUDIO,
    IMAGE,
    MediaDialogue,
    picture_dialogues,
    sound_dialogue,
)
from tools.training.tiny.pictures import IGNORED, Float32Array, Scene, draw_grid
from tools.training.tiny.sounds import Sound

LONGEST = 1000  # tokens of a dialogue
MOST_SECONDS = ((2.0, 0.3), (4.0, 0.35), (6.5, 0.25), (15.0, 0.1))
_FRAMES_PER_SECOND = 100
_PATCHES_PER_ROW = 9


@dataclass(frozen=True)
class Pictures:
    """Pictures of one grid, as numbers to draw them from, and what their rows are to say.

    Attributes
    ----------
    shapes : (pictures, 3, 10); `pictures.DRAWN`
    paper : (pictures, 2, 3) colours of the background
    frame : (pictures, 6): left, top, right, bottom, shading, outline
    blocks : (pictures, rows) class of each row
    slots : (pictures, 3) class of the shapes in reading order
    places : (pictures, 3) ninth of the picture that each is in
    """

    grid: tuple[int, int]
    shapes: Float32Array
    paper: Float32Array
    frame: Float32Array
    blocks: IntArray
    slots: IntArray
    places: IntArray

    @classmethod
    def of(cls, scenes: Sequence[Scene]) -> Pictures:
        """Arrays of scenes of the same grid."""
        slots = np.zeros((len(scenes), pictures.MOST_SHAPES), np.int64)
        places = np.full_like(slots, IGNORED)
        for index, scene in enumerate(scenes):
            for slot, shape in enumerate(scene.shapes):
                slots[index, slot] = pictures.class_of(shape)
                place = pictures.place_of(scene, shape)
                places[index, slot] = IGNORED if place is None else place
        return cls(
            (scenes[0].across, scenes[0].down),
            np.stack([pictures.drawn_shapes(scene) for scene in scenes]),
            np.array([scene.background for scene in scenes], np.float32),
            np.array([(*one.area, one.shading, one.outline) for one in scenes], np.float32),
            np.stack([pictures.block_classes(scene) for scene in scenes]),
            slots,
            places,
        )


@dataclass(frozen=True)
class Sounds:
    """Sounds as numbers to make them from, and what their rows are to say.

    Attributes
    ----------
    events : (sounds, 5, 7); `sounds.MADE`
    samples : (sounds,)
    noise : (sounds,) standard deviation
    states : (sounds, most rows) state of each row
    contents : (sounds,) number in `sounds.CONTENTS`
    """

    events: Float32Array
    samples: IntArray
    noise: Float32Array
    states: IntArray
    contents: IntArray

    @classmethod
    def of(cls, some: Sequence[Sound]) -> Sounds:
        """Arrays of sounds."""
        states = np.full((len(some), max(sound.rows for sound in some)), IGNORED, np.int64)
        for index, sound in enumerate(some):
            states[index, : sound.rows] = sounds.row_states(sound)
        return cls(
            np.stack([sounds.made_events(sound) for sound in some]),
            np.array([sound.samples for sound in some], np.int64),
            np.array([sound.noise for sound in some], np.float32),
            states,
            np.array([sounds.CONTENTS.index(sound.content) for sound in some], np.int64),
        )


@dataclass(frozen=True)
class MediaBatch:
    """Dialogues with their media.

    Attributes
    ----------
    ids : (dialogues, tokens)
    wanted : (dialogues, tokens) tokens that the model must predict
    kinds : of the last turns
    seed : of what is random in drawing and in the samples
    """

    ids: IntArray
    wanted: BoolArray
    kinds: list[str]
    pictures: Pictures | None
    sounds: Sounds | None
    seed: int


@cache
def _tokenizer(path: str) -> Tokenizer:
    return Tokenizer.from_file(path)


def _spread(ids: Sequence[int], media: Sequence[Scene | Sound], tokenizer: Tokenizer) -> IntArray:
    """The ids with begin, rows and end in place of each placeholder."""

    def token_id(name: str) -> int:
        found = tokenizer.token_to_id(name)
        assert found is not None, "the shipped tokenizer has all of them"
        return int(found)

    around = {
        token_id(IMAGE): ("<|image>", "<image|>"),
        token_id(AUDIO): ("<|audio>", "<audio|>"),
    }
    queue, found = iter(media), list[int]()
    for token in ids:
        if token in around:
            begin, end = (token_id(name) for name in around[token])
            found += [begin, *[token] * next(queue).rows, end]
        else:
            found.append(token)
    assert next(queue, None) is None, "every medium has a place"
    return np.array(found, np.int64)


def media_batch(dialogues: Sequence[MediaDialogue], tokenizer: Tokenizer, seed: int) -> MediaBatch:
    """Encode dialogues whose pictures all have the same grid."""
    texts = [one.dialogue.text() for one in dialogues]
    encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    rows = [
        _spread(found.ids, one.media, tokenizer)
        for found, one in zip(encoded, dialogues, strict=True)
    ]
    ids = padded(rows)
    media = [medium for one in dialogues for medium in one.media]
    scenes = [medium for medium in media if isinstance(medium, Scene)]
    heard = [medium for medium in media if isinstance(medium, Sound)]
    return MediaBatch(
        ids,
        answered(ids, tokenizer.token_to_id("model")),
        [one.kind for one in dialogues],
        Pictures.of(scenes) if scenes else None,
        Sounds.of(heard) if heard else None,
        seed,
    )


def draw_pictures(
    rng: Random, tokenizer: Tokenizer, patches: int, *, test: bool, most: int = 160
) -> MediaBatch:
    """Dialogues about pictures of one grid, of about so many patches."""
    grid = draw_grid(rng, test=test)
    count = max(4, min(most, patches // (_PATCHES_PER_ROW * grid[0] * grid[1])))
    make = picture_dialogues(rng)
    dialogues: list[MediaDialogue] = []
    while sum(isinstance(one, Scene) for each in dialogues for one in each.media) < count:
        dialogue = make(rng, grid, test)
        if dialogue.rows < LONGEST - 300:
            dialogues.append(dialogue)
    return media_batch(dialogues, tokenizer, rng.getrandbits(40))


def draw_sounds(rng: Random, tokenizer: Tokenizer, seconds: float, *, test: bool) -> MediaBatch:
    """Dialogues about sounds of about so many seconds in all."""
    (most,) = rng.choices([one for one, _ in MOST_SECONDS], [share for _, share in MOST_SECONDS])
    count = max(4, min(96, int(seconds / most)))
    dialogues = [sound_dialogue(rng, most, test=test) for _ in range(count)]
    return media_batch(dialogues, tokenizer, rng.getrandbits(40))


def training_step(job: tuple[str, int, int, int, float]) -> tuple[MediaBatch, MediaBatch]:
    """Pictures and sounds of a step.

    Parameters
    ----------
    job : path of the tokenizer, seed, number of the step, patches, seconds of sound
    """
    path, seed, step, patches, seconds = job
    rng, tokenizer = Random(f"{seed} {step}"), _tokenizer(path)
    return (
        draw_pictures(rng, tokenizer, patches, test=False),
        draw_sounds(rng, tokenizer, seconds, test=False),
    )


def training_steps(
    files: Path, seed: int, first: int, patches: int, seconds: float, workers: int
) -> Iterator[tuple[MediaBatch, MediaBatch]]:
    """The batches of the steps from `first` on, made ahead by workers; without end."""
    path, step = str(files / "tokenizer.json"), first
    if workers < 2:
        while True:
            yield training_step((path, seed, step, patches, seconds))
            step += 1
    # Not forked: the tokenizer has threads, of which a fork has none and may wait for one.
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        waiting: list[Future[tuple[MediaBatch, MediaBatch]]] = []
        try:
            while True:
                while len(waiting) < 3 * workers:
                    waiting.append(pool.submit(training_step, (path, seed, step, patches, seconds)))
                    step += 1
                yield waiting.pop(0).result()
        finally:
            for future in waiting:
                future.cancel()


def examination_batches(files: Path, seed: int, count: int, patches: int) -> list[MediaBatch]:
    """Held-out dialogues about pictures of many grids and about sounds, `count` batches of each."""
    rng, tokenizer = Random(f"examination {seed}"), _tokenizer(str(files / "tokenizer.json"))
    found = []
    for _ in range(count):
        found.append(draw_pictures(rng, tokenizer, patches, test=True, most=32))
        found.append(draw_sounds(rng, tokenizer, patches / 400, test=True))
    return found
