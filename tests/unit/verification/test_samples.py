"""The picture and the sound that ship: that they are the drawn ones, and how packages take them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gemma4_compile.media.inputs import Picture, Sound
from gemma4_compile.media.preprocess import Pixels
from gemma4_compile.media.settings import AudioSettings, ImageSettings, MediaSettings
from gemma4_compile.verification.runners import Embed, Step
from gemma4_compile.verification.samples import (
    Room,
    Trial,
    make_trials,
    read_picture,
    read_sound,
)
from tools import draw_samples

IMAGE = ImageSettings(begin=1017, soft=1019, end=1021, video=1023)
AUDIO = AudioSettings(begin=1018, soft=1020, end=1022, unused_samples=160)
BOTH = MediaSettings(IMAGE, AUDIO)
ROOM = Room(context=1000, chunk=512, steps=64)
IDS = range(2, 40)
AROUND = 4 + 8 + 2


def trials(settings: MediaSettings = BOTH, room: Room = ROOM) -> dict[str, Trial]:
    return {trial.modality: trial for trial in make_trials(settings, IDS, room, resize)}


def resize(rgb: Pixels, size: tuple[int, int]) -> Pixels:
    """Nearest pixels: what they are does not matter here."""
    y, x = (np.arange(n) * m // n for n, m in zip(size[::-1], rgb.shape[:2], strict=True))
    return np.ascontiguousarray(rgb[y][:, x])


def test_what_ships_is_what_is_drawn() -> None:
    np.testing.assert_array_equal(read_picture(), draw_samples.picture())
    sound = draw_samples.sound()
    np.testing.assert_array_equal(read_sound(), sound.astype(np.float32) / 2**15)


def test_what_ships_shows_something() -> None:
    rgb, samples = read_picture(), read_sound()
    assert rgb.dtype == np.uint8
    assert all(np.ptp(rgb[..., channel]) > 200 for channel in range(3))
    assert 0.9 < np.abs(samples).max() <= 1
    assert np.abs(samples).mean() > 0.1


def test_a_picture_takes_its_usual_budget() -> None:
    picture = trials()["image"]
    assert isinstance(picture.medium, Picture)
    assert picture.medium.rows == 280
    assert picture.prompt is not None
    assert picture.steps == ROOM.steps
    assert picture.prompt.ids[:5] == [2, 3, 4, 5, IMAGE.begin]
    assert picture.prompt.ids[-9:] == [IMAGE.end, *range(6, 14)]
    assert len(picture.prompt) == picture.medium.rows + AROUND


def test_jobs_look_at_the_rows_first_and_follow_the_tokens() -> None:
    sound = trials()["audio"]
    jobs = sound.jobs()
    assert isinstance(sound.medium, Sound)
    assert isinstance(jobs[0], Embed)
    assert isinstance(jobs[1], Step)
    assert jobs[1].clear
    assert [job.follow for job in jobs[2:] if isinstance(job, Step)] == [True] * ROOM.steps


@pytest.mark.parametrize("context", range(30, 400, 37))
def test_prompts_and_their_tokens_fit_the_context(context: int) -> None:
    room = replace(ROOM, context=context)
    for trial in trials(room=room).values():
        assert trial.prompt is not None
        assert 0 < trial.steps <= context // 4
        assert len(trial.prompt) + trial.steps <= context


def test_a_small_budget_of_the_package_is_kept() -> None:
    image = replace(IMAGE, max_budget=70)
    assert trials(MediaSettings(image))["image"].medium.rows <= 70


def test_a_picture_that_must_be_whole_fits_a_chunk() -> None:
    room = replace(ROOM, chunk=100)
    whole = MediaSettings(IMAGE, whole_images=True)
    assert trials(whole, room)["image"].medium.rows <= 100
    assert trials(MediaSettings(IMAGE), room)["image"].medium.rows > 100


def test_sides_are_within_the_position_tables() -> None:
    image = replace(IMAGE, grid_size=5)
    picture = trials(MediaSettings(image))["image"].medium
    assert isinstance(picture, Picture)
    assert picture.positions.max() == 4


def test_no_room_leaves_the_rows_alone() -> None:
    for trial in trials(room=replace(ROOM, context=12)).values():
        assert trial.prompt is None
        assert [type(job) for job in trial.jobs()] == [Embed]
        assert trial.medium.rows > 1


@pytest.mark.parametrize("context", [17, 18, 19, 20, 24])
def test_the_shortest_contexts_get_short_media(context: int) -> None:
    for trial in trials(room=replace(ROOM, context=context)).values():
        if trial.prompt is not None:
            assert len(trial.prompt) + trial.steps <= context


def test_only_what_the_package_takes_is_tried() -> None:
    assert list(trials(MediaSettings())) == []
    assert list(trials(MediaSettings(audio=AUDIO))) == ["audio"]
    assert list(trials(MediaSettings(IMAGE))) == ["image"]
